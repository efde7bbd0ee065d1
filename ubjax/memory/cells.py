"""Cells: what the K/V cache knows about its rows. Integers only; K and V live elsewhere.

pos    [NS, C]     position, -1 in an empty cell          seq  [NS, C, W]  set of sequences, 0 in an empty cell
k_pos  [NS, C]     position that the K row is rotated to  ext  [NS, C, 2]  M-RoPE (y, x), 0 for text; width 0 when P = 1
shift  [NS, C]     llama.cpp's record of pending shifts, 0 in an empty cell
head   [NS]        where the search for a slot starts
src    [NS]        the stream whose K/V rows a stream is to take over before the next decode (itself: nothing pending)

What a K row still has to be rotated by is pos - k_pos. `shift` is the same after additions, but llama.cpp records
a division as old - new, which would rotate the wrong way: it is kept for comparison alone.
"""

import numpy as np

from ubjax.config import MemoryConfig
from ubjax.pictures import CellRows, draw_cells
from ubjax.pytree import at_hand, pytree
from ubjax.typing import Array, Int32, UInt32


@pytree
class Cells:
    """All cells of a cache; a cell is empty when its pos is -1 (then k_pos is -1, and seq, shift and ext are 0)."""

    pos: Int32[Array, "NS C"]
    k_pos: Int32[Array, "NS C"]
    shift: Int32[Array, "NS C"]
    seq: UInt32[Array, "NS C W"]
    ext: Int32[Array, "NS C X"]
    head: Int32[Array, " NS"]
    src: Int32[Array, " NS"]

    @classmethod
    def empty(cls, config: MemoryConfig) -> "Cells":
        """Empty cells (numpy arrays) for a memory configuration."""
        ns, c = config.n_streams, config.n_cells
        return cls(
            pos=np.full((ns, c), -1, np.int32),
            k_pos=np.full((ns, c), -1, np.int32),
            shift=np.zeros((ns, c), np.int32),
            seq=np.zeros((ns, c, config.n_words), np.uint32),
            ext=np.zeros((ns, c, 0 if config.n_pos == 1 else 2), np.int32),
            head=np.zeros(ns, np.int32),
            src=np.arange(ns, dtype=np.int32),
        )

    def _repr_html_(self) -> str | None:
        """A picture for notebooks; None, so that the text is shown, for traced or vmapped cells."""
        return draw_cells(cell_rows(self))._repr_html_() if at_hand(self) and self.pos.ndim == 2 else None


def cell_rows(cells: Cells) -> CellRows:
    """Cells on the host, as pictures take them."""
    pos, k_pos, seq, head, src = map(np.asarray, (cells.pos, cells.k_pos, cells.seq, cells.head, cells.src))
    return CellRows(pos=pos, shift=pos - k_pos, seq=seq, head=head, src=src)
