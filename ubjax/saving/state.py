"""State: the rows of a cache as they are saved, and what has to be right about them before they are loaded.

    tokens                      [m]            ids that the caller wanted kept with the state
    full.pos    window.pos      [1 + X, n]     position of each row, then y and x with M-RoPE (X = 2, else 0)
    full.seq    window.seq      [n, W]         sequence sets, W words as far as they are used; all sequences only
    full.k      window.k        [L, Hk, n, D]  K rows, rotated to their positions; full.v and window.v alike

`window.` stands for the second cache of a model with sliding windows. Rows are ordered by sequence set (as a number),
position, then cell: loaded rows are in the same order, so that what is saved again is the same, byte for byte.
"""

import collections
import dataclasses
import reprlib
from collections.abc import Iterator, Mapping

import numpy as np

from ubjax.config import MAX_CELLS
from ubjax.memory_report import NAMES
from ubjax.safetensors import Entry, Header
from ubjax.validate import MAX_POS

VERSION = {"format": "ubjax state", "version": "1"}
ONE, ALL = "one sequence", "all sequences"  # what a state holds
MODEL = "model."
WEIGHTS = MODEL + "weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedRows:
    """n rows of one cache; `seq` is None in the state of one sequence."""

    pos: np.ndarray
    seq: np.ndarray | None
    k: np.ndarray
    v: np.ndarray

    @property
    def n(self) -> int:
        """Rows."""
        return self.pos.shape[1]

    def ids(self) -> list[int]:
        """The sequences that rows belong to, ascending; 0 in the state of one sequence."""
        if self.seq is None:
            return [0] if self.n else []
        words = np.bitwise_or.reduce(self.seq, axis=0)
        return [s for s in range(32 * len(words)) if words[s // 32] >> np.uint32(s % 32) & 1]

    def first_id(self, row: int) -> int:
        """The smallest sequence that a row belongs to; 0 in the state of one sequence."""
        return next((s for s in self.ids() if row in self.of(s)), 0)

    def of(self, s: int) -> np.ndarray:
        """The rows [n_s] of a sequence, in order."""
        if self.seq is None:
            return np.arange(self.n)
        if s // 32 >= self.seq.shape[1]:
            return np.arange(0)
        return np.flatnonzero(self.seq[:, s // 32] >> np.uint32(s % 32) & 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Everything that is saved."""

    tokens: np.ndarray
    caches: tuple[SavedRows, ...]

    def tensors(self) -> dict[str, np.ndarray]:
        """By name; those of 32-bit integers first, so that all are aligned."""
        named = list(zip(NAMES, self.caches, strict=False))
        found = {"tokens": self.tokens}
        for name, rows in named:
            found[f"{name}.pos"] = rows.pos
            if rows.seq is not None:
                found[f"{name}.seq"] = rows.seq
        for name, rows in named:
            found |= {f"{name}.k": rows.k, f"{name}.v": rows.v}
        return found

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, np.ndarray], n_caches: int) -> "State":
        """From the tensors by name."""
        rows = tuple(
            SavedRows(
                pos=tensors[f"{name}.pos"],
                seq=tensors.get(f"{name}.seq"),
                k=tensors[f"{name}.k"],
                v=tensors[f"{name}.v"],
            )
            for name in NAMES[:n_caches]
        )
        return cls(tokens=tensors["tokens"], caches=rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """What the states of an engine look like. `model`: its fingerprint, texts by `model.` and a name.

    L layers of each cache, Hk heads of D values of `dtype`, 1 + X numbers of a position, ids of [0, n_vocab),
    sequences of [0, n_seq_max).
    """

    model: Mapping[str, str]
    layers: tuple[int, ...]
    n_heads: int
    head_dim: int
    dtype: np.dtype
    n_sections: int
    n_seq_max: int
    n_vocab: int

    def metadata(self, holds: str) -> dict[str, str]:
        """The metadata of a state."""
        return {**VERSION, "holds": holds, **self.model}

    def check(self, header: Header, holds: str) -> None:
        """Raises ValueError for a header that is not that of such a state, naming the first mismatch."""
        found = header.metadata
        for key, needed in VERSION.items():
            if found.get(key) != needed:
                raise ValueError(f"its {key} is {_shown(found.get(key))}, {needed!r} is needed")
        names = {*self.model, *(name for name in found if name.startswith(MODEL))}
        for key in sorted(names):
            if found.get(key) != self.model.get(key):
                hint = " (other weights, or the same stored as another dtype)" if key == WEIGHTS else ""
                raise ValueError(
                    f"its {key} is {_shown(found.get(key))}, {_shown(self.model.get(key))} is needed{hint}"
                )
        if (kind := found.get("holds")) != holds:
            hint = {ONE: " (a seq_id says where to)", ALL: " (no seq_id is taken)"}.get(kind or "", "")
            raise ValueError(f"it holds {_shown(kind)}, {holds!r} is needed{hint}")
        self._check_tensors(header.entries, holds)

    def sizes(self, header: Header) -> list[int]:
        """Rows of each cache in a header that was checked."""
        return [header.entries[f"{name}.pos"].shape[1] for name in self._names()]

    def _check_tensors(self, entries: Mapping[str, Entry], holds: str) -> None:
        wanted = {"tokens"} | {f"{c}.{name}" for c in self._names() for name in _names_of(holds)}
        for name in sorted(wanted ^ set(entries)):
            fault = "is not there" if name in wanted else "is there, no state has one"
            raise ValueError(f"the tensor {reprlib.repr(name)} {fault}")
        n_tokens = entries["tokens"].shape[:1] or (0,)
        _check_entry(entries, "tokens", np.dtype(np.int32), n_tokens)
        if n_tokens[0] > MAX_CELLS:
            raise ValueError(f"it holds {n_tokens[0]} tokens, at most {MAX_CELLS} are possible")
        for c, n_layers in zip(self._names(), self.layers, strict=True):
            n = entries[f"{c}.pos"].shape[-1:] or (0,)
            _check_entry(entries, f"{c}.pos", np.dtype(np.int32), (self.n_sections, *n))
            if holds == ALL:
                words = entries[f"{c}.seq"].shape[1:2] or (1,)
                _check_entry(entries, f"{c}.seq", np.dtype(np.uint32), (*n, *words))
            for name in ("k", "v"):
                shape = (n_layers, self.n_heads, *n, self.head_dim)
                _check_entry(entries, f"{c}.{name}", self.dtype, shape)

    def check_values(self, state: State) -> None:
        """Raises ValueError for numbers that no cache of this form can hold, naming the first."""
        self.check_tokens(state.tokens)
        for name, rows in zip(self._names(), state.caches, strict=True):
            pos = rows.pos[0]
            if outside := np.flatnonzero((pos < 0) | (pos > MAX_POS))[:1].tolist():
                raise ValueError(
                    f"row {outside[0]} of {name}.pos is {pos[outside[0]]}, a position in [0, {MAX_POS}] is needed"
                )
            if rows.seq is not None:
                self._check_sets(f"{name}.seq", rows.seq)
        self.check_finite(state)
        if len(state.caches) > 1:
            self._check_window(*state.caches)

    def check_finite(self, state: State) -> None:
        """Raises ValueError for K or V that is not finite, which would strike every sequence of a shared cache."""
        for name, rows in zip(self._names(), state.caches, strict=True):
            for kind, layers in (("k", rows.k), ("v", rows.v)):
                for i, values in enumerate(layers):
                    if np.isfinite(values).all():
                        continue
                    row = int(np.argmin(np.isfinite(values).all(axis=(0, 2))))
                    whose = "" if rows.seq is None else f" of sequence {rows.first_id(row)}"
                    raise ValueError(
                        f"layer {i} of {name}.{kind} holds numbers that are not finite (position "
                        f"{rows.pos[0, row]}{whose}), finite ones are needed"
                    )

    def check_tokens(self, tokens: np.ndarray) -> None:
        """Raises ValueError for an id outside the vocabulary."""
        if outside := np.flatnonzero((tokens < 0) | (tokens >= self.n_vocab))[:1].tolist():
            raise ValueError(
                f"token {outside[0]} has id {tokens[outside[0]]}, an id in [0, {self.n_vocab}) is needed"
            )

    def _check_sets(self, name: str, seq: np.ndarray) -> None:
        if empty := np.flatnonzero(~np.any(seq != 0, axis=1))[:1].tolist():
            raise ValueError(f"row {empty[0]} of {name} belongs to no sequence, one or more are needed")
        used = np.bitwise_or.reduce(seq, axis=0)
        for w, word in enumerate(used.tolist()):
            if word >> max(0, min(32, self.n_seq_max - 32 * w)):
                raise ValueError(
                    f"it holds sequence {32 * w + word.bit_length() - 1}, sequences in [0, {self.n_seq_max}) are known"
                )

    def _check_window(self, full: SavedRows, window: SavedRows) -> None:
        """What every decode sees to: the window cache ends where the full one does, and holds no row more."""
        for s in sorted({*full.ids(), *window.ids()}):
            in_full, in_window = (rows.pos[0, rows.of(s)].tolist() for rows in (full, window))
            extra = collections.Counter(in_window) - collections.Counter(in_full)
            if extra:
                raise ValueError(
                    f"its window cache holds position {min(extra)} of a sequence more often than its full cache"
                )
            last, in_window_last = max(in_full), max(in_window, default=-1)
            if last != in_window_last:
                raise ValueError(
                    f"its full cache holds a sequence up to position {last}, its window cache up to {in_window_last}"
                )

    def _names(self) -> tuple[str, ...]:
        return NAMES[: len(self.layers)]


def _names_of(holds: str) -> Iterator[str]:
    yield from ("pos", "k", "v")
    if holds == ALL:
        yield "seq"


def _check_entry(entries: Mapping[str, Entry], name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    needed = Entry(dtype=dtype, shape=shape, begin=0, end=0)
    if (entries[name].dtype, entries[name].shape) != (dtype, shape):
        raise ValueError(f"the tensor {name!r} is {entries[name]}, {needed} is needed")


def _shown(text: str | None) -> str:
    return "missing" if text is None else reprlib.repr(text)
