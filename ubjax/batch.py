"""Batch: the caller's flat list of tokens as a pytree of fixed capacity.

    >>> from ubjax import Batch, BatchConfig
    >>> config = BatchConfig(n_vocab=10, n_batch=4, n_seq_max=2)
    >>> batch = Batch.from_arrays([7, 8, 9], seq_id=[0, 1, 0], config=config, capacity=4)
    >>> batch.pos  # counted per sequence; the last row is padding
    array([[0, 0, 1, 0]], dtype=int32)
    >>> batch.order  # rows by sequence
    array([0, 2, 1, 3], dtype=int32)

Padding contract, rows >= n_tokens: token 0, type 0, pos 0, seq words 0, output False, embd and state 0.
`order` lists the rows sorted by first sequence id (stable); padding rows come last, in row order.

A row's `type` is a set of bits: ROW_ID | ROW_EMBD | ROW_STATE; 0 in padding (and, refused by `validate`, in a
row with neither id nor embedding).
"""

import dataclasses
import warnings
from collections.abc import Set
from typing import Any

import jax
import numpy as np

from ubjax.config import BatchConfig, as_integer
from ubjax.host_arrays import as_finite, as_flags, as_int32, length_of, sized
from ubjax.pictures import TokenRows, draw_batch
from ubjax.pictures.wording import amount
from ubjax.pytree import at_hand, pytree
from ubjax.status import Reason, refusal
from ubjax.typing import I32, Array, Bool, Float, Int32, UInt32, Whole

ROW_ID = 1
ROW_EMBD = 2
ROW_STATE = 4


@pytree
class Batch:
    """T rows of which the first n_tokens count. E is 0 when no row has an embedding; likewise Es for hidden states."""

    token: Int32[Array, " T"]
    embd: Float[Array, "T E"]
    state: Float[Array, "T Es"]
    type: Int32[Array, " T"]
    pos: Int32[Array, "P T"]
    seq: UInt32[Array, "T W"]
    output: Bool[Array, " T"]
    order: Int32[Array, " T"]
    n_tokens: I32

    @classmethod
    def from_arrays(
        cls,
        token: Any = None,
        *,
        config: BatchConfig,
        embd: Any = None,
        state: Any = None,
        row_type: Any = None,
        pos: Any = None,
        seq_id: Any = None,
        output: Any = None,
        capacity: Whole | None = None,
        next_pos: Any = None,
    ) -> "Batch":
        """The old flat form (llama_batch): parallel arrays of n rows, all but the content optional.

        token: [n] ids. embd: [n, E] rows. With both, every row has both, unless `row_type` [n] says otherwise
        (bits ROW_ID, ROW_EMBD). state: [n, Es] hidden-state rows. pos: [n], or [P, n] where P > 1; default:
        each sequence (by its first id) continues at next_pos[seq], 0 without `next_pos` [S]. One position of
        a row with an id is spread over the first three sections, 0 in the fourth. seq_id: [n] ids, or n
        iterables of ids; default: sequence 0. output: [n] flags; default: the last row only. capacity: T,
        default n.

        Raises InvalidBatchError (a ValueError) for what cannot be written down: wrong lengths or dtypes,
        sequences outside [0, S), more rows than T. Values are checked by `validate`.
        """
        flat = _content(token, embd, state, row_type, config)
        n = len(flat.type)
        capacity = n if capacity is None else as_integer(capacity, "the capacity")
        if capacity < max(n, 1):
            raise ValueError(
                f"the batch holds {n} tokens, its capacity is {capacity}: a capacity of at least {max(n, 1)} is needed"
            )
        seq, first = _sequence_words(seq_id, n, config)
        # uint8 keys make numpy's stable sort a radix sort: 256 sequences fit exactly
        order = np.argsort(first.astype(np.uint8), kind="stable").astype(np.int32)
        rows = _positions(pos, n, first, order, next_pos, flat.type, config)
        flags = np.zeros(n, bool)
        if output is None:
            flags[-1:] = True
        else:
            flags[:] = sized(as_flags(output), n, "output")
        if n < capacity:
            order = np.concatenate([order, np.arange(n, capacity, dtype=np.int32)])
        return cls(
            token=_padded(flat.token, capacity),
            embd=_padded(flat.embd, capacity),
            state=_padded(flat.state, capacity),
            type=_padded(flat.type, capacity),
            pos=_padded(rows, capacity, axis=1),
            seq=_padded(seq, capacity),
            output=_padded(flags, capacity),
            order=order,
            n_tokens=np.asarray(n, np.int32),
        )

    def with_capacity(self, capacity: int) -> "Batch":
        """The same tokens in `capacity` >= n_tokens rows (host arrays; the shape of a program is chosen this way)."""
        n = int(self.n_tokens)
        if capacity < n:
            raise ValueError(
                f"the batch holds {n} tokens, a capacity of {capacity} is too small: {n} is needed"
            )
        if capacity == self.capacity:
            return self
        rows = {f.name: np.asarray(getattr(self, f.name)) for f in dataclasses.fields(self)}
        rows = {name: _padded(x[:n], capacity) for name, x in rows.items() if name not in ("pos", "n_tokens")}
        rows["order"][n:] = np.arange(n, capacity)
        pos = _padded(np.asarray(self.pos)[:, :n], capacity, axis=1)
        return Batch(pos=pos, n_tokens=np.asarray(self.n_tokens), **rows)

    @property
    def capacity(self) -> int:
        """T."""
        return self.token.shape[-1]

    def _repr_html_(self) -> str | None:
        """A picture for notebooks; None, so that the text is shown, for a traced or vmapped batch."""
        if not at_hand(self) or np.ndim(self.n_tokens):
            return None
        rows = np.arange(np.clip(self.n_tokens, 0, self.capacity), dtype=np.int32)
        return draw_batch(TokenRows.of(self, rows, rows), self.capacity - len(rows))._repr_html_()


@dataclasses.dataclass(frozen=True)
class _Content:
    token: np.ndarray
    embd: np.ndarray
    state: np.ndarray
    type: np.ndarray


def _content(token: Any, embd: Any, state: Any, row_type: Any, config: BatchConfig) -> _Content:
    """Ids, embedding rows and hidden-state rows of n rows, with their row types."""
    if token is None and embd is None:
        raise ValueError("the batch has neither token ids nor embedding rows, one of them is needed")
    n = length_of(token, "token") if token is not None else length_of(embd, "embd")
    kinds = (ROW_ID if token is not None else 0) | (ROW_EMBD if embd is not None else 0)
    types = np.full(n, kinds, np.int32)
    if row_type is not None:
        wanted = sized(as_int32(row_type, "row_type"), n, "row_type")
        if ((wanted & ~kinds) != 0).any():
            at = int(np.argmax((wanted & ~kinds) != 0))
            raise ValueError(
                f"row_type of token {at} is {wanted[at]}, bits of {kinds} (what was given) are needed"
            )
        types[:] = wanted
    if state is not None:
        types |= ROW_STATE
    ids = np.zeros(n, np.int32) if token is None else sized(as_int32(token, "token"), n, "token")
    if row_type is not None:
        ids = np.where(types & ROW_ID, ids, 0)
    return _Content(
        token=ids,
        embd=_rows(embd, n, config.n_embd, "embedding"),
        state=_rows(state, n, config.n_embd_state, "hidden-state"),
        type=types,
    )


def _rows(rows: Any, n: int, width: int, name: str) -> np.ndarray:
    if rows is None:
        return np.zeros((n, 0), np.float32)
    rows = as_finite(rows, f"the {name} rows")
    if rows.shape != (n, width):
        raise ValueError(f"the {name} rows have shape {list(rows.shape)}, [{n}, {width}] is needed")
    return rows


def _padded(rows: np.ndarray, capacity: int, axis: int = 0) -> np.ndarray:
    """Rows followed by zeros up to the capacity; the rows themselves when nothing is missing."""
    if rows.shape[axis] == capacity:
        return rows
    shape = list(rows.shape)
    shape[axis] = capacity
    out = np.zeros(shape, rows.dtype)
    out[(slice(None),) * axis + (slice(rows.shape[axis]),)] = rows
    return out


def _sequence_words(seq_id: Any, n: int, config: BatchConfig) -> tuple[np.ndarray, np.ndarray]:
    """Sets as words [n, W] and the first sequence id [n] of each row."""
    words = np.zeros((n, config.n_words), np.uint32)
    if seq_id is None:
        words[:, 0] = 1
        return words, np.zeros(n, np.int32)
    if isinstance(seq_id, jax.Array):
        seq_id = np.asarray(seq_id)
    if length_of(seq_id, "seq_id") != n:
        found = amount(len(seq_id), "entry", "entries")
        raise ValueError(f"seq_id has {found}, {amount(n, 'is', 'are')} needed")
    if (
        isinstance(seq_id, np.ndarray)
        or not n
        or (np.ndim(seq_id[0]) == 0 and not isinstance(seq_id[0], Set))
    ):
        flat, rows = sized(as_int32(seq_id, "seq_id"), n, "seq_id"), np.arange(n)
        _check_sequences(flat, rows, config)
        words[rows, flat >> 5] = np.uint32(1) << (flat & 31).astype(np.uint32)
        return words, flat
    counts = np.asarray([length_of(ids, f"seq_id entry {i}") for i, ids in enumerate(seq_id)])
    if not counts.all():
        raise refusal(Reason.NO_SEQUENCE, where=int(np.argmin(counts)), found=0, needed=1)
    flat, rows = as_int32([s for ids in seq_id for s in ids], "seq_id"), np.repeat(np.arange(n), counts)
    _check_sequences(flat, rows, config)
    np.bitwise_or.at(words, (rows, flat >> 5), np.uint32(1) << (flat & 31).astype(np.uint32))
    return words, np.minimum.reduceat(flat, np.cumsum(counts) - counts)


def _check_sequences(ids: np.ndarray, rows: np.ndarray, config: BatchConfig) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= config.n_seq_max):
        at = int(np.argmax((ids < 0) | (ids >= config.n_seq_max)))
        raise refusal(Reason.SEQ_ID, where=int(rows[at]), found=int(ids[at]), needed=config.n_seq_max)


def _positions(
    pos: Any,
    n: int,
    first: np.ndarray,
    order: np.ndarray,
    next_pos: Any,
    types: np.ndarray,
    config: BatchConfig,
) -> np.ndarray:
    """Positions [P, n], section-major."""
    text = (types & ROW_ID) != 0
    if pos is None:
        text[:] = True
        start = np.zeros(config.n_seq_max, np.int32) if next_pos is None else as_int32(next_pos, "next_pos")
        sized(start, config.n_seq_max, "next_pos")
        counts = np.bincount(first, minlength=config.n_seq_max)
        rank = np.arange(n, dtype=np.int32) - np.repeat((np.cumsum(counts) - counts).astype(np.int32), counts)
        pos = np.empty(n, np.int32)
        pos[order] = start[first[order]] + rank
    pos = as_int32(pos, "pos")
    if config.n_pos == 1 and pos.shape == (n,):
        return pos[None]
    if pos.shape == (n,) and not text.all():
        raise ValueError(
            f"token {int(np.argmin(text))} is an embedding row with 1 position, {config.n_pos} are needed"
        )
    if pos.shape not in ((n,), (config.n_pos, n)):
        raise ValueError(f"pos has shape {list(pos.shape)}, [{n}] or [{config.n_pos}, {n}] is needed")
    sections = np.broadcast_to(pos, (config.n_pos, n)).copy()
    for j in range(1, config.n_pos):
        sections[j, text] = sections[0, text] if j < 3 else 0
    return sections


def mark_all_outputs(batch: Batch) -> Batch:
    """Every token an output, as embedding mode needs it; warns when the caller had left some unmarked (host only)."""
    rows = np.arange(batch.capacity) < np.asarray(batch.n_tokens)
    missing = rows & ~np.asarray(batch.output)
    n = int(missing.sum())
    if n:
        marked = f"{amount(n, 'unmarked token was', 'unmarked tokens were')} marked"
        warnings.warn(
            f"embedding mode needs every token as an output: {marked}, "
            f"the first is token {int(np.argmax(missing))}",
            stacklevel=2,
        )
    return dataclasses.replace(batch, output=rows)
