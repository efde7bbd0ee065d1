"""Operations in any order against a cache in plain Python: the same cells, heads, slots and positions after each."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.helpers import CAPACITY, assert_same, batch_of
from tests.memory.oracle import Cache
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory import ops
from ubjax.memory.init_batch import init_batch
from ubjax.memory.slots import apply_slot
from ubjax.status import Reason

S = 3
CONFIGS = {
    "unified": MemoryConfig(n_cells=8, n_seq_max=S),
    "unified, standard window": MemoryConfig(n_cells=8, n_seq_max=S, n_swa=3, swa_type=SwaType.STANDARD),
    "streams": MemoryConfig(n_cells=6, n_seq_max=S, unified=False),
    "streams, chunked window": MemoryConfig(
        n_cells=6, n_seq_max=S, unified=False, n_swa=3, swa_type=SwaType.CHUNKED
    ),
    "unified, symmetric window": MemoryConfig(n_cells=8, n_seq_max=S, n_swa=3, swa_type=SwaType.SYMMETRIC),
}

seqs, bounds = st.integers(0, S - 1), st.integers(-1, 9)
operations = st.one_of(
    st.tuples(
        st.just("decode"), st.lists(st.sets(seqs, min_size=1), min_size=1, max_size=9), st.integers(1, 5)
    ),
    st.tuples(
        st.just("decode"), st.lists(st.sets(seqs, min_size=1, max_size=1), min_size=1), st.integers(1, 5)
    ),
    st.tuples(st.just("rm"), st.integers(-1, S - 1), bounds, bounds),
    st.tuples(st.just("cp"), seqs, seqs, bounds, bounds),
    st.tuples(st.just("cp"), seqs, seqs, st.just(-1), st.just(-1)),
    st.tuples(st.just("keep"), seqs),
    st.tuples(st.just("add"), seqs, bounds, bounds, st.integers(-4, 4)),
    st.tuples(st.just("div"), seqs, bounds, bounds, st.integers(0, 3)),
    st.tuples(st.just("clear")),
)


def continuing(cache: Cache, wanted):
    """Rows (pos, sequences) that go on where the cache ends; rows of sequences at different places are left out."""
    last = {s: max(cache.positions(s), default=-1) for s in range(S)}
    rows = []
    for ids in wanted[:CAPACITY]:
        if not cache.config.unified:
            ids = {min(ids)}
        if len({last[s] for s in ids}) == 1:
            pos = last[min(ids)] + 1
            rows.append((pos, ids))
            last |= dict.fromkeys(ids, pos)
    return rows


def ubatches_of(plan, rows, unified):
    """The plan's ubatches as lists of sets of rows."""
    for k in range(int(plan.n_ubatches)):
        own = [rows[i] for i in plan.order[plan.offset[k] : plan.offset[k + 1]]]
        n = len(own) if unified else len(own) // int(plan.n_seqs[k])
        yield [own[i : i + n] for i in range(0, len(own), n)]


def check_decode(cells, cache: Cache, wanted, n_ubatch):
    config = cache.config
    rows = continuing(cache, wanted)
    batch = batch_of(rows, S)
    prepared = init_batch((cells,), batch, n_ubatch, (config,), max_rows=5)
    plan, slot, status = jax.device_get((prepared.plan, prepared.slot[0], prepared.status))
    slots = cache.decode(list(ubatches_of(plan, rows, config.unified)))
    if slots is None:
        assert status.code == Reason.NO_SLOT and 0 <= status.found < status.needed
        assert_same(prepared.cells[0], cells)
        assert (slot == config.n_cells).all() and prepared.n_kv_needed[0] == 0
        return cells
    assert status.code == Reason.OK
    flat = [index for sets in slots for stream in sets for index in stream]
    assert slot[: len(rows)].tolist() == flat and (slot[len(rows) :] == config.n_cells).all()
    running = ops.settle(cells)
    for k in range(int(plan.n_ubatches)):
        running = apply_slot(running, batch, plan, slot, k, config)
    assert_same(running, ops.settle(prepared.cells[0]))
    return running


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=40)
@given(todo=st.lists(operations, min_size=1, max_size=12))
def test_operations_in_any_order(name, todo):
    config = CONFIGS[name]
    cache, cells = Cache(config), Cache(config).cells()
    for kind, *args in todo:
        if kind == "decode":
            if continuing(cache, args[0]):
                cells = check_decode(cells, cache, *args)
        elif kind == "clear":
            cache.clear()
            cells = ops.clear(cells)
        elif kind == "cp":
            cells, done = ops.cp(cells, *args, config)
            assert bool(done) == cache.cp(*args)
        else:
            getattr(cache, kind)(*args)
            cells = getattr(ops, kind)(cells, *args, config)
        assert_same(cells, cache.cells(), kind)
        streams = range(config.n_streams)
        assert ops.used(cells).tolist() == [cache.used(s) for s in streams]
        assert ops.used_max_p1(cells).tolist() == [cache.used_max_p1(s) for s in streams]
        spans = [cache.positions(s) or [-1] for s in range(S)]
        low, high = ops.seq_ranges(cells, config)
        assert low.tolist() == [p[0] for p in spans] and high.tolist() == [p[-1] for p in spans]
        assert ops.pos_min(cells, 1, config) == spans[1][0] and ops.pos_max(cells, 1, config) == spans[1][-1]
        empty = np.asarray(cells.pos) < 0
        assert not np.asarray(cells.seq)[empty].any() and not np.asarray(cells.shift)[empty].any()
