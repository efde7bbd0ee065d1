"""Batches, cells and comparisons that the memory's tests share."""

import jax
import numpy as np

from ubjax import Batch, BatchConfig
from ubjax.config import MemoryConfig
from ubjax.memory.cells import Cells

CAPACITY = 16


def batch_of(rows, n_seq_max, capacity=CAPACITY, n_pos=1) -> Batch:
    """A batch of rows (pos, sequence or sequences); a row has an id, so its one position serves for all P."""
    config = BatchConfig(n_vocab=1, n_batch=capacity, n_seq_max=n_seq_max, n_pos=n_pos)
    return Batch.from_arrays(
        np.zeros(len(rows), np.int32),
        pos=[p for p, _ in rows],
        seq_id=[[s] if isinstance(s, int) else sorted(s) for _, s in rows],
        config=config,
        capacity=capacity,
    )


def cells_of(config: MemoryConfig, streams, heads=None) -> Cells:
    """Cells from {index: (pos, sequence or sequences)} per stream."""
    cells = Cells.empty(config)
    for s, contents in enumerate(streams):
        for i, (pos, seqs) in contents.items():
            cells.pos[s, i] = cells.k_pos[s, i] = pos
            for seq in [seqs] if isinstance(seqs, int) else seqs:
                cells.seq[s, i, seq // 32] |= np.uint32(1) << np.uint32(seq % 32)
    if heads is not None:
        cells.head[:] = heads
    return cells


def assert_same(found: Cells, expected: Cells, where: str = "") -> None:
    """Bit for bit, leaf by leaf."""
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=f"{where} {jax.tree_util.keystr(path)}")


def seqs_in(cells: Cells) -> list[list[set[int]]]:
    """The sequences of each cell, per stream."""
    words = np.asarray(cells.seq)
    return [
        [
            {32 * w + b for w in range(len(cell)) for b in range(32) if int(cell[w]) >> b & 1}
            for cell in stream
        ]
        for stream in words
    ]
