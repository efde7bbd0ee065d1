"""Unified caches with windows: a batch that split_simple can't place is cut once more, and nothing is lost by it."""

import collections

import jax
import numpy as np
import pytest

from tests.memory.helpers import assert_same, batch_of
from tests.saving.helpers import engine_of, fill, put, text
from ubjax.config import MemoryConfig, SwaType
from ubjax.host_batch import fitted
from ubjax.memory import caches, ops
from ubjax.memory.init_batch import CAUSAL, init_batch
from ubjax.memory.slots import apply_slot
from ubjax.status import Reason

# A window cache smaller than an engine gives it: what is shared makes it as tight there.
FULL = MemoryConfig(n_cells=64, n_seq_max=3)
WINDOW = MemoryConfig(n_cells=6, n_seq_max=3, n_swa=2, swa_type=SwaType.STANDARD)
BOTH = (FULL, WINDOW)
N_UBATCH = 4


@jax.jit
def planned(cells, batch):
    """The batch as the memory of both caches cuts it, and the simple cut in a window cache that has room."""
    roomy = (FULL, FULL)
    return (
        init_batch(cells, batch, np.int32(N_UBATCH), BOTH, max_rows=N_UBATCH),
        init_batch((cells[0], cells[0]), batch, np.int32(N_UBATCH), roomy, max_rows=N_UBATCH),
    )


def check(cells, batch, prepared):
    """All rows once, in cells of their own ubatch; what the steps see at the end is what was prepared."""
    plan, n = prepared.plan, int(batch.n_tokens)
    order, offset = np.asarray(plan.order), np.asarray(plan.offset)
    assert sorted(order[:n].tolist()) == list(range(n)) and offset[int(plan.n_ubatches)] == n
    assert (np.diff(offset[: int(plan.n_ubatches) + 1]) <= N_UBATCH).all() and not plan.equal_seqs.any()
    running = cells
    for k in range(int(plan.n_ubatches)):
        for slot, config in zip(prepared.slot, BOTH, strict=True):
            rows = np.asarray(slot)[offset[k] : offset[k + 1]]
            assert len(set(rows.tolist())) == len(rows) and (rows < config.n_cells).all()
        at = np.int32(k)
        running = tuple(
            apply_slot(own, batch, plan, slot, at, config)
            for own, slot, config in zip(running, prepared.slot, BOTH, strict=True)
        )
    for found, wanted in zip(running, prepared.cells, strict=True):
        assert_same(ops.settle(found), ops.settle(wanted))
    assert np.asarray(caches.can_go_on(prepared.cells, BOTH)).all()


def test_what_the_simple_split_can_not_place_is_cut_once_more():
    rng, seen = np.random.default_rng(0), collections.Counter()
    for _ in range(60):
        cells, end = jax.tree.map(np.asarray, caches.empty(BOTH)), [0, 0, 0]
        for _ in range(4):
            order = rng.permutation(np.repeat(np.arange(3), rng.integers(0, 4, 3)))
            order = np.sort(order) if rng.random() < 0.5 else order
            if not len(order):
                continue
            rows, after = [], list(end)
            for s in order.tolist():
                rows.append((after[s], s))
                after[s] += 1
            batch = batch_of(rows, 3)
            prepared, simple = planned(cells, batch)
            if int(prepared.status.code) != Reason.OK:
                seen["refused"] += 1
                for found, given in zip(prepared.cells, cells, strict=True):
                    assert_same(found, given)
                continue
            same = np.array_equal(prepared.plan.order, simple.plan.order)
            seen["simple" if same else "equal"] += 1
            check(cells, batch, prepared)
            assert [int(p) for p in ops.seq_ranges(prepared.cells[0], FULL)[1]] == [n - 1 for n in after]
            cells, end = prepared.cells, after
    assert min(seen[kind] for kind in ("simple", "equal", "refused")) > 9, seen


def crowded(swa_full):
    """A window cache of 24 cells: 16 shared ones that are never used again, 6 of sequence 1, 2 empty."""
    engine = engine_of("window", swa_full=swa_full, n_seq_max=4)
    fill(engine, 0, 16)
    engine.cp(0, 2)
    fill(engine, 1, 6)
    return engine


@pytest.mark.slow
def test_an_engine_falls_back_and_computes_the_same():
    """Four rows of sequence 0 leave two cells for three of sequence 1; two of each first, and sequence 1 moves on."""
    small, whole = crowded(False), crowded(True)
    assert (small.caches[1].n_cells, whole.caches[1].n_cells) == (24, 32)
    made = {"token": text(7), "seq_id": [0] * 4 + [1] * 3, "output": [True] * 7}
    _, (plan, *_) = small._plan(fitted(small.batch(**made), 8, small.buckets.capacity), CAUSAL)
    assert plan.order[:7].tolist() == [0, 1, 4, 5, 2, 6, 3]
    found = [engine.decode(engine.batch(**made)) for engine in (small, whole)]
    rows = [np.stack([outputs.logits(i) for i in range(7)]) for outputs in found]
    np.testing.assert_allclose(*rows, rtol=0, atol=1e-5)
    held = np.asarray(vars(small)["_cells"][1].seq)[0, :, 0]
    assert (held & 2 != 0).sum() < 9 == (np.asarray(vars(whole)["_cells"][1].seq)[0, :, 0] & 2 != 0).sum()
    for seq in (1, 0):
        np.testing.assert_allclose(put(small, seq, [5]), put(whole, seq, [5]), rtol=0, atol=1e-5)
