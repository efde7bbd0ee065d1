"""TokenRows: what a picture says of tokens, as host arrays.

n  tokens    P  positions a token    W  32-bit words of a sequence set
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from ubjax.pictures.wording import ids_of, ranges
from ubjax.typing import Array, Bool, Int32, UInt32

_ID = 1  # the bit of a row's type that says it has a token id


@runtime_checkable
class _Rows(Protocol):
    """A batch or a ubatch: arrays by row."""

    @property
    def token(self) -> Array: ...
    @property
    def type(self) -> Array: ...
    @property
    def pos(self) -> Array: ...
    @property
    def seq(self) -> Array: ...
    @property
    def output(self) -> Array: ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenRows:
    """n tokens: their batch rows, ids (-1: an embedding row), positions, sequence sets, output flags.

    `texts` and `notes`, where given, have one entry a token: its text, and what else the hover text says of it.
    """

    row: Int32[np.ndarray, " n"]
    token: Int32[np.ndarray, " n"]
    pos: Int32[np.ndarray, "P n"]
    seq: UInt32[np.ndarray, "n W"]
    output: Bool[np.ndarray, " n"]
    texts: Sequence[str] | None = None
    notes: Sequence[str] | None = None

    @classmethod
    def of(cls, rows: _Rows, at: Int32[np.ndarray, " n"], row: Int32[np.ndarray, " n"]) -> "TokenRows":
        """Some rows, `at`, of a batch or ubatch on the host; `row` are their batch rows."""
        kind = np.asarray(rows.type)[at]
        return cls(
            row=row,
            token=np.where(kind & _ID, np.asarray(rows.token)[at], -1).astype(np.int32),
            pos=np.asarray(rows.pos)[:, at],
            seq=np.asarray(rows.seq)[at],
            output=np.asarray(rows.output)[at],
        )

    def __len__(self) -> int:
        return len(self.row)

    def sequences(self, i: int) -> list[int]:
        """The sequence ids of token i."""
        return ids_of(self.seq[i]).tolist()

    def title(self, i: int) -> str:
        """Token i in words."""
        token = int(self.token[i])
        parts = [f"token {self.row[i]}: {f'id {token}' if token >= 0 else 'an embedding'}"]
        if self.texts is not None:
            parts[0] += f" {self.texts[i]!r}"
        parts += [sequences_named(self.sequences(i)), f"position {position(self.pos[:, i])}"]
        if self.output[i]:
            parts.append("output")
        if self.notes is not None and self.notes[i]:
            parts.append(self.notes[i])
        return ", ".join(parts)


def sequences_named(ids: list[int]) -> str:
    """A set of sequences in words."""
    if not ids:
        return "no sequence"
    return f"sequence{'' if len(ids) == 1 else 's'} {ranges(ids, 40).replace(' ', ', ')}"


def position(pos: np.ndarray) -> str:
    """One position, or the sections of an M-RoPE position."""
    return " / ".join(str(int(p)) for p in pos)
