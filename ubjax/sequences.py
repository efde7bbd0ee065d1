"""Sequences: the cells of a memory with the operations that a caller may ask for, checked on the host.

Every operation is tried on the side: what can't be carried out leaves the cells as they are and says why in one
sentence. K and V follow before the next decode.
"""

import abc
from collections.abc import Iterable

import jax
import numpy as np

from ubjax.config import MemoryConfig, as_integer
from ubjax.invariant import misplaced
from ubjax.memory import caches
from ubjax.memory.caches import AllCells, Caches
from ubjax.typing import Whole
from ubjax.validate import MAX_POS


class Sequences(abc.ABC):
    """What an engine can do with the sequences in its cache."""

    memory: MemoryConfig
    caches: Caches
    batch_invariant: bool
    _cells: AllCells

    @abc.abstractmethod
    def clear(self) -> None:
        """Empty the cache; K/V goes back to the smallest bucket."""

    @abc.abstractmethod
    def _touched(self, seqs: Iterable[Whole]) -> None:
        """Told which sequences no longer are what they were."""

    @abc.abstractmethod
    def _kept_within(self, p0: int, p1: int) -> list[int]:
        """The sequences with positions in [p0, p1) that are only kept for prompts that begin alike: they make way."""

    def pos_min(self, seq_id: Whole) -> int:
        """The first position of a sequence that every layer still holds, -1 when the sequence is absent."""
        return int(self._ranges()[0][self._known(seq_id)])

    def pos_max(self, seq_id: Whole) -> int:
        """The last cached position of a sequence, -1 when it is absent."""
        return int(self._ranges()[1][self._known(seq_id)])

    def pos_next(self, seq_id: Whole) -> int:
        """The position of the token that goes on with a sequence, 0 when it is absent; not its number of tokens.

        With M-RoPE that is the one after the largest of all sections: behind an image of 2 x 6 tokens at position p it
        is p + 6.
        """
        return int(self._next_pos()[self._known(seq_id)])

    def n_free_cells(self) -> int:
        """Cells that hold nothing, over all streams (of the full cache, where there is one for windows as well)."""
        return int(np.sum(np.asarray(self._cells[0].pos) < 0))

    # -- what is possible
    # ------------------------------------------------------------------------------------------------------

    @property
    def can_shift(self) -> bool:
        """Whether positions can be moved (`add`, `div`): with one position a token, so not with M-RoPE.

        Nor where the token at position p has to lie in cell p (batch_invariant).
        """
        return self.memory.n_pos == 1 and not self.batch_invariant

    def can_remove(self, seq_id: Whole, p0: Whole = -1, p1: Whole = -1) -> bool:
        """Whether `rm` would be carried out: what it leaves of a sequence has to be able to go on at its end.

        That fails in window caches, which may have given up positions that the new end needs, and with batch_invariant
        anywhere but at the end of a sequence.
        """
        return self._hindrance(self._removed(seq_id, p0, p1)) is None

    def can_resume(self, seq_id: Whole, p: Whole) -> bool:
        """Whether a sequence can go on at position p once its positions from p on are removed.

        It can at 0, and where position p - 1 is cached and the windows still hold everything that p sees.
        """
        at = np.int32(as_integer(p, "the position"))
        return bool(caches.can_resume(self._cells, self._known(seq_id), at, self.caches))

    # -- operations
    # ------------------------------------------------------------------------------------------------------

    def rm(self, seq_id: Whole, p0: Whole = -1, p1: Whole = -1) -> None:
        """Drop a sequence (-1: every one) from the cells with positions in [p0, p1); negative bounds are open.

        Refused where `can_remove` says so. Of every sequence: kept ones with a position in the range are given up
        whole. K/V of a cache that is empty goes back to the smallest bucket, as on `clear`.
        """
        self._change(
            self._removed(seq_id, p0, p1), f"positions [{p0}, {p1}) of sequence {seq_id} can't be removed"
        )
        self._touched(self._kept_within(int(p0), int(p1)) if seq_id == -1 else [seq_id])
        if not np.any(np.asarray(self._cells[0].pos) >= 0):
            self.clear()  # an empty cache starts small again, so that equal work takes equal programs

    def cp(self, src: Whole, dst: Whole, p0: Whole = -1, p1: Whole = -1) -> None:
        """Let `dst` have the positions [p0, p1) of `src`: unified they share cells, with streams rows are copied.

        With streams, whole sequences only, and what `dst` held before is gone.
        """
        known = self._known(src), self._known(dst)
        what = f"positions [{p0}, {p1}) of sequence {src} can't be copied to sequence {dst}"
        after, possible = caches.cp(self._cells, *known, *_range(p0, p1), self.caches)
        if not possible:
            raise ValueError(
                f"{what}: each has a stream of its own, which is copied whole; a range that holds all of sequence "
                f"{src}, or kv_unified=True, is needed; nothing was changed"
            )
        self._change(after, what)
        self._touched([dst])

    def keep(self, seq_id: Whole) -> None:
        """Drop every other sequence (with streams: from this sequence's stream)."""
        self._cells = caches.keep(self._cells, self._known(seq_id), self.caches)
        if self.memory.unified:
            self._touched(seq for seq in range(self.memory.n_seq_max) if seq != seq_id)

    def add(self, seq_id: Whole | Iterable[Whole], p0: Whole, p1: Whole, delta: Whole) -> None:
        """Move the positions in [p0, p1) of a sequence by `delta`, or of several that share cells.

        A token whose position falls below 0 is dropped. Cached keys are rotated to their new positions before the
        next decode. Refused with M-RoPE positions, for a cell that other sequences own too (it has one position),
        and where a window can't go on at the new end. Kept sequences among those others are given up instead.
        """
        ids = list(seq_id) if isinstance(seq_id, Iterable) else [seq_id]
        seqs = self._set(ids)
        bounds, by = _range(p0, p1), np.int32(as_integer(delta, "delta"))
        what = f"positions [{p0}, {p1}) of sequence {seq_id} can't be moved by {delta}"
        cells, given_up = self._movable(seqs, bounds, what)
        last = max(int(self._ranges()[1][seq]) for seq in ids) if ids else -1
        if int(by) and last + int(by) > MAX_POS:
            raise ValueError(f"{what}: positions up to {MAX_POS} are possible; nothing was changed")
        self._change(caches.add(cells, seqs, *bounds, by, self.caches), what)
        self._touched([*ids, *given_up])

    def shift(self, seq_id: Whole, p0: Whole, p1: Whole) -> None:
        """Remove the positions [p0, p1) of a sequence and move those behind them down to p0; both or neither.

        As `rm` and `add`, and refused where they are. `memory.context_shift` says which positions make room.
        """
        (start, end), seqs = _range(p0, p1), self._set([seq_id])
        what = f"positions of sequence {seq_id} can't be moved from {p1} down to {p0}"
        if not 0 <= start <= end:
            raise ValueError(f"{what}: 0 <= {p0} <= {p1} is needed; nothing was changed")
        cells, given_up = self._movable(seqs, (end, np.int32(-1)), what)
        if start < end:
            cells = caches.rm(cells, self._known(seq_id), start, end, self.caches)
        self._change(caches.add(cells, seqs, end, np.int32(-1), np.int32(start - end), self.caches), what)
        self._touched([seq_id, *given_up])

    def div(self, seq_id: Whole | Iterable[Whole], p0: Whole, p1: Whole, d: Whole) -> None:
        """Divide the positions in [p0, p1) of a sequence, or of several, by `d` (rounded down); otherwise as `add`."""
        ids = list(seq_id) if isinstance(seq_id, Iterable) else [seq_id]
        seqs = self._set(ids)
        bounds, by = _range(p0, p1), np.int32(as_integer(d, "the divisor"))
        what = f"positions [{p0}, {p1}) of sequence {seq_id} can't be divided by {d}"
        if by < 1:
            raise ValueError(f"{what}: a divisor of at least 1 is needed; nothing was changed")
        cells, given_up = self._movable(seqs, bounds, what)
        self._change(caches.div(cells, seqs, *bounds, by, self.caches), what)
        self._touched([*ids, *given_up])

    # -- how they are checked
    # ------------------------------------------------------------------------------------------------------

    def _removed(self, seq_id: Whole, p0: Whole, p1: Whole) -> AllCells:
        bounds = _range(p0, p1)
        if as_integer(seq_id, "the sequence") != -1:
            return caches.rm(self._cells, self._known(seq_id), *bounds, self.caches)
        cells = self._emptied(self._cells, self._kept_within(int(p0), int(p1)))
        return caches.rm(cells, np.int32(-1), *bounds, self.caches)

    def _change(self, after: AllCells, what: str) -> None:
        """Take over the cells after an operation, unless a sequence could go on before it and can't any more."""
        hindrance = self._hindrance(after)
        if hindrance is not None:
            raise ValueError(f"{what}: {hindrance}; nothing was changed")
        self._cells = after

    def _hindrance(self, after: AllCells) -> str | None:
        """Why a sequence that could go on before can't go on from these cells."""
        if self.batch_invariant:
            return misplaced(np.asarray(after[0].pos))
        if len(self.caches) == 1:
            return None
        could, can = (np.asarray(caches.can_go_on(cells, self.caches)) for cells in (self._cells, after))
        lost = could & ~can
        if not lost.any():
            return None
        return (
            f"the window of {self.caches[-1].n_swa} positions has given up what sequence {int(np.argmax(lost))} would "
            "need to go on at its new end (swa_full=True keeps it)"
        )

    def _movable(
        self, seqs: np.ndarray, bounds: tuple[np.int32, np.int32], what: str
    ) -> tuple[AllCells, list[int]]:
        """The cells without the kept sequences that share those of a range, and these; refuses other owners."""
        if self.batch_invariant:
            raise ValueError(
                f"{what}: batch_invariant needs the token at position p in cell p; nothing was changed"
            )
        if not self.can_shift:
            raise ValueError(
                f"{what}: a token has {self.memory.n_pos} positions here (M-RoPE), one is needed; nothing was changed"
            )
        cells, given_up = self._cells, []
        while (other := int(caches.outsider(cells, seqs, *bounds))) < self.memory.n_seq_max:
            if other not in self._kept_within(-1, -1):
                raise ValueError(
                    f"{what}: sequence {other} shares some of their cells, and a cell has one position; "
                    "all sequences that share them are needed in one call; nothing was changed"
                )
            cells = self._emptied(cells, [other])
            given_up.append(other)
        return cells, given_up

    def _emptied(self, cells: AllCells, seqs: Iterable[int]) -> AllCells:
        """The cells without any of these sequences."""
        for seq in seqs:
            cells = caches.rm(cells, np.int32(seq), np.int32(-1), np.int32(-1), self.caches)
        return cells

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return jax.device_get(caches.seq_ranges(self._cells, self.caches))

    def _next_pos(self) -> np.ndarray:
        if self.memory.n_pos == 1:
            return self._ranges()[1] + 1
        return np.asarray(caches.next_pos(self._cells, self.caches))

    def _set(self, ids: Iterable[Whole]) -> np.ndarray:
        """The words of a set of sequences."""
        words = np.zeros(self.memory.n_words, np.uint32)
        for number in map(self._known, ids):
            words[number // 32] |= np.uint32(1) << np.uint32(number % 32)
        return words

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
