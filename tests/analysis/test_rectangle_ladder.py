"""Shapes of two dimensions: near the best of all sets, the best of all where there is one set, every ubatch held."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.analysis.ladder import optimize_ladder
from ubjax.analysis.rectangle_ladder import optimize_rectangles
from ubjax.ladders import BucketLadder, RectangleLadder

SETS, ROWS, K = 4, 8, 4
POSSIBLE = [(s, t) for s in range(1, SETS + 1) for t in range(1, ROWS // s + 1)]


def rows_of(ladder, histogram):
    return sum(count * np.prod(ladder.pick(*shape)) for shape, count in histogram.items())


def all_ladders():
    """What every possible ubatch costs in each set of K shapes that holds them all: [ladders, ubatches]."""
    possible = itertools.product(range(1, SETS + 1), range(1, ROWS + 1))
    shapes = [(s, t) for s, t in possible if s * t <= 2 * ROWS]
    costs = np.asarray([[s * t if s >= n and t >= m else np.inf for n, m in POSSIBLE] for s, t in shapes])
    chosen = np.asarray(list(itertools.combinations(range(len(shapes)), K)))
    best = costs[chosen].min(axis=1)
    return best[np.isfinite(best).all(axis=1)]


def test_the_gap_to_all_ladders_is_small():
    ladders = all_ladders()
    assert len(ladders) > 1000
    gaps = []
    for seed in range(60):
        rng = random.Random(seed)
        histogram = {
            shape: rng.randint(1, 20) for shape in rng.sample(POSSIBLE, rng.randint(2, len(POSSIBLE)))
        }
        least = (ladders @ np.asarray([histogram.get(shape, 0) for shape in POSSIBLE])).min()
        ladder = optimize_rectangles(histogram, K, n_ubatch=ROWS, n_seqs=SETS)
        assert len(ladder.shapes()) <= K and rows_of(ladder, histogram) >= least
        gaps.append(rows_of(ladder, histogram) / least - 1)
    assert np.mean(gaps) < 0.003 and max(gaps) < 0.11 and np.mean(np.asarray(gaps) == 0) > 0.95


@given(st.dictionaries(st.integers(1, 20), st.integers(1, 9), min_size=1), st.integers(1, 6))
def test_one_set_is_the_exact_ladder(sizes, k):
    ladder = optimize_rectangles({(1, n): count for n, count in sizes.items()}, k, n_ubatch=20, n_seqs=1)
    exact = optimize_ladder(sizes, k, top=20)
    assert rows_of(ladder, {(1, n): count for n, count in sizes.items()}) == sum(
        count * exact.pick(n) for n, count in sizes.items()
    )
    assert len(ladder.rectangles) <= k


@given(
    st.integers(1, 6),
    st.integers(1, 24),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_every_ubatch_is_held_with_at_most_k_shapes(n_seqs, n_ubatch, k, rng):
    possible = [(s, t) for s in range(1, n_seqs + 1) for t in range(1, n_ubatch // s + 1)]
    histogram = {shape: rng.randint(1, 9) for shape in rng.sample(possible, rng.randint(1, len(possible)))}
    ladder = optimize_rectangles(histogram, k, n_ubatch=n_ubatch, n_seqs=n_seqs)
    picked = {ladder.pick(*shape) for shape in possible}
    assert picked == set(ladder.shapes()) and len(ladder.rectangles) <= k
    assert all(any(s >= n and t >= m for s, t in picked) for n, m in possible)


def test_fewer_shapes_than_a_grid_with_less_padding():
    histogram = {(1, 16): 50, (1, 5): 20, (3, 5): 30, (4, 1): 500, (3, 1): 90}
    grid = RectangleLadder.grid(BucketLadder.geometric(4), BucketLadder.geometric(16))
    used = len({grid.pick(*shape) for shape in histogram})
    ladder = optimize_rectangles(histogram, used, n_ubatch=16, n_seqs=4)
    assert rows_of(ladder, histogram) < rows_of(grid, histogram) and len(ladder.shapes()) <= used == 4


def test_a_cost_is_followed():
    histogram = {(1, 1): 10, (1, 7): 1, (2, 4): 1}
    flat = optimize_rectangles(histogram, 3, n_ubatch=8, n_seqs=2, cost=lambda rows: 1 if rows <= 8 else 100)
    assert rows_of(flat, {(1, 1): 1}) <= 8 and all(s * t <= 8 for s, t in flat.shapes())
    with pytest.raises(ValueError, match=r"the cost falls from -1 for 1 rows to -2 for 2"):
        optimize_rectangles(histogram, 3, n_ubatch=8, n_seqs=2, cost=lambda rows: -rows)


@pytest.mark.parametrize(
    ("histogram", "k", "sentence"),
    [
        ({}, 2, "the histogram is empty"),
        ({(1, 1): 1}, 0, "0 shapes were asked for, at least 1 is needed"),
        ({(3, 3): 1}, 2, "a ubatch of 3 x 3 rows: up to 4 sets and 8 rows in all are possible"),
        ({(5, 1): 1}, 2, "a ubatch of 5 x 1 rows"),
        ({(1, 0): 1}, 2, "a ubatch of 1 x 0 rows"),
        ({(1, 1): -2}, 2, "1 x 1 rows occur -2 times"),
    ],
)
def test_what_cannot_be_is_refused(histogram, k, sentence):
    with pytest.raises(ValueError, match=sentence):
        optimize_rectangles(histogram, k, n_ubatch=8, n_seqs=4)


@pytest.mark.parametrize(("k", "most_rows"), [(1, 32 * 64), (2, 512), (3, 256), (5, 128), (9, 128)])
def test_no_shape_is_larger_than_needed(k, most_rows):
    ladder = optimize_rectangles({(1, 64): 1, (32, 1): 999}, k, n_ubatch=64, n_seqs=32)
    assert len(ladder.rectangles) <= k and max(s * t for s, t in ladder.rectangles) <= most_rows
