"""Good shapes n_seqs x n_seq_tokens for given traffic: a search by exchange from several starts.

M  candidate rectangles      N  ubatches that differ, and the largest ones that can occur (weight 0, but to be held)
K  shapes

The problem is a k-median one, with no exact method in sight. One start is greedy. The other is exact in a family:
sets in (a', a] have a ladder of their own (one dimension, solved in ladder.py), and the a and the share of each in
the K shapes are chosen by a second dynamic programming. From each start, single shapes are exchanged while that
helps; then half of the best is thrown away, filled up and exchanged again, a few times.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from ubjax.analysis.ladder import Candidates, Cost
from ubjax.ladders import RectangleLadder
from ubjax.typing import Number

RectangleHistogram: TypeAlias = Mapping[tuple[int, int], int]
_UNHELD = 1e15  # what a ubatch without a shape costs: more than any padding
_ENTRIES = 2_500_000  # of the table [M, N], 20 MB
_ROUNDS = 16


def optimize_rectangles(
    histogram: RectangleHistogram, k: int, *, n_ubatch: int, n_seqs: int, cost: Cost | None = None
) -> RectangleLadder:
    """A ladder of at most k shapes that costs little for a histogram {(n_seqs, n_seq_tokens): how many ubatches}.

    `n_seqs`: the most sets a ubatch can have. Every n_seqs x n_seq_tokens <= n_ubatch rows are held, whether they
    occur or not; what this takes counts among the k. No shape has more than 2 n_ubatch rows, as in a grid of powers of
    two, unless k is too small for that. `cost(rows)`: what one ubatch of a shape costs, must not fall as the rows
    grow; default the rows, so that padding is least.

    Exact for n_seqs 1. Against all sets of k such shapes, over 800 random histograms of at most 4 sets and 12 rows,
    k 4 and 5: the best in 97 % of them, 0.07 % more rows on average, 10 % at worst.

    Raises ValueError for an empty histogram, shapes that can't occur, negative counts, k < 1, or a cost that falls.
    """
    if k < 1:
        raise ValueError(f"{k} shapes were asked for, at least 1 is needed")
    table = _table(histogram, n_ubatch, min(n_seqs, n_ubatch))
    limit = _most_rows(k, n_ubatch, len(table) - 1)
    by_sets = _ladders_by_sets(table, k, n_ubatch, limit, cost)
    if n_seqs == 1:
        return RectangleLadder(n_ubatch, n_seqs, tuple(by_sets))
    shapes, price = _prices(table, by_sets, n_ubatch, limit, cost)
    at = {shape: m for m, shape in enumerate(shapes)}
    starts = [_fill(price, [at[shape] for shape in by_sets], k), _fill(price, [], k)]
    best = _search(price, starts, k)
    return RectangleLadder(n_ubatch, n_seqs, tuple({shapes[m] for m in best}))


def _table(histogram: RectangleHistogram, n_ubatch: int, most: int) -> np.ndarray:
    """Counts [n_seqs, n_seq_tokens], checked."""
    table = np.zeros((most + 1, n_ubatch + 1), np.int64)
    for (n_seqs, n_seq_tokens), count in histogram.items():
        if n_seqs < 1 or n_seqs > most or n_seq_tokens < 1 or n_seqs * n_seq_tokens > n_ubatch:
            raise ValueError(
                f"the histogram has a ubatch of {n_seqs} x {n_seq_tokens} rows: "
                f"up to {most} sets and {n_ubatch} rows in all are possible"
            )
        if count < 0:
            raise ValueError(
                f"{n_seqs} x {n_seq_tokens} rows occur {count} times: a count of at least 0 is needed"
            )
        table[n_seqs, n_seq_tokens] = count
    if not table.any():
        raise ValueError("the histogram is empty: at least one ubatch is needed")
    return table


def _most_rows(k: int, n_ubatch: int, most: int) -> int:
    """The rows that a shape may have: 2 n_ubatch, or what k shapes need to hold all ubatches of up to `most` sets."""
    limit = 2 * n_ubatch
    while True:
        held, n_shapes = 0, 0
        while held < most:
            held, n_shapes = limit // (n_ubatch // (held + 1)), n_shapes + 1
        if n_shapes <= k:
            return limit
        limit *= 2


def _ladders_by_sets(
    table: np.ndarray, k: int, n_ubatch: int, limit: int, cost: Cost | None
) -> list[tuple[int, int]]:
    """The best shapes of the family: numbers of sets (a', a] share a, and have a ladder of rows of their own."""
    most = len(table) - 1
    best = {0: np.zeros(k + 1)}
    choice: dict[int, list[tuple[int, int]]] = {}
    for end in range(1, most + 1):
        best[end], choice[end] = np.full(k + 1, np.inf), [(0, 0)] * (k + 1)
        for begin in range(end):
            if end * (n_ubatch // (begin + 1)) > limit:
                continue
            ladders = _ladders_of(table, begin, end, k, n_ubatch, cost)
            for size, (price, _) in enumerate(ladders, start=1):
                total = best[begin][: k + 1 - size] + price
                for at in np.flatnonzero(total < best[end][size:]):
                    best[end][size + at], choice[end][size + at] = total[at], (begin, size)
    shapes, end, left = [], most, k
    while end:
        begin, size = choice[end][left]
        _, rows = _ladders_of(table, begin, end, size, n_ubatch, cost)[size - 1]
        shapes += [(end, n) for n in rows]
        end, left = begin, left - size
    return shapes


def _ladders_of(
    table: np.ndarray, begin: int, end: int, k: int, n_ubatch: int, cost: Cost | None
) -> list[tuple[Number, tuple[int, ...]]]:
    """(cost, rows) of the best ladders of at most 1, 2, ... k sizes for the sets (begin, end]."""
    longest = n_ubatch // (begin + 1)
    counts = table[begin + 1 : end + 1].sum(axis=0)
    rows = np.flatnonzero(counts)
    if len(rows) == 0:
        return [(0, (longest,))]
    histogram = dict(zip(rows.tolist(), counts[rows].tolist(), strict=True))
    of_shape = (lambda size: size * end) if cost is None else (lambda size: cost(size * end))
    return Candidates.of(histogram, longest, of_shape).layers(k)


def _prices(
    table: np.ndarray, wanted: list[tuple[int, int]], n_ubatch: int, limit: int, cost: Cost | None
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Candidates [M] and what all ubatches of a kind would cost in each [M, N]; the `wanted` are among them.

    A corner of a useful rectangle lies in the row of one ubatch and in the column of another. Those with the most rows
    are left out where the table would be too large.
    """
    most = len(table) - 1
    occurring = {(int(s), int(t)) for s, t in zip(*np.nonzero(table), strict=True)}
    ubatches = np.asarray(sorted(occurring | {(s, n_ubatch // s) for s in range(1, most + 1)}))
    corners = [(int(s), int(t)) for s in np.unique(ubatches[:, 0]) for t in np.unique(ubatches[:, 1])]
    corners = [shape for shape in corners if shape[0] * shape[1] <= limit]
    corners.sort(key=lambda shape: (shape[0] * shape[1], shape))
    kept = {*corners[: _ENTRIES // len(ubatches)], *wanted}
    shapes = np.asarray(sorted(kept, key=lambda shape: (shape[0] * shape[1], shape)))
    rows = shapes.prod(axis=1)
    prices = rows if cost is None else np.asarray([cost(int(n)) for n in rows])
    if np.any(prices[1:] < prices[:-1]):
        at = int(np.argmax(prices[1:] < prices[:-1]))
        raise ValueError(
            f"the cost falls from {prices[at]} for {rows[at]} rows to {prices[at + 1]} for {rows[at + 1]}: "
            "a cost that does not fall is needed for shapes of several sets"
        )
    held = np.all(shapes[:, None] >= ubatches, axis=-1)
    weights = table[ubatches[:, 0], ubatches[:, 1]]
    return [tuple(shape) for shape in shapes.tolist()], np.where(held, prices[:, None] * weights, _UNHELD)


def _search(price: np.ndarray, starts: list[list[int]], k: int) -> list[int]:
    """The best of what exchanges make of the starts and then, where the table is small, of its own random halves."""
    rng = np.random.default_rng(0)  # the same ladder every time
    n_again = min(_ROUNDS, _ENTRIES // price.size)
    best, least = starts[0], np.inf
    for turn in range(len(starts) + n_again):
        start = (
            starts[turn] if turn < len(starts) else _fill(price, [m for m in best if rng.random() < 0.5], k)
        )
        chosen = _exchange(price, start)
        total = price[chosen].min(axis=0).sum()
        if total < least:
            best, least = chosen, total
    return best


def _fill(price: np.ndarray, chosen: list[int], k: int) -> list[int]:
    """Candidates up to k, each time the one that helps most."""
    chosen = list(chosen)
    least = price[chosen].min(axis=0) if chosen else np.full(price.shape[1], _UNHELD)
    while len(chosen) < min(k, len(price)):
        chosen.append(int(np.minimum(price, least).sum(axis=1).argmin()))
        least = np.minimum(least, price[chosen[-1]])
    return chosen


def _exchange(price: np.ndarray, chosen: list[int]) -> list[int]:
    """Exchange one of the chosen for another candidate, the best pair each time, until none is better."""
    chosen, ubatch = list(chosen), np.arange(price.shape[1])
    while True:
        of_chosen = price[chosen]
        nearest = of_chosen.argmin(axis=0)
        first = of_chosen[nearest, ubatch]
        of_chosen[nearest, ubatch] = _UNHELD
        second = of_chosen.min(axis=0)
        with_new = np.minimum(price, first)  # [M, N], every chosen one still there
        loses = np.minimum(price, second) - with_new  # what its nearest costs a ubatch by going
        of_nearest = (nearest[:, None] == np.arange(len(chosen))).astype(price.dtype)
        total = with_new.sum(axis=1, keepdims=True) + loses @ of_nearest  # [M, K]
        new, old = np.unravel_index(int(total.argmin()), total.shape)
        if total[new, old] >= first.sum() * (1 - 1e-12):
            return chosen
        chosen[old] = int(new)
