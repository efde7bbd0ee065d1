"""Sequence operations one by one; test_random_ops.py has them in any order against a plain model."""

import jax
import numpy as np
import pytest

from tests.memory.helpers import assert_same, cells_of, seqs_in
from ubjax.analysis import count_compilations
from ubjax.config import MemoryConfig
from ubjax.memory import ops

UNIFIED = MemoryConfig(n_cells=6, n_seq_max=40)
STREAMS = MemoryConfig(n_cells=4, n_seq_max=3, unified=False)


def shared():
    """Cells 0..3 of sequence 0, of which 1 and 2 are 35's too; cell 4 is 35's alone."""
    held = {0: (0, 0), 1: (1, {0, 35}), 2: (2, {0, 35}), 3: (3, 0), 4: (3, 35)}
    return cells_of(UNIFIED, [held], [5])


def test_rm_takes_a_range_and_moves_the_head_back():
    cells = ops.rm(shared(), 0, 1, -1, UNIFIED)
    assert seqs_in(cells) == [[{0}, {35}, {35}, set(), {35}, set()]]
    assert cells.pos.tolist() == [[0, 1, 2, -1, 3, -1]] and cells.head.tolist() == [3]
    assert_same(ops.rm(shared(), 0, -1, 0, UNIFIED), shared())


def test_rm_of_every_sequence():
    cells = ops.rm(shared(), -1, 2, 3, UNIFIED)
    assert cells.pos.tolist() == [[0, 1, -1, 3, 3, -1]] and cells.head.tolist() == [2]
    streams = cells_of(STREAMS, [{1: (0, 0)}, {2: (1, 1)}, {0: (2, 2)}], [2, 3, 1])
    streams = ops.rm(streams, -1, -1, 2, STREAMS)
    assert streams.pos.tolist() == [[-1] * 4, [-1] * 4, [2, -1, -1, -1]] and streams.head.tolist() == [
        1,
        2,
        1,
    ]


def test_keep_leaves_one_sequence():
    cells = ops.keep(shared(), 35, UNIFIED)
    assert seqs_in(cells) == [[set(), {35}, {35}, set(), {35}, set()]] and cells.head.tolist() == [0]
    streams = cells_of(STREAMS, [{1: (0, 0)}, {2: (1, 1)}, {}])
    assert_same(ops.keep(streams, 1, STREAMS), streams)


def test_add_gathers_shifts_and_empties_below_zero():
    cells = ops.add(ops.add(shared(), 0, 2, -1, -1, UNIFIED), 0, 1, 2, -2, UNIFIED)
    # position 2 moved to 1 by the first, both cells at 1 below 0 by the second
    assert cells.pos.tolist() == [[0, -1, -1, 2, 3, -1]] and cells.shift.tolist() == [[0, 0, 0, -1, 0, 0]]
    assert cells.head.tolist() == [1]
    moved = ops.add(ops.add(shared(), 0, 3, -1, 4, UNIFIED), 0, 7, -1, -2, UNIFIED)
    assert moved.pos.tolist() == [[0, 1, 2, 5, 3, -1]] and moved.shift.tolist() == [[0, 0, 0, 2, 0, 0]]
    assert moved.head.tolist() == [0]
    for p0, p1, delta in [(-1, -1, 0), (2, 2, 3), (0, 0, 3)]:
        assert_same(ops.add(shared(), 0, p0, p1, delta, UNIFIED), shared())


def test_div_rounds_down():
    cells = ops.div(shared(), 0, 1, -1, 2, UNIFIED)
    assert cells.pos.tolist() == [[0, 0, 1, 1, 3, -1]] and cells.shift.tolist() == [[0, 1, 1, 2, 0, 0]]
    assert cells.head.tolist() == [5]
    for divisor in (1, 0, -3):
        assert_same(ops.div(shared(), 0, -1, -1, divisor, UNIFIED), shared())


def test_cp_in_one_stream_shares_cells():
    cells, done = ops.cp(shared(), 0, 7, 1, 3, UNIFIED)
    assert done and seqs_in(cells) == [[{0}, {0, 7, 35}, {0, 7, 35}, {0}, {35}, set()]]


def test_cp_between_streams_copies_whole_sequences():
    before = cells_of(STREAMS, [{1: (0, 0), 2: (1, 0)}, {0: (5, 1)}, {}], [3, 1, 0])
    before.shift[0, 2] = 2
    cells, done = ops.cp(before, 0, 1, -1, 9, STREAMS)
    assert done and cells.pos.tolist() == [[-1, 0, 1, -1], [-1, 0, 1, -1], [-1] * 4]
    assert seqs_in(cells)[1] == [set(), {1}, {1}, set()] and cells.shift[1].tolist() == [0, 0, 2, 0]
    assert cells.head.tolist() == [3, 3, 0] and cells.src.tolist() == [0, 0, 2]
    cells, done = ops.cp(cells, 1, 2, -1, -1, STREAMS)
    assert done and cells.src.tolist() == [0, 0, 0] and seqs_in(cells)[2] == [set(), {2}, {2}, set()]
    cells, done = ops.cp(before, 0, 1, 1, -1, STREAMS)
    assert not done
    assert_same(cells, before)
    assert ops.cp(before, 0, 0, 1, 2, STREAMS)[1]


def test_settle_and_clear():
    before = cells_of(STREAMS, [{1: (0, 0)}, {0: (5, 1)}, {}], [3, 1, 0])
    pending, _ = ops.cp(ops.add(before, 0, -1, -1, 3, STREAMS), 0, 2, -1, -1, STREAMS)
    settled = ops.settle(pending)
    assert not settled.shift.any() and settled.src.tolist() == [0, 1, 2]
    assert settled.pos.tolist() == pending.pos.tolist() and settled.head.tolist() == pending.head.tolist()
    assert_same(ops.clear(pending), cells_of(STREAMS, []))


@pytest.mark.parametrize("config", [UNIFIED, STREAMS], ids=["unified", "streams"])
@pytest.mark.parametrize("seq", [-2, 41, 70])
def test_an_unknown_sequence_changes_nothing(config, seq):
    before = cells_of(config, [{0: (0, 0), 2: (4, 0)}], [3] + [0] * (config.n_streams - 1))
    assert_same(ops.rm(before, seq, -1, -1, config), before)
    assert_same(ops.keep(before, seq, config), before)
    assert_same(ops.add(before, seq, -1, -1, 2, config), before)
    assert_same(ops.div(before, seq, -1, -1, 2, config), before)
    for src, dst in [(seq, 0), (0, seq)]:
        assert_same(ops.cp(before, src, dst, -1, -1, config)[0], before)
    assert ops.pos_min(before, seq, config) == ops.pos_max(before, seq, config) == -1
    assert ops.pos_min(before, 0, config) == 0 and ops.pos_max(before, 0, config) == 4


def test_mrope_positions_do_not_shift():
    config = MemoryConfig(n_cells=4, n_pos=3)
    for operation in (ops.add, ops.div):
        with pytest.raises(ValueError, match="holds 3 positions a token, 1 is needed"):
            operation(cells_of(config, []), 0, -1, -1, 2, config)


def test_one_program_serves_all_sequences_and_ranges():
    before = jax.device_put(shared())
    ops.rm(before, 0, 1, 2, UNIFIED)
    with count_compilations() as count:
        for seq, p0, p1 in [(1, 0, 5), (35, -1, -1), (-1, 2, 4)]:
            ops.rm(before, seq, p0, p1, UNIFIED)
    assert count.total == 0


def test_operations_map_over_sequences():
    many = jax.vmap(lambda seq: ops.rm(shared(), seq, -1, -1, UNIFIED))(np.arange(40, dtype=np.int32))
    for seq in (0, 1, 35):
        alone = ops.rm(shared(), seq, -1, -1, UNIFIED)
        assert_same(jax.tree.map(lambda leaf, seq=seq: leaf[seq], many), alone)
