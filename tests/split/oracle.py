"""The three splits in plain Python, token by token as the rules are worded; and batches and plans as lists."""

from typing import Any

import jax
import numpy as np

from ubjax import Batch, BatchConfig
from ubjax.split.plan import SplitPlan

Cut = list[tuple[list[int], int]]  # per ubatch: rows of the batch, number of sequence sets


def simple(sets: list[frozenset[int]], n_ubatch: int) -> Cut:
    rows = list(range(len(sets)))
    return [(rows[i : i + n_ubatch], len(rows[i : i + n_ubatch])) for i in range(0, len(rows), n_ubatch)]


def equal(
    sets: list[frozenset[int]],
    n_ubatch: int,
    n_keep_tail: int = 0,
    *,
    sequential: bool,
    n_set_rows: int = 10**9,
) -> Cut:
    if sequential and any(len(s) > 1 for s in sets):
        return []
    used: set[int] = set()
    cut: Cut = []
    while len(used) < len(sets):
        chosen = _choose(sets, used, n_ubatch, sequential)
        queues = [[i for i, s in enumerate(sets) if i not in used and s == c] for c in chosen]
        rounds = 1
        most = min(n_set_rows, n_ubatch // len(queues))
        while rounds < most and all(len(queue) > rounds for queue in queues):
            rounds += 1
        left = [len(queue) - rounds for queue in queues]
        kept = next((j for j, n in enumerate(left) if 0 < n < n_keep_tail), len(queues))
        if kept == 0:
            kept, whole = 1, len(queues[0])
            rounds = whole if whole <= n_ubatch else whole - n_keep_tail
        rows = [row for queue in queues[:kept] for row in queue[:rounds]]
        used |= set(rows)
        cut.append((rows, kept))
    return cut


def _choose(
    sets: list[frozenset[int]], used: set[int], n_ubatch: int, sequential: bool
) -> list[frozenset[int]]:
    chosen: list[frozenset[int]] = []
    for i, s in enumerate(sets):
        if i in used or any(s & other for other in chosen):
            continue
        if sequential and chosen and min(s) != min(chosen[-1]) + 1:
            continue
        chosen.append(s)
        if len(chosen) == n_ubatch:
            break
    return chosen


def seq(sets: list[frozenset[int]], n_ubatch: int) -> Cut:
    used: set[int] = set()
    cut: Cut = []
    while len(used) < len(sets):
        rows: list[int] = []
        for i, s in enumerate(sets):
            if i not in used and len(rows) < n_ubatch and (not rows or s <= sets[rows[-1]]):
                rows.append(i)
        used |= set(rows)
        cut.append((rows, 1))
    return cut


def keeps_order(sets: list[frozenset[int]], cut: Cut) -> bool:
    rows = [row for ubatch, _ in cut for row in ubatch]
    return not any(a > b and sets[a] & sets[b] for i, a in enumerate(rows) for b in rows[i:])


def batch_of(sets: list[Any], n_seq_max: int = 5, capacity: int | None = None) -> Batch:
    """A batch of plain tokens, token i with id i, in these sequence sets (or sequences)."""
    config = BatchConfig(n_vocab=10_000, n_batch=10_000, n_seq_max=n_seq_max)
    return Batch.from_arrays(list(range(len(sets))), seq_id=sets, config=config, capacity=capacity)


def cut_of(plan: SplitPlan) -> Cut:
    """The ubatches of a plan, after a look at its padding."""
    plan = jax.tree.map(np.asarray, plan)
    capacity, n_ubatches, n_used = len(plan.order), int(plan.n_ubatches), int(plan.n_used)
    assert (plan.order[n_used:] == capacity).all()
    assert plan.offset[0] == 0
    assert (plan.offset[n_ubatches:] == n_used).all()
    assert (plan.n_seqs[n_ubatches:] == 0).all()
    ends = plan.offset.tolist()
    return [(plan.order[ends[k] : ends[k + 1]].tolist(), int(plan.n_seqs[k])) for k in range(n_ubatches)]
