"""The best ladder for given traffic, exactly: the k bucket sizes that cost least when every ubatch is padded.

n  candidate sizes, ascending, the last is the top      C  [n + 1] ubatches in the candidates before one

A bucket j behind a bucket i takes the ubatches between them, at (C[j + 1] - C[i + 1]) * cost[j]. With costs that
never fall this is a Monge array, so one layer of the dynamic programming is the lower hull of n lines: O(n k) in all.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ubjax.ladders import BucketLadder
from ubjax.typing import Number

Histogram: TypeAlias = Mapping[int, int]
Cost: TypeAlias = Callable[[int], Number]  # of one ubatch, by its rows


def optimize_ladder(
    histogram: Histogram,
    k: int | None = None,
    *,
    top: int | None = None,
    cost: Cost | None = None,
    compile_price: Number | None = None,
) -> BucketLadder:
    """The ladder of at most k sizes with the least cost for a histogram {rows of a ubatch: how many ubatches}.

    `top`: the last size, always a member (n_ubatch; default the largest size that occurs). `cost(rows)`: what one
    ubatch of a bucket costs; default its rows, so that padding is least. Without `k` the number of buckets is chosen
    as well: each adds `compile_price`, in the unit of the cost. Exact for every cost, also one that falls somewhere.

        {1: 10, 3: 10, 4: 1}, k 2: sizes (3, 4) cost 20 * 3 + 1 * 4 = 64, sizes (1, 4) cost 10 * 1 + 11 * 4 = 54: (1, 4)

    Raises ValueError for an empty histogram, sizes outside [1, top], negative counts, or without exactly one of k and
    compile_price.
    """
    candidates = Candidates.of(histogram, top, cost)
    if (k is None) == (compile_price is None):
        raise ValueError(f"k is {k} and compile_price is {compile_price}: exactly one of the two is needed")
    if k is None:
        assert compile_price is not None  # for the type checker: said above
        return BucketLadder(candidates.cheapest(compile_price)[1])
    return waste_curve(histogram, k, top=top, cost=cost).ladders[-1]


@dataclasses.dataclass(frozen=True)
class WasteCurve:
    """What the best ladder of k sizes costs, for k = 1, 2, ...: the price of few compilations.

    costs[i] is that of ladders[i], which has at most i + 1 sizes; `floor` that of one bucket per size, no ladder
    costs less.
    """

    ladders: tuple[BucketLadder, ...]
    costs: tuple[Number, ...]
    floor: Number

    @property
    def waste(self) -> tuple[float, ...]:
        """The share of the cost that is padding, for each k."""
        return tuple(1 - self.floor / cost if cost else 0.0 for cost in self.costs)

    def plot(self, ax: Any = None) -> Any:
        """Draw waste(k) against the number of buckets with matplotlib; returns the axes."""
        import matplotlib.pyplot as plt

        ax = plt.figure(figsize=(6, 4), layout="constrained").subplots() if ax is None else ax
        ax.plot(range(1, len(self.costs) + 1), [100 * share for share in self.waste], marker="o")
        ax.set(xlabel="buckets (compilations)", ylabel="padding, % of the cost", ylim=(0, None))
        ax.grid(alpha=0.3)
        return ax


def waste_curve(
    histogram: Histogram, k_max: int, *, top: int | None = None, cost: Cost | None = None
) -> WasteCurve:
    """The best ladders of 1 to k_max sizes (fewer where nothing is left to gain), as `optimize_ladder` finds each."""
    if k_max < 1:
        raise ValueError(f"{k_max} buckets were asked for, at least 1 is needed")
    candidates = Candidates.of(histogram, top, cost)
    layers = candidates.layers(k_max)
    return WasteCurve(
        ladders=tuple(BucketLadder(sizes) for _, sizes in layers),
        costs=tuple(cost for cost, _ in layers),
        floor=candidates.floor,
    )


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Sizes worth a bucket, ascending; ubatches `before` each [n + 1]; costs that never fall."""

    sizes: tuple[int, ...]
    before: tuple[int, ...]
    costs: tuple[Number, ...]

    @classmethod
    def of(cls, histogram: Histogram, top: int | None, cost: Cost | None) -> "Candidates":
        """The candidates of a histogram; arguments and errors as in `optimize_ladder`."""
        sizes, counts = _sorted(histogram, top)
        top = int(sizes[-1]) if top is None else top
        if cost is None:
            options = np.union1d(sizes, [top])
            costs = options
        else:
            options = np.arange(1, top + 1)
            costs = np.asarray([cost(int(size)) for size in options], np.float64)
            if not np.all(np.isfinite(costs)):
                at = int(np.argmin(np.isfinite(costs)))
                raise ValueError(f"the cost of {options[at]} rows is {costs[at]}, a finite number is needed")
            # A bucket that costs more than a larger one is never worth having: the larger one takes over.
            worth = costs <= np.minimum.accumulate(costs[::-1])[::-1]
            options, costs = options[worth], costs[worth]
        load = np.zeros(len(options), counts.dtype)
        np.add.at(load, np.searchsorted(options, sizes), counts)
        # Nor one with no ubatch of its own: the one below is no dearer. The top stays.
        used = (load > 0) | (options == top)
        before = np.concatenate([[0], np.cumsum(load[used])])
        return cls(tuple(options[used].tolist()), tuple(before.tolist()), tuple(costs[used].tolist()))

    @property
    def floor(self) -> Number:
        """The cost with a bucket for every candidate."""
        return sum(
            (b - a) * cost for a, b, cost in zip(self.before, self.before[1:], self.costs, strict=False)
        )

    def layers(self, k_max: int) -> list[tuple[Number, tuple[int, ...]]]:
        """(cost, sizes) of the best ladders of at most 1, 2, ... k_max sizes."""
        n = len(self.sizes)
        best: list[Number] = [0, *(math.inf,) * n]
        choices: list[list[int]] = []
        found = []
        for _ in range(min(k_max, n)):
            best, choice = self._add_bucket(best)
            choices.append(choice)
            found.append((best[n], self._trace(choices)))
        return found

    def cheapest(self, price: Number) -> tuple[Number, tuple[int, ...]]:
        """(cost with prices, sizes) of the best ladder when each size adds `price`."""
        if not price >= 0:
            raise ValueError(f"compile_price is {price}, a number of at least 0 is needed")
        best, choice = self._add_bucket(None, price)
        return best[-1], self._trace([choice] * len(self.sizes))

    def _trace(self, choices: list[list[int]]) -> tuple[int, ...]:
        sizes, covered = [], len(self.sizes)
        for choice in reversed(choices):
            if covered:
                sizes.append(self.sizes[covered - 1])
                covered = choice[covered]
        return tuple(reversed(sizes))

    def _add_bucket(self, best: list[Number] | None, price: Number = 0) -> tuple[list[Number], list[int]]:
        """One more bucket: new[j] = min over i < j of best[i] + price + a bucket for i to j - 1; and the i [n + 1].

        Without `best` the new values themselves are continued, so that any number of buckets may be used. Each i is a
        line, best[i] - before[i] * cost, asked at costs that never fall: a lower hull, walked once. One flat loop,
        for speed.
        """
        new: list[Number] = [0]
        choice = [0]
        given = new if best is None else best
        slopes, heights, starts = [], [], []  # the hull's lines
        at = 0
        for j, cost in enumerate(self.costs):
            slope, height = self.before[j], given[j]
            if height < math.inf:
                # The last line goes when it is nowhere below both the one before it and the new one.
                while len(starts) - at >= 2 and (height - heights[-2]) * (slopes[-1] - slopes[-2]) <= (
                    heights[-1] - heights[-2]
                ) * (slope - slopes[-2]):
                    del slopes[-1], heights[-1], starts[-1]
                slopes.append(slope)
                heights.append(height)
                starts.append(j)
            least = heights[at] - slopes[at] * cost
            while at + 1 < len(starts) and (following := heights[at + 1] - slopes[at + 1] * cost) <= least:
                at, least = at + 1, following
            new.append(least + self.before[j + 1] * cost + price)
            choice.append(starts[at])
        return new, choice


def _sorted(histogram: Histogram, top: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Sizes that occur, ascending, and how often; checked."""
    entries = sorted((size, count) for size, count in histogram.items() if count)
    if not entries:
        raise ValueError("the histogram is empty: at least one ubatch is needed")
    sizes, counts = (np.asarray(column) for column in zip(*entries, strict=True))
    if sizes[0] < 1 or (top is not None and sizes[-1] > top):
        wrong = sizes[0] if sizes[0] < 1 else sizes[-1]
        raise ValueError(
            f"the histogram has a size of {wrong} rows, sizes in [1, {top or sizes[-1]}] are needed"
        )
    if counts.min() < 0:
        raise ValueError(
            f"size {sizes[np.argmin(counts)]} occurs {counts.min()} times: a count of at least 0 is needed"
        )
    return sizes, counts
