"""Which ubatch shapes a traffic gives: its decodes through the real split functions, for many n_ubatch at once.

T  rows of a batch (its capacity)      S  slots      B  decodes of one call      N  values of n_ubatch
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.analysis.driver import Traffic
from ubjax.batch import ROW_ID, Batch
from ubjax.config import n_words
from ubjax.ragged import set_of
from ubjax.split import SplitPlan, split_equal, split_seq, split_simple
from ubjax.typing import Array, Int32

ShapeCounts: TypeAlias = collections.Counter[tuple[int, int]]

STRATEGIES: Mapping[str, Callable[[Batch, jax.Array], SplitPlan]] = {
    "simple": split_simple,
    "equal": functools.partial(split_equal, sequential=True),
    "seq": split_seq,
}
_DECODES_OF_A_CALL = 64


def count_shapes(traffic: Traffic, n_ubatch: Sequence[int], strategy: str) -> dict[int, ShapeCounts]:
    """For each n_ubatch how many ubatches of each shape (n_seqs, n_seq_tokens) the traffic gives.

    The rows of a split_simple ubatch are one block, 1 x n_tokens, as in its bucket. Decodes with the same pieces are
    split once and counted. Raises ValueError for an unknown strategy, no traffic, or an n_ubatch below 1.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"the strategy is {strategy!r}, one of {', '.join(STRATEGIES)} is needed")
    if not n_ubatch or min(n_ubatch) < 1:
        raise ValueError(f"n_ubatch is {list(n_ubatch)}, sizes of at least 1 are needed")
    if not len(traffic):
        raise ValueError("the traffic has no decodes: at least one is needed")
    seq_id, n_tokens, counts = traffic.signatures()
    tokens = n_tokens.sum(axis=1)
    capacity = 1 << (int(tokens.max()) - 1).bit_length()
    by_size = np.argsort(tokens, kind="stable")  # so that a call's decodes have about equally many ubatches
    limits = jnp.asarray(n_ubatch, jnp.int32)
    found = {size: ShapeCounts() for size in n_ubatch}
    for begin in range(0, len(by_size), _DECODES_OF_A_CALL):
        call = by_size[begin : begin + _DECODES_OF_A_CALL]
        pieces = np.zeros((2, _DECODES_OF_A_CALL, seq_id.shape[1]), np.int32)
        pieces[0, : len(call)], pieces[1, : len(call)] = seq_id[call], n_tokens[call]
        sets, rows = jax.device_get(
            _split_all(jnp.asarray(pieces[0]), jnp.asarray(pieces[1]), limits, strategy, capacity)
        )
        for at, size in enumerate(n_ubatch):
            _count(found[size], sets[: len(call), at], rows[: len(call), at], counts[call])
    return found


def _count(found: ShapeCounts, sets: np.ndarray, rows: np.ndarray, counts: np.ndarray) -> None:
    """Add the ubatches of some decodes, sets and rows [B, T], each as often as its decode occurs [B]."""
    decode, ubatch = np.nonzero(sets)
    n_seqs, n_rows = sets[decode, ubatch].astype(np.int64), rows[decode, ubatch]
    keys, at = np.unique(n_seqs << 32 | n_rows // n_seqs, return_inverse=True)
    totals = np.zeros(len(keys), np.int64)
    np.add.at(totals, at, counts[decode])
    for key, total in zip(keys.tolist(), totals.tolist(), strict=True):
        found[key >> 32, key & 0xFFFFFFFF] += total


@functools.partial(jax.jit, static_argnames=("strategy", "capacity"))
def _split_all(
    seq_id: Int32[jax.Array, "B S"],
    n_tokens: Int32[jax.Array, "B S"],
    n_ubatch: Int32[jax.Array, " N"],
    strategy: str,
    capacity: int,
) -> tuple[Int32[jax.Array, "B N T"], Int32[jax.Array, "B N T"]]:
    """Blocks and rows of every ubatch, 0 behind the last: one decode after the other, all n_ubatch at once."""

    def split(pieces: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        batch = batch_of_pieces(*pieces, capacity)

        def shapes(limit: jax.Array) -> tuple[jax.Array, jax.Array]:
            plan = STRATEGIES[strategy](batch, limit)
            offset = jnp.asarray(plan.offset)
            return jnp.where(plan.equal_seqs, plan.n_seqs, jnp.minimum(plan.n_seqs, 1)), offset[1:] - offset[
                :-1
            ]

        return jax.vmap(shapes)(n_ubatch)

    return jax.lax.map(split, (seq_id, n_tokens))


def batch_of_pieces(seq_id: Int32[Array, " S"], n_tokens: Int32[Array, " S"], capacity: int) -> Batch:
    """The batch of one decode of a Traffic, as far as a split looks at it: tokens and positions are 0.

    seq_id 2 0 (0), n_tokens 3 1 (0), capacity 6     sequences 2 2 2 0 . .     order 3 0 1 2 4 5
    """
    n_slots = seq_id.shape[0]
    width = n_words(n_slots)
    end = jnp.cumsum(n_tokens)
    row = jnp.arange(capacity, dtype=jnp.int32)
    valid = row < end[-1]
    piece = jnp.cumsum(jnp.zeros(capacity, jnp.int32).at[end].add(1, mode="drop"))
    piece = jnp.minimum(piece, n_slots - 1)
    rows_of = jnp.zeros(32 * width, jnp.int32).at[seq_id].add(n_tokens)
    begin_of = jnp.cumsum(rows_of) - rows_of  # of a sequence in `order`; a decode has one piece of each
    place = begin_of[seq_id[piece]] + row - (end - n_tokens)[piece]
    return Batch(
        token=jnp.zeros(capacity, jnp.int32),
        embd=jnp.zeros((capacity, 0), jnp.float32),
        state=jnp.zeros((capacity, 0), jnp.float32),
        type=jnp.where(valid, ROW_ID, 0),
        pos=jnp.zeros((1, capacity), jnp.int32),
        seq=jnp.where(valid[:, None], set_of(seq_id[piece], width), jnp.uint32(0)),
        output=jnp.zeros(capacity, bool),
        order=row.at[jnp.where(valid, place, row)].set(row),
        n_tokens=end[-1],
    )
