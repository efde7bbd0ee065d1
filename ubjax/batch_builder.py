"""BatchBuilder: a batch token by token (llama_batch_ext), every refusal an exception that names the token.

>>> from ubjax import BatchBuilder, BatchConfig
>>> builder = BatchBuilder(BatchConfig(n_vocab=10, n_batch=8, n_seq_max=4), capacity=8)
>>> builder.add_token(2, id=7, pos=0, output=True)
0
>>> builder.build().n_tokens
array(1, dtype=int32)
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ubjax.batch import ROW_EMBD, ROW_ID, Batch
from ubjax.config import BatchConfig, as_integer
from ubjax.host_arrays import as_finite, as_int32
from ubjax.pictures.wording import amount
from ubjax.status import Reason, refusal
from ubjax.typing import Whole


@dataclasses.dataclass
class _Token:
    seqs: set[int]
    id: int | None = None
    embd: np.ndarray | None = None
    state: np.ndarray | None = None
    pos: tuple[int, ...] | None = None
    output: bool = False

    @property
    def type(self) -> int:
        return (ROW_ID if self.id is not None else 0) | (ROW_EMBD if self.embd is not None else 0)


class BatchBuilder:
    """Adds tokens one by one; `build` gives the Batch. A refused call changes nothing.

    `widths` are the embedding widths that the model takes (decoder, encoder); the first embedding fixes the
    batch's. Every refusal is a ValueError.
    """

    def __init__(self, config: BatchConfig, capacity: Whole | None = None, widths: Sequence[int] = ()):
        self.config = config
        self.capacity = config.n_batch if capacity is None else as_integer(capacity, "the capacity")
        if self.capacity < 1:
            raise ValueError(f"the capacity is {self.capacity}, at least 1 is needed")
        self._widths = tuple(widths) or ((config.n_embd,) if config.n_embd else ())
        self._width: int | None = None
        self._tokens: list[_Token] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add_token(
        self,
        seq_id: Whole,
        *,
        id: Whole | None = None,
        pos: Any = None,
        embd: Any = None,
        state: Any = None,
        output: bool = False,
    ) -> int:
        """Append a token of sequence `seq_id` with whatever is known of it; returns its index in the batch."""
        index = len(self._tokens)
        if index >= self.capacity:
            raise ValueError(
                f"token {index} does not fit: the batch is full, its capacity is {self.capacity} tokens"
            )
        seq_id = self._checked_sequence(index, seq_id)
        width = self._width
        self._tokens.append(_Token({seq_id}, output=bool(output)))
        try:
            if id is not None:
                self.set_token_id(index, id)
            if embd is not None:
                self.set_token_embd(index, embd)
            if state is not None:
                self.set_token_state(index, state)
            if pos is not None:
                self.set_token_pos(index, pos)
        except Exception:
            self._tokens.pop()
            self._width = width
            raise
        return index

    def add_token_seq(self, index: int, seq_id: Whole) -> None:
        """Put a token into one more sequence; adding the same twice is no error."""
        token = self._token(index)
        token.seqs.add(self._checked_sequence(index, seq_id))

    def set_token_id(self, index: int, id: Whole) -> None:
        """Give a token its id, in [0, n_vocab)."""
        token = self._token(index)
        number = as_integer(id, f"the id of token {index}")
        if not 0 <= number < self.config.n_vocab:
            raise refusal(Reason.TOKEN_ID, where=index, found=number, needed=self.config.n_vocab)
        token.id = number

    def set_token_embd(self, index: int, embd: Any) -> None:
        """Give a token its embedding row [E]; only once, and all rows of a batch have one width."""
        token = self._token(index)
        row = as_finite(embd, f"the embedding's numbers of token {index}")
        if token.embd is not None:
            raise ValueError(f"token {index} has an embedding already, a second one can't be set")
        widths = self._widths if self._width is None else (self._width,)
        if row.ndim != 1 or row.shape[0] not in widths:
            raise ValueError(
                f"token {index} was given an embedding of shape {list(row.shape)}, {_either(widths)} is needed"
            )
        token.embd = row
        self._width = row.shape[0]

    def set_token_state(self, index: int, state: Any) -> None:
        """Give a token its hidden-state row [Es]."""
        token = self._token(index)
        row = as_finite(state, f"the hidden state's numbers of token {index}")
        if row.shape != (self.config.n_embd_state,) or not row.size:
            needed = _either((self.config.n_embd_state,) if self.config.n_embd_state else ())
            raise ValueError(
                f"token {index} was given a hidden state of shape {list(row.shape)}, {needed} is needed"
            )
        token.state = row

    def set_token_pos(self, index: int, pos: Any) -> None:
        """Give a token its position: one for a token with an id, P for one without."""
        token = self._token(index)
        values = tuple(int(p) for p in np.ravel(as_int32(pos, f"the position of token {index}")))
        needed = self.config.n_pos if token.id is None else 1
        if len(values) != needed:
            found = amount(len(values), "position")
            raise ValueError(f"token {index} was given {found}, {amount(needed, 'is', 'are')} needed")
        token.pos = values

    def set_token_output(self, index: int, output: bool) -> None:
        """Mark a token as an output or not."""
        self._token(index).output = bool(output)

    def build(self, capacity: int | None = None, next_pos: Any = None) -> Batch:
        """The Batch of the tokens so far, at `capacity` rows (default: the builder's own).

        Either every token was given a position or none (then each sequence continues at next_pos, see
        `Batch.from_arrays`).
        """
        tokens = self._tokens
        if not tokens:
            raise refusal(Reason.EMPTY_BATCH, where=-1, found=0, needed=1)
        types = np.asarray([t.type for t in tokens], np.int32)
        states = [t.state for t in tokens if t.state is not None]
        if states and len(states) < len(tokens):
            odd = next(i for i, t in enumerate(tokens) if (t.state is None) != (tokens[0].state is None))
            raise refusal(Reason.STATE_NOT_ALL, where=odd, found=len(states), needed=len(tokens))
        return Batch.from_arrays(
            np.asarray([t.id or 0 for t in tokens], np.int32),
            config=dataclasses.replace(self.config, n_embd=self._width or self.config.n_embd),
            embd=None if self._width is None else np.stack([_row(t.embd, self._width) for t in tokens]),
            state=np.stack(states) if states else None,
            row_type=types,
            pos=self._positions(next_pos),
            seq_id=[sorted(t.seqs) for t in tokens],
            output=np.asarray([t.output for t in tokens]),
            capacity=self.capacity if capacity is None else capacity,
            next_pos=next_pos,
        )

    def _positions(self, next_pos: Any) -> np.ndarray | None:
        missing = [i for i, t in enumerate(self._tokens) if t.pos is None]
        if len(missing) == len(self._tokens):
            return None
        if missing:
            raise ValueError(
                f"token {missing[0]} has no position although others have: give all of them one, or none"
            )
        n_pos = self.config.n_pos
        rows = [(t.pos or ()) if len(t.pos or ()) == n_pos else (t.pos or ()) * n_pos for t in self._tokens]
        return np.asarray(rows, np.int32).T

    def _token(self, index: int) -> _Token:
        if not 0 <= index < len(self._tokens):
            raise ValueError(
                f"token {index} is not in the batch, an index in [0, {len(self._tokens)}) is needed"
            )
        return self._tokens[index]

    def _checked_sequence(self, index: int, seq_id: Whole) -> int:
        number = as_integer(seq_id, f"the sequence of token {index}")
        if not 0 <= number < self.config.n_seq_max:
            raise refusal(Reason.SEQ_ID, where=index, found=number, needed=self.config.n_seq_max)
        return number


def _row(embd: np.ndarray | None, width: int) -> np.ndarray:
    return np.zeros(width, np.float32) if embd is None else embd


def _either(widths: Sequence[int]) -> str:
    return " or ".join(f"[{w}]" for w in widths) if widths else "none (this model takes no such rows)"
