"""Rows find cells, all or none; with M-RoPE their further positions come along."""

import numpy as np

from tests.memory.helpers import assert_same, cells_of, seqs_in
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.rows import place_rows, seen_at_the_end


def test_rows_take_scattered_cells_in_order():
    config = MemoryConfig(n_cells=6, n_seq_max=2)
    cells = cells_of(config, [{0: (0, 0), 2: (1, 0), 3: (2, 0)}], heads=[4])
    pos = np.array([[7, 7, 9, 0]], np.int32)
    seq = np.array([[2], [2], [3], [0]], np.uint32)
    placed = place_rows(cells, pos, seq, 0, 3, 0, config)
    assert placed.ok and placed.index.tolist() == [1, 4, 5, 6]
    for positions in (placed.cells.pos, placed.cells.k_pos):
        assert positions.tolist() == [[0, 7, 1, 2, 7, 9]]
    assert seqs_in(placed.cells) == [[{0}, {1}, {0}, {0}, {1}, {0, 1}]]
    placed = place_rows(cells, np.zeros((1, 4), np.int32), np.ones((4, 1), np.uint32), 0, 4, 0, config)
    assert not placed.ok and placed.found == 3
    assert_same(placed.cells, cells)


def test_rows_go_into_their_stream_with_all_their_positions():
    config = MemoryConfig(n_cells=3, n_seq_max=2, unified=False, n_pos=4)
    pos = np.array([[4, 5, 0], [1, 2, 0], [8, 9, 0]], np.int32)
    placed = place_rows(cells_of(config, []), pos, np.full((3, 1), 2, np.uint32), 1, 2, 0, config)
    assert placed.cells.pos.tolist() == [[-1, -1, -1], [4, 5, -1]]
    assert placed.cells.ext.tolist()[1] == [[1, 8], [2, 9], [0, 0]]
    assert placed.cells.head.tolist() == [0, 2]


def test_what_the_end_of_each_sequence_sees():
    config = MemoryConfig(n_cells=8, n_seq_max=3, n_swa=3, swa_type=SwaType.STANDARD)
    pos = np.array([0, 1, 2, 3, 4, 5, -1], np.int32)
    seq = np.array([[1], [1], [3], [2], [2], [2], [0]], np.uint32)  # 0 up to 2, 1 from 2 to 5
    assert seen_at_the_end(pos, seq, 3, config).tolist() == [False, True, True, False, True, True, False]
