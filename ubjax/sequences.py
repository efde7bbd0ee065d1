"""Sequences: the cells of a cache with the operations that a caller may ask for, checked on the host.

Everything that is refused is refused before the cells change, with one sentence.
"""

import abc

import jax
import numpy as np

from ubjax.config import MemoryConfig, as_integer
from ubjax.memory import ops
from ubjax.memory.cells import Cells
from ubjax.typing import Whole


class Sequences(abc.ABC):
    """What an engine can do with the sequences in its cache."""

    memory: MemoryConfig
    _cells: Cells

    @abc.abstractmethod
    def clear(self) -> None:
        """Empty the cache; K/V goes back to the smallest bucket."""

    def pos_min(self, seq_id: Whole) -> int:
        """The first cached position of a sequence, -1 when it is absent."""
        return int(self._ranges()[0][self._known(seq_id)])

    def pos_max(self, seq_id: Whole) -> int:
        """The last cached position of a sequence, -1 when it is absent."""
        return int(self._ranges()[1][self._known(seq_id)])

    def n_free_cells(self) -> int:
        """Cells that hold nothing, over all streams."""
        return int(np.sum(np.asarray(self._cells.pos) < 0))

    def rm(self, seq_id: Whole, p0: Whole = -1, p1: Whole = -1) -> None:
        """Drop a sequence (-1: every one) from the cells with positions in [p0, p1); negative bounds are open.

        K/V of a cache that is empty then goes back to the smallest bucket, as on `clear`.
        """
        whole = as_integer(seq_id, "the sequence") == -1
        seq = np.int32(-1) if whole else self._known(seq_id)
        self._cells = ops.rm(self._cells, seq, *_range(p0, p1), self.memory)
        if not np.any(np.asarray(self._cells.pos) >= 0):
            self.clear()  # an empty cache starts small again, so that equal work takes equal programs

    def cp(self, src: Whole, dst: Whole, p0: Whole = -1, p1: Whole = -1) -> None:
        """Let `dst` share the cells of `src` with positions in [p0, p1). Refused between streams (for now)."""
        known = self._known(src), self._known(dst)
        if not self.memory.unified and src != dst:
            raise ValueError(
                f"sequence {src} can't be copied to sequence {dst}: they have streams of their own "
                "and K/V rows are not copied between streams yet; kv_unified=True is needed"
            )
        self._cells, _ = ops.cp(self._cells, *known, *_range(p0, p1), self.memory)

    def keep(self, seq_id: Whole) -> None:
        """Drop every other sequence (with streams: from this sequence's stream)."""
        self._cells = ops.keep(self._cells, self._known(seq_id), self.memory)

    def add(self, seq_id: Whole, p0: Whole, p1: Whole, delta: Whole) -> None:
        """Shift the positions in [p0, p1) of a sequence. Refused (for now): cached keys would have to be rotated."""
        raise ValueError(
            f"positions of sequence {self._known(seq_id)} can't be moved by {delta}: cached keys are not "
            "rotated to new positions yet; nothing was changed"
        )

    def div(self, seq_id: Whole, p0: Whole, p1: Whole, d: Whole) -> None:
        """Divide the positions in [p0, p1) of a sequence. Refused (for now), as `add` is."""
        raise ValueError(
            f"positions of sequence {self._known(seq_id)} can't be divided by {d}: cached keys are not "
            "rotated to new positions yet; nothing was changed"
        )

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return jax.device_get(ops.seq_ranges(self._cells, self.memory))

    def _known(self, seq_id: Whole) -> np.int32:
        number = as_integer(seq_id, "the sequence")
        if not 0 <= number < self.memory.n_seq_max:
            raise ValueError(
                f"sequence {number} is unknown: a sequence in [0, {self.memory.n_seq_max}) is needed"
            )
        return np.int32(number)


def _range(p0: Whole, p1: Whole) -> tuple[np.int32, np.int32]:
    """Bounds as int32 scalars, so that every kind of integer takes the same program."""
    return np.int32(as_integer(p0, "p0")), np.int32(as_integer(p1, "p1"))
