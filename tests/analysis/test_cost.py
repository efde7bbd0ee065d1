"""The analytic cost is the slower of reading and computing; a timed one goes through its timings, with its error."""

import pytest

from ubjax.analysis.cost import Roofline, TimedCost
from ubjax.analysis.padding import ModelSizes
from ubjax.analysis.rectangle_ladder import optimize_rectangles

SIZES = ModelSizes(n_layers=2, n_embd=8, n_ff=16, n_heads=2, n_kv_heads=1, head_dim=4, n_vocab=50)


def test_few_rows_are_bound_by_reading_and_many_by_computing():
    cost = Roofline(sizes=SIZES, flops=1e3, bandwidth=1e3)
    weights = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)
    assert cost(1) == pytest.approx(weights * 4 / 1e3)
    assert cost(2) == pytest.approx(weights * 4 / 1e3) and cost(8) == pytest.approx(8 * weights * 2 / 1e3)
    half = Roofline(sizes=SIZES, flops=1e3, bandwidth=1e3, weight_bytes=2)
    assert half(1) == cost(1) / 2


def test_cells_are_read_and_attended():
    with_cells = Roofline(sizes=SIZES, flops=1.0, bandwidth=1e9, n_kv=10)
    without = Roofline(sizes=SIZES, flops=1.0, bandwidth=1e9)
    assert with_cells(3) - without(3) == 3 * 10 * (2 * 4 * 2 * 4)  # layers * 4 * heads * head_dim
    reads = [Roofline(sizes=SIZES, flops=1e9, bandwidth=1.0, n_kv=n)(1) for n in (0, 10)]
    assert reads[1] - reads[0] == 10 * 4 * (2 * 2 * 1 * 4)  # bytes * K and V * layers * heads * head_dim
    with pytest.raises(ValueError, match="0 FLOP/s and 1 bytes/s"):
        Roofline(sizes=SIZES, flops=0, bandwidth=1)


def test_a_timed_cost_goes_through_its_timings():
    cost = TimedCost.of({1: 1.0, 9: 3.0, 5: 2.0}, held_out={7: 2.5, 17: 10.0})
    assert [cost(rows) for rows in (1, 3, 5, 9, 17)] == [1.0, 1.5, 2.0, 3.0, 5.0]
    assert cost.errors == ((7, 0.0), (17, -0.5)) and cost.worst_error == 0.5
    assert TimedCost.of({1: 1.0, 2: 2.0}).worst_error == 0
    for timings in ({1: 1.0}, {1: 1.0, 2: 0.0}, {0: 1.0, 2: 1.0}):
        with pytest.raises(ValueError, match="two positive sizes and times are needed"):
            TimedCost.of(timings)


def test_a_falling_cost_can_be_made_fit_for_shapes():
    cost = TimedCost.of({1: 1.0, 2: 4.0, 4: 3.0, 8: 5.0})
    histogram = {(1, 2): 5, (2, 2): 5}
    with pytest.raises(ValueError, match="the cost falls from"):
        optimize_rectangles(histogram, 3, n_ubatch=4, n_seqs=2, cost=cost)
    flat = cost.never_falling()
    assert [flat(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 4.0, 4.0, 4.0, 5.0]
    assert optimize_rectangles(histogram, 3, n_ubatch=4, n_seqs=2, cost=flat).pick(2, 2) == (2, 2)
