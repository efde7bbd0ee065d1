"""Pooling: the rows of a sequence to one row, and the rows of all tokens in the caller's order.

    batch            0 1 2 3 4      sequences 0 1 0 1 1; split into ubatches [0 2] and [1 3 4]
    mean             row (0 + 2) / 2, row (1 + 3 + 4) / 3
    cls, last        rows 0 and 1, rows 2 and 4

A sequence may lie in several ubatches, and a row in several sequences.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.config import as_choice
from ubjax.typing import Array, Bool, Choice, Flag, Float, Int32, Text

KINDS = ("none", "mean", "cls", "last", "rank")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling:
    """How the rows of a sequence become one, by llama.cpp's names, and whether that one is L2-normalized.

    "none": they stay; "mean" of all; "cls" the first; "last"; "rank": a classification head on the first.
    """

    kind: Text = "mean"
    normalize: Choice = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the pooling is {self.kind!r}, one of {', '.join(KINDS)} is needed")
        as_choice(self.normalize, "normalize")


@jax.jit
def pool_rows(
    rows: Float[Array, "R E"],
    batch_idx: Int32[Array, " R"],
    member: Bool[Array, "S R"],
    chosen: Int32[Array, " S"],
    scale: Float[Array, " S"],
    mean: Flag,
) -> Float[jax.Array, "S E"]:
    """What a ubatch adds to the pooled row of each sequence: `scale` times its rows, or times the chosen one.

    batch_idx: which token of the batch a row is, T for padding. member: the rows of each sequence. chosen: the batch
    index of the one row that counts where `mean` is not set.
    """
    rows = jnp.where(jnp.any(jnp.asarray(member), axis=0)[:, None], rows, 0)  # padding may hold anything
    counts = jnp.where(mean, member, jnp.asarray(batch_idx)[None, :] == jnp.asarray(chosen)[:, None])
    weight = counts * jnp.asarray(scale)[:, None]
    return jnp.einsum("sr,re->se", weight, rows, precision=jax.lax.Precision.HIGHEST)


def pool_shapes(n_rows: int, n_seqs: int, n_embd: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes of `pool_rows`' arguments, as `HiddenRows.pooled` gives them: rows of the device, then host arrays."""
    shapes = (n_rows, n_embd), (n_rows,), (n_seqs, n_rows), (n_seqs,), (n_seqs,), ()
    dtypes = np.float32, np.int32, bool, np.int32, np.float32, bool
    return tuple(map(jax.ShapeDtypeStruct, shapes, dtypes))


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays."""
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def members(seq: np.ndarray) -> np.ndarray:
    """Which tokens belong to each sequence, [32 W, n], of sets as words [n, W]."""
    return np.unpackbits(np.ascontiguousarray(seq).view(np.uint8), axis=1, bitorder="little").T.astype(bool)


def sequences_of(seq: np.ndarray) -> list[int]:
    """The sequences in sets as words [n, W], ascending."""
    return np.flatnonzero(members(seq).any(axis=1)).tolist()


class HiddenRows:
    """The rows that a model made of every token of a batch, ubatch by ubatch, on the device.

    seq: sets of the batch's tokens as words [n, W]. head: from first rows [S, E] to labels, for a model that has one.
    """

    def __init__(self, seq: np.ndarray, head: Callable[[Any], Any] | None = None):
        self._member, self._head = members(seq), head
        self._parts: list[tuple[jax.Array, Any]] = []
        self.seq_ids = np.asarray(sequences_of(seq), np.int32)

    def add(self, rows: Float[jax.Array, "R E"], batch_idx: Int32[Array, " R"]) -> None:
        """The rows of one more ubatch; batch_idx: the token of each, T or more for padding."""
        self._parts.append((rows, batch_idx))

    @property
    def n_tokens(self) -> int:
        """How many tokens there are."""
        return self._member.shape[1]

    def rows(self) -> Float[np.ndarray, "n E"]:
        """The row of each token, in the order of the batch."""
        out = np.zeros((self.n_tokens, self._parts[0][0].shape[1]), np.float32)
        for rows, batch_idx in self._parts:
            ids = np.asarray(batch_idx)
            held = ids < self.n_tokens
            out[ids[held]] = np.asarray(rows)[held]
        return out

    def pooled(self, kind: Text) -> Float[np.ndarray, "n _"]:
        """One row for each sequence of `seq_ids`. Raises ValueError for "none", and "rank" without a head."""
        if Pooling(kind=kind).kind == "none":
            raise ValueError("the pooling is 'none', one that gives a sequence one row is needed")
        if kind == "rank" and self._head is None:
            raise ValueError("the model has no classification head, a model with one is needed to rank")
        member = self._member
        order = np.arange(self.n_tokens, dtype=np.int32)
        if kind == "last":
            chosen = np.max(np.where(member, order, -1), axis=1)
        else:
            chosen = np.min(np.where(member, order, self.n_tokens), axis=1)
        mean = np.asarray(kind == "mean")
        scale = (1 / np.maximum(member.sum(axis=1), 1) if mean else np.ones(len(member))).astype(np.float32)
        chosen = np.where(member.any(axis=1), chosen, -1).astype(np.int32)
        padded, total = np.pad(member, ((0, 0), (0, 1))), None
        for rows, batch_idx in self._parts:
            ids = np.asarray(batch_idx)
            of_row = padded[:, np.minimum(ids, self.n_tokens)]
            part = np.asarray(pool_rows(rows, ids, of_row, chosen, scale, mean))
            total = part if total is None else total + part
        if kind == "rank" and self._head is not None:
            total = np.asarray(self._head(total))
        return np.asarray(total)[self.seq_ids]
