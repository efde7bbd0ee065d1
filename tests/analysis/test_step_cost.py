"""A step's cost is found again from timings that follow it, stays non-negative, and is judged by shapes held out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.analysis.shapes import StepShape
from ubjax.analysis.step_cost import StepCost, non_negative_least_squares

KNOTS = {1: 0.03, 4: 0.05, 64: 0.2}


def seconds(shape):
    """A made-up machine."""
    height = float(np.interp(shape.n_rows, list(KNOTS), list(KNOTS.values())))
    return (
        height
        + 2e-8 * shape.n_rows * shape.n_kv
        + 1e-6 * shape.n_blocks * shape.n_kv
        + 1e-3 * shape.n_outputs
    )


SHAPES = [
    *(StepShape(1, rows, 1, 256) for rows in KNOTS),
    *(StepShape(1, rows, 1, 1024) for rows in KNOTS),
    StepShape(4, 1, 4, 256),
    StepShape(1, 64, 64, 256),
]


def test_a_machine_that_follows_the_form_is_found_again():
    held_out = [StepShape(1, 16, 16, 512), StepShape(2, 8, 2, 2048)]
    cost = StepCost.of(*({shape: seconds(shape) for shape in shapes} for shapes in (SHAPES, held_out)))
    assert cost.height.timed == tuple((rows, pytest.approx(taken)) for rows, taken in KNOTS.items())
    assert (cost.per_row_cell, cost.per_block_cell, cost.per_output) == pytest.approx((2e-8, 1e-6, 1e-3))
    assert [shape for shape, _ in cost.errors] == held_out and cost.worst_error < 1e-9
    assert cost(StepShape(8, 2, 8, 300)) == pytest.approx(seconds(StepShape(8, 2, 8, 300)))
    assert str(cost).startswith("ms of a step by its rows: 1: 30.00, 4: 50.00, 64: 200.00\n")
    assert "at 2 other shapes: 0% off in the mean, 0% at worst (1x16|kv 512|out 16: +0%, " in str(cost)


def test_errors_are_those_of_the_shapes_held_out():
    held_out = {StepShape(1, 4, 1, 256): 2 * seconds(StepShape(1, 4, 1, 256)), StepShape(1, 1, 1, 512): 1e9}
    cost = StepCost.of({shape: seconds(shape) for shape in SHAPES}, held_out)
    assert [error for _, error in cost.errors] == pytest.approx([-1, -0.5])
    assert (cost.mean_error, cost.worst_error) == pytest.approx((0.75, 1))
    assert StepCost.of({shape: seconds(shape) for shape in SHAPES}).worst_error == 0


def test_noise_gives_no_negative_coefficient():
    rng = np.random.default_rng(3)
    for _ in range(20):
        cost = StepCost.of({shape: seconds(shape) * rng.uniform(0.5, 2) for shape in SHAPES})
        assert min(cost.per_row_cell, cost.per_block_cell, cost.per_output) >= 0
        assert all(taken >= 0 for _, taken in cost.height.timed)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9))
def test_least_squares_without_negative_entries(seed, n_terms, n_rows):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(n_rows, n_terms)), rng.normal(size=n_rows)
    x = non_negative_least_squares(a, b)
    gradient = a.T @ (a @ x - b)  # the conditions that a least x >= 0 fulfils, and no other
    assert (x >= 0).all() and (gradient > -1e-8).all() and np.abs(gradient * x).max() < 1e-7


@pytest.mark.parametrize(
    "timings",
    [
        {},
        {StepShape(1, 1, 1, 8): 1.0, StepShape(1, 1, 1, 16): 1.0},
        {StepShape(1, 1, 1, 8): 1.0, StepShape(1, 2, 1, 8): 1.0},
        {StepShape(1, 1, 1, 8): 1.0, StepShape(1, 2, 1, 16): 0.0},
    ],
)
def test_too_few_timings_are_refused(timings):
    with pytest.raises(ValueError, match="positive seconds, two numbers of rows in one block and two"):
        StepCost.of(timings)
