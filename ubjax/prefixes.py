"""Prefixes: sequences that are finished but keep their cells, for prompts that begin alike, until cells are needed.

    kept     seq 2: [7 3 9 4]   seq 0: [7 3 1]        oldest first
    claim    [7 3 9 5 8]  ->  a sequence with the cells of [7 3 9], and 3

A kept sequence counts as empty for who looks for one; when a decode finds no slot, the oldest is given up.
"""

import abc
from collections.abc import Iterable, Sequence

import numpy as np

from ubjax.config import as_integer
from ubjax.memory import caches
from ubjax.pictures.wording import amount
from ubjax.sequences import Sequences
from ubjax.typing import Whole


class Prefixes(Sequences, abc.ABC):
    """What an engine can do with finished sequences. `_kept`: their tokens by position, oldest first."""

    _kept: dict[int, tuple[int, ...]]

    def kept(self) -> dict[int, tuple[int, ...]]:
        """The kept sequences with their tokens, oldest first."""
        return dict(self._kept)

    def keep_prefix(self, seq_id: Whole, ids: Iterable[Whole]) -> None:
        """Keep a sequence that is finished; `ids` are its tokens, all of them cached, from position 0 on.

        Raises ValueError unless the sequence holds as many positions, without a hole.
        """
        seq = int(self._known(seq_id))
        tokens = tuple(as_integer(token, f"token {i}") for i, token in enumerate(ids))
        pos = np.asarray(self._cells[0].pos)[
            np.asarray(self._cells[0].seq)[..., seq // 32] >> (seq % 32) & 1 != 0
        ]
        if not tokens or not np.array_equal(np.sort(pos), np.arange(len(tokens))):
            first, last = (int(pos.min()), int(pos.max())) if pos.size else (-1, -1)
            raise ValueError(
                f"sequence {seq} holds positions {first} to {last}: for "
                f"{amount(len(tokens), 'token')} to be kept it has to hold 0 to {len(tokens) - 1}, each in one cell"
            )
        self._touched([seq])
        self._kept[seq] = tokens

    def free_sequences(self) -> list[int]:
        """The sequences that are empty or only kept."""
        last = self._ranges()[1]
        return [seq for seq in range(self.memory.n_seq_max) if last[seq] < 0 or seq in self._kept]

    def n_free_cells(self) -> int:
        """Cells that hold nothing, or nothing but kept sequences; over all streams of the full cache."""
        if not self._kept:
            return super().n_free_cells()
        others = np.asarray(self._cells[0].seq) & ~self._set(list(self._kept))
        return int(np.sum(np.all(others == 0, axis=-1)))

    def claim(self, free: Sequence[int], ids: Sequence[int]) -> tuple[int, int]:
        """A sequence out of `free` (empty or kept ones) for a prompt, and how many of its tokens it holds already.

        The cells are those of the kept sequence that begins most alike, as far as its windows can go on there; the
        prompt's last token is always left to be computed. A kept sequence goes on itself where the prompt continues
        all of it, or where no other sequence is empty; else its cells are copied. Raises ValueError when `free` is
        empty, or names a sequence that holds tokens.
        """
        self._check_free(free)
        donor, n = self._best(ids)
        empty = [seq for seq in free if seq not in self._kept]
        if donor is not None and donor in free and (len(self._kept[donor]) == n or not empty):
            self._cut(donor, n)
            return donor, n
        seq = empty[0] if empty else next(seq for seq in self._kept if seq in free)
        if not empty:
            self.rm(seq)
        if donor is not None:
            self.start_from(donor, seq, n)
        return seq, n

    def start_from(self, src: Whole, dst: Whole, n: Whole) -> None:
        """Let an empty sequence hold the first n tokens of another: the same cells, or a copy with streams.

        Of a window cache that is smaller than the full one only what position n sees: what several sequences hold
        can't be used again.
        """
        if self.memory.unified:
            self.cp(src, dst, 0, n)
            if self.caches[-1].n_cells < self.memory.n_cells:
                at = self._known(dst), np.int32(as_integer(n, "n"))
                self._cells = caches.drop_passed(self._cells, *at, self.caches)
        else:  # whole streams are copied
            self.cp(src, dst)
            self._cut(int(dst), int(n))

    def _check_free(self, free: Sequence[int]) -> None:
        if not len(free):
            raise ValueError("no sequence is free: one that is empty or only kept is needed")
        first, last = self._ranges()
        for seq in map(self._known, free):
            if last[seq] >= 0 and int(seq) not in self._kept:
                raise ValueError(
                    f"sequence {seq} holds positions {first[seq]} to {last[seq]}: a sequence that is empty or only "
                    "kept is needed; nothing was changed"
                )

    def _cut(self, seq: int, n: int) -> None:
        """Let a sequence hold its first n tokens, and no longer be kept."""
        if self.pos_max(seq) >= n:
            self.rm(seq, n)
        self._touched([seq])

    def _best(self, ids: Sequence[int]) -> tuple[int | None, int]:
        """The kept sequence that a prompt can start from, and how many tokens; (None, 0) when there is none."""
        best, n = None, 0
        for seq, kept in self._kept.items():
            shared = _shared(kept, ids[:-1])
            if shared > n and self.can_resume(seq, shared):
                best, n = seq, shared
        return best, n

    def _evict(self) -> None:
        """Give up the cells of the oldest kept sequence."""
        seq = next(iter(self._kept))
        del self._kept[seq]
        self._cells = self._emptied(self._cells, [seq])

    def _kept_within(self, p0: int, p1: int) -> list[int]:
        low = max(p0, 0)  # a kept sequence holds one cell for each of its tokens
        return [seq for seq, ids in self._kept.items() if low < (len(ids) if p1 < 0 else min(p1, len(ids)))]

    def _touched(self, seqs: Iterable[Whole]) -> None:
        for seq in seqs:
            self._kept.pop(int(seq), None)


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    most = min(len(a), len(b))
    return next((i for i in range(most) if a[i] != b[i]), most)
