"""The dynamic programming equals brute force, for any cost; it is quick; what can't be is refused."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.analysis.ladder import optimize_ladder, waste_curve
from ubjax.ladders import BucketLadder


def cost_of(ladder, histogram, cost=lambda rows: rows):
    return sum(count * cost(ladder.pick(size)) for size, count in histogram.items())


def brute_force(histogram, top, cost):
    """The least cost with exactly 1, 2, ... top sizes."""
    return [
        min(
            cost_of(BucketLadder((*chosen, top)), histogram, cost)
            for chosen in itertools.combinations(range(1, top), k - 1)
        )
        for k in range(1, top + 1)
    ]


@st.composite
def problems(draw):
    top = draw(st.integers(1, 8))
    sizes = st.dictionaries(st.integers(1, top), st.integers(0, 9), min_size=1, max_size=6)
    histogram = draw(sizes.filter(lambda counts: any(counts.values())))
    costs = draw(st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=top + 1, max_size=top + 1)))
    return histogram, top, None if costs is None else costs.__getitem__


@given(problems(), st.integers(1, 5))
def test_k_buckets_equal_brute_force(problem, k):
    histogram, top, cost = problem
    ladder = optimize_ladder(histogram, k, top=top, cost=cost)
    assert ladder.top == top and len(ladder.sizes) <= k
    counted = cost or (lambda rows: rows)
    assert cost_of(ladder, histogram, counted) == min(brute_force(histogram, top, counted)[:k])


@given(problems(), st.sampled_from([0, 0.5, 1, 4, 30]))
def test_a_compile_price_equals_brute_force(problem, price):
    histogram, top, cost = problem
    ladder = optimize_ladder(histogram, top=top, cost=cost, compile_price=price)
    counted = cost or (lambda rows: rows)
    least = min(c + price * k for k, c in enumerate(brute_force(histogram, top, counted), start=1))
    assert cost_of(ladder, histogram, counted) + price * len(ladder.sizes) == pytest.approx(least, abs=1e-9)


def test_the_drawn_example():
    assert optimize_ladder({1: 10, 3: 10, 4: 1}, 2) == BucketLadder((1, 4))
    assert optimize_ladder({1: 10, 3: 12, 4: 1}, 2, top=8) == BucketLadder((3, 8))


def test_more_buckets_than_sizes_leave_no_padding():
    assert optimize_ladder({2: 1, 5: 3}, 9, top=8).sizes == (2, 5, 8)
    assert optimize_ladder({2: 1, 5: 3}, compile_price=0, top=8).sizes == (2, 5, 8)
    assert optimize_ladder({2: 1, 5: 3}, compile_price=1e6, top=8).sizes == (8,)


@given(problems())
def test_the_curve_falls_to_its_floor(problem):
    histogram, top, cost = problem
    curve = waste_curve(histogram, top, top=top, cost=cost)
    counted = cost or (lambda rows: rows)
    for k, (ladder, total) in enumerate(zip(curve.ladders, curve.costs, strict=True), start=1):
        assert len(ladder.sizes) <= k and cost_of(ladder, histogram, counted) == total
    assert all(a >= b for a, b in itertools.pairwise(curve.costs)) and curve.costs[-1] == curve.floor
    gains = [a - b for a, b in itertools.pairwise(curve.costs)]
    assert all(a >= b for a, b in itertools.pairwise(gains))  # each further bucket gains less
    assert curve.waste[-1] == 0 and all(0 <= share <= 1 for share in curve.waste)


def test_ten_thousand_sizes_take_less_than_two_seconds():
    rng = np.random.default_rng(0)
    sizes = rng.choice(65536, 10_000, replace=False) + 1
    histogram = dict(zip(sizes.tolist(), rng.integers(1, 1000, 10_000).tolist(), strict=True))
    took = []
    for _ in range(3):
        start = time.perf_counter()
        ladder = optimize_ladder(histogram, 16, top=65536)
        took.append(time.perf_counter() - start)
    assert len(ladder.sizes) == 16 and min(took) < 2
    even = BucketLadder.linear(65536, 16)
    assert cost_of(ladder, histogram) < cost_of(even, histogram)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"histogram": {}, "k": 2}, "the histogram is empty: at least one ubatch is needed"),
        ({"histogram": {3: 0}, "k": 2}, "the histogram is empty"),
        ({"histogram": {0: 1}, "k": 2}, "the histogram has a size of 0 rows"),
        ({"histogram": {9: 1}, "k": 2, "top": 8}, r"a size of 9 rows, sizes in \[1, 8\] are needed"),
        ({"histogram": {3: -1}, "k": 2}, "size 3 occurs -1 times"),
        ({"histogram": {3: 1}, "k": 0}, "0 buckets were asked for, at least 1 is needed"),
        ({"histogram": {3: 1}}, "exactly one of the two is needed"),
        ({"histogram": {3: 1}, "k": 2, "compile_price": 1}, "k is 2 and compile_price is 1"),
        ({"histogram": {3: 1}, "compile_price": -1}, "compile_price is -1, a number of at least 0 is needed"),
        ({"histogram": {3: 1}, "k": 1, "cost": lambda rows: float("nan")}, "the cost of 1 rows is nan"),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        optimize_ladder(**arguments)
