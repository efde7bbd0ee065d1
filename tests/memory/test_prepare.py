"""prepare: all ubatches or nothing, one program, and the cells that running them gives."""

import jax
import numpy as np
import pytest

from tests.memory.helpers import assert_same, batch_of, cells_of, seqs_in
from ubjax.analysis import count_compilations
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory import ops
from ubjax.memory.prepare import prepare
from ubjax.memory.slots import apply_slot
from ubjax.split import split_equal, split_simple
from ubjax.status import Reason, sentence


def run(cells, batch, plan, config, max_rows=16):
    """prepare, and its slots applied one ubatch after the other."""
    slot, after, n_kv, status = prepare(cells, batch, plan, config, max_rows=max_rows)
    running = cells
    for k in range(int(plan.n_ubatches)):
        running = apply_slot(running, batch, plan, slot, k, config)
    if status.code == Reason.OK:
        assert_same(running, after)
    return slot, after, n_kv, status


def test_each_cell_holds_the_sequence_of_its_row():
    config = MemoryConfig(n_cells=8, n_seq_max=2)
    batch = batch_of([(0, 0), (0, 1), (1, 0), (1, 1)], 2)
    slot, after, n_kv, status = run(cells_of(config, []), batch, split_simple(batch, 16), config)
    assert status.code == Reason.OK and n_kv == 4
    assert slot[:4].tolist() == [0, 1, 2, 3] and (slot[4:] == 8).all()
    assert after.pos.tolist() == [[0, 0, 1, 1, -1, -1, -1, -1]]
    assert seqs_in(after) == [[{0}, {1}, {0}, {1}, set(), set(), set(), set()]]


def test_streams_number_their_own_cells():
    config = MemoryConfig(n_cells=4, n_seq_max=3, unified=False)
    batch = batch_of([(1, 0), (2, 0), (0, 1), (0, 2), (1, 2), (2, 2)], 3)
    before = cells_of(config, [{0: (0, 0)}], [1, 0, 2])
    plan = split_equal(batch, 4, sequential=True)
    slot, after, n_kv, status = run(before, batch, plan, config)
    assert status.code == Reason.OK and n_kv == 4
    assert plan.order[:6].tolist() == [0, 2, 3, 1, 4, 5] and plan.offset[:5].tolist() == [0, 3, 4, 6, 6]
    assert slot[:6].tolist() == [1, 0, 2, 2, 3, 0]
    assert after.pos.tolist() == [[0, 1, 2, -1], [0, -1, -1, -1], [2, -1, 0, 1]] and after.head.tolist() == [
        3,
        1,
        1,
    ]


def test_a_stream_holds_one_sequence_a_unified_cache_shares():
    rows = [(p, 0) for p in range(17)]
    streams = MemoryConfig(n_cells=16, n_seq_max=4, unified=False)
    batch = batch_of(rows, 4, capacity=64)
    before = cells_of(streams, [])
    _, after, _, status = prepare(
        before, batch, split_equal(batch, 64, sequential=True), streams, max_rows=64
    )
    assert (status.code, status.where, status.found, status.needed) == (Reason.NO_SLOT, 0, 16, 17)
    assert_same(after, before)
    unified = MemoryConfig(n_cells=64, n_seq_max=4)
    batch = batch_of([(p, 0) for p in range(60)], 4, capacity=64)
    _, after, n_kv, status = prepare(
        cells_of(unified, []), batch, split_simple(batch, 64), unified, max_rows=64
    )
    assert status.code == Reason.OK and n_kv == 60 and ops.used(after).tolist() == [60]


@pytest.mark.parametrize("n_ubatch", [1, 2, 4])
def test_a_full_cache_changes_nothing(n_ubatch):
    """16 cells, 15 used, 4 tokens: ubatches that would fit are taken back with the one that doesn't."""
    config = MemoryConfig(n_cells=16, n_seq_max=3)
    before = cells_of(config, [{i: (i // 3, i % 3) for i in range(15)}], [15])
    before.shift[0, 4], batch = -2, batch_of([(p, 0) for p in range(5, 9)], 3)
    plan = split_simple(batch, n_ubatch)
    slot, after, n_kv, status = prepare(before, batch, plan, config, max_rows=16)
    where, found = (1, 0) if n_ubatch == 1 else (0, 1)
    assert (status.code, status.where, status.found, status.needed) == (
        Reason.NO_SLOT,
        where,
        found,
        n_ubatch,
    )
    assert "4 cells" in sentence(status) or n_ubatch < 4
    assert_same(after, before)
    assert (slot == 16).all() and n_kv == 0


def test_a_failed_stream_names_its_own_cells():
    config = MemoryConfig(n_cells=4, n_seq_max=2, unified=False)
    before = cells_of(config, [{0: (0, 0)}, {i: (i, 1) for i in range(3)}], [1, 3])
    batch = batch_of([(1, 0), (2, 0), (3, 1), (4, 1)], 2)
    _, after, _, status = prepare(before, batch, split_equal(batch, 4, sequential=True), config, max_rows=16)
    assert (status.code, status.found, status.needed) == (Reason.NO_SLOT, 1, 2)
    assert_same(after, before)


def test_window_reuse_purges_what_would_be_a_hole():
    """W = 4, cells 0..7 full: cells 0..4 have left the window of position 8."""
    config = MemoryConfig(n_cells=8, n_swa=4, swa_type=SwaType.STANDARD)
    before = cells_of(config, [{(3 * i) % 8: (i, 0) for i in range(8)}], [0])
    batch = batch_of([(8, 0)], 1)
    _, after, n_kv, status = run(before, batch, split_simple(batch, 4), config)
    assert status.code == Reason.OK and n_kv == 8
    # cell 0 (position 0) is the first usable one; nothing lies before position 0
    assert after.pos[0].tolist() == [8, 3, 6, 1, 4, 7, 2, 5] and after.head.tolist() == [1]
    _, after, n_kv, status = run(after, batch_of([(9, 0)], 1), split_simple(batch, 4), config)
    # cell 1 (position 3) goes, and positions 1 and 2 with it
    assert after.pos[0].tolist() == [8, 9, 6, -1, 4, 7, -1, 5] and ops.used(after).tolist() == [6]


def test_a_failed_decode_restores_purged_cells():
    """The second ubatch finds no slot after the first one's reuse had purged cells."""
    config = MemoryConfig(n_cells=4, n_seq_max=2, n_swa=2, swa_type=SwaType.STANDARD)
    before = cells_of(config, [{0: (2, 0), 1: (0, 0), 2: (1, 0), 3: (3, 0)}], [0])
    batch = batch_of([(4, 0), *[(p, 1) for p in range(4)]], 2)
    _, after, _, status = prepare(before, batch, split_simple(batch, 4), config, max_rows=16)
    assert (status.code, status.found, status.needed) == (Reason.NO_SLOT, 3, 4)
    assert_same(after, before)


def test_one_program_for_any_number_of_ubatches():
    config = MemoryConfig(n_cells=32, n_swa=5, swa_type=SwaType.STANDARD)
    batch = batch_of([(p, 0) for p in range(13)], 1)
    plans = [split_simple(batch, n) for n in (1, 2, 5, 16)]
    prepare(cells_of(config, []), batch, plans[0], config, max_rows=16)
    with count_compilations() as count:
        for plan in plans:
            _, after, n_kv, status = prepare(cells_of(config, []), batch, plan, config, max_rows=16)
            assert status.code == Reason.OK and n_kv == 13 and after.pos[0, :13].tolist() == list(range(13))
    assert not [name for name in count.by_name if "prepare" in name]


def test_prepare_maps_over_batches():
    config = MemoryConfig(n_cells=12, n_seq_max=2, unified=False)
    batches = [
        batch_of([(p, s) for s, n in enumerate(lens) for p in range(n)], 2)
        for lens in [(3, 5), (9, 1), (2, 13)]
    ]
    cells, stacked = cells_of(config, []), jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

    def one(batch):
        return prepare(cells, batch, split_equal(batch, 4, sequential=True), config, max_rows=4)

    slots, after, n_kv, status = jax.vmap(one)(stacked)
    for i, batch in enumerate(batches):
        slot, alone, n, state = one(batch)
        assert slots[i].tolist() == slot.tolist() and n_kv[i] == n and status.code[i] == state.code
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], after), alone)
    assert status.code.tolist() == [Reason.OK, Reason.OK, Reason.NO_SLOT]
