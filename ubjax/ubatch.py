"""Ubatch: one rectangle of a cut batch, padded to a bucket, ready for a fixed program.

R = Sb * Lb rows; set j of an equal split fills the first rows of block `first_block + j`, row `block * Lb +
t`. Padding lies behind AND inside (short rectangles) and, with first_block > 0, before: never assume that
rows >= n_tokens are padding; use `valid`.

Padding contract: token 0, type 0, embd and state 0, pos 0, seq words 0, output False, valid False, batch_idx
T, place T (both out of range), out_rows R; seq_id_unq S beyond n_seqs_unq, seq_idx -1 for absent sequences.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.batch import Batch
from ubjax.buckets import Bucket
from ubjax.pictures import TokenRows, draw_ubatch
from ubjax.pytree import at_hand, pytree, static
from ubjax.split.plan import SplitPlan
from ubjax.typing import I32, Array, Bool, Float, Int32, Scalar, UInt32


@pytree
class Ubatch:
    """R rows gathered from a batch; see the module's padding contract.

    `place` is the row's place in SplitPlan.order (slots are stored by place); `seq_id_unq` [S] the sorted
    sequence ids present, `seq_idx` [S] the place of a sequence in it; `out_rows` [O] the output rows in
    ubatch order (of an unpadded ubatch: out_ids = batch_idx[out_rows]).
    """

    token: Int32[Array, " R"]
    embd: Float[Array, "R E"]
    state: Float[Array, "R Es"]
    type: Int32[Array, " R"]
    pos: Int32[Array, "P R"]
    seq: UInt32[Array, "R W"]
    output: Bool[Array, " R"]
    valid: Bool[Array, " R"]
    batch_idx: Int32[Array, " R"]
    place: Int32[Array, " R"]
    out_rows: Int32[Array, " O"]
    seq_id_unq: Int32[Array, " S32"]
    seq_idx: Int32[Array, " S32"]
    n_seqs_unq: I32
    n_tokens: I32
    n_seqs: I32
    bucket: Bucket = static()

    def _repr_html_(self) -> str | None:
        """A picture for notebooks; None, so that the text is shown, for a traced or vmapped ubatch."""
        if not at_hand(self) or np.ndim(self.n_tokens):
            return None
        return draw_ubatch(*token_rows(self))._repr_html_()


def token_rows(ubatch: Ubatch) -> tuple[TokenRows, Int32[np.ndarray, "Sb Lb"]]:
    """The rows that hold a token, on the host, and which of them each row of the rectangle is (-1: padding)."""
    valid = np.asarray(ubatch.valid)
    at = np.flatnonzero(valid).astype(np.int32)
    places = np.where(valid, np.cumsum(valid) - 1, -1).astype(np.int32)
    tokens = TokenRows.of(ubatch, at, np.asarray(ubatch.batch_idx)[at])
    return tokens, places.reshape(ubatch.bucket.n_blocks, ubatch.bucket.n_block_rows)


@functools.partial(jax.jit, static_argnames="bucket")
def take_ubatch(batch: Batch, plan: SplitPlan, k: Scalar, bucket: Bucket, first_block: Scalar = 0) -> Ubatch:
    """Gather ubatch `k` of a plan into a bucket (semantics of llama.cpp's ubatch_add).

    `bucket` is static; `k` and `first_block` are data. Set j of a plan with equal_seqs fills block first_block + j
    from its first row on; the rows of a simple plan fill one block. A k outside [0, n_ubatches) gives a ubatch of
    padding. Rows without room in the bucket are left out, and output rows beyond its n_outputs; `n_tokens` and
    `n_seqs` still are the plan's, so valid.sum() < n_tokens tells. Whoever picks the bucket sees to it that all fit.

        order [0 3 6 1 4 7], n_seqs 3, bucket 4 x 3     batch_idx [0 3 T | 6 1 T | 4 7 T | T T T]
    """
    capacity = batch.token.shape[0]
    start, n_tokens, n_seqs = _extent(plan, jnp.asarray(k, jnp.int32))
    place = _places(start, n_tokens, jnp.where(plan.equal_seqs, n_seqs, 1), bucket, first_block)
    rows = jnp.asarray(plan.order).at[place].get(mode="fill", fill_value=capacity)

    def gather(leaf: Array) -> jax.Array:
        return jnp.asarray(leaf).at[rows].get(mode="fill", fill_value=0)

    seq, output = gather(batch.seq), gather(batch.output)
    seq_id_unq, seq_idx, n_seqs_unq = seqs_present(seq)
    return Ubatch(
        token=gather(batch.token),
        embd=gather(batch.embd),
        state=gather(batch.state),
        type=gather(batch.type),
        pos=jnp.asarray(batch.pos).at[:, rows].get(mode="fill", fill_value=0),
        seq=seq,
        output=output,
        valid=rows < capacity,
        batch_idx=rows,
        place=jnp.where(rows < capacity, place, capacity),
        out_rows=_indices(output, bucket.n_outputs),
        seq_id_unq=seq_id_unq,
        seq_idx=seq_idx,
        n_seqs_unq=n_seqs_unq,
        n_tokens=n_tokens,
        n_seqs=n_seqs,
        bucket=bucket,
    )


def _extent(plan: SplitPlan, k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where ubatch k begins in the plan's order, its tokens and its sets; nothing for a k outside [0, n_ubatches)."""
    exists = (k >= 0) & (k < plan.n_ubatches)
    k = jnp.where(exists, k, 0)
    start = jnp.asarray(plan.offset)[k]
    n_tokens = jnp.asarray(plan.offset)[k + 1] - start
    return start, jnp.where(exists, n_tokens, 0), jnp.where(exists, jnp.asarray(plan.n_seqs)[k], 0)


def _places(
    start: jax.Array, n_tokens: jax.Array, n_sets: jax.Array, bucket: Bucket, first_block: Scalar
) -> jax.Array:
    """The place in the plan's order that each row of the bucket holds; a place beyond every order for padding."""
    row = jnp.arange(bucket.n_rows, dtype=jnp.int32)
    own_set, step = row // bucket.n_block_rows - first_block, row % bucket.n_block_rows
    length = n_tokens // jnp.maximum(n_sets, 1)
    held = (own_set >= 0) & (own_set < n_sets) & (step < length)
    return jnp.where(held, start + own_set * length + step, jnp.iinfo(jnp.int32).max)


def seqs_present(
    seq: UInt32[Array, "R W"],
) -> tuple[Int32[jax.Array, " S32"], Int32[jax.Array, " S32"], Int32[jax.Array, ""]]:
    """A ubatch's `seq_id_unq`, `seq_idx` and `n_seqs_unq` from the sequence sets of its rows (0 in padding)."""
    present = _members(jax.lax.reduce_or(jnp.asarray(seq), axes=(0,)))
    rank = jnp.cumsum(present, dtype=jnp.int32) - 1
    return _indices(present, present.shape[0]), jnp.where(present, rank, -1), rank[-1] + 1


def _members(words: jax.Array) -> jax.Array:
    """One flag per sequence [32 W] of the set `words` [W]."""
    bits = (words[:, None] >> jnp.arange(32, dtype=jnp.uint32)[None]) & 1
    return bits.reshape(-1) == 1


def _indices(flags: jax.Array, size: int) -> jax.Array:
    """Where the flags [n] are set, in order; n from the last of them on up to `size`."""
    n = flags.shape[0]
    rank = jnp.cumsum(flags, dtype=jnp.int32) - 1
    indices = jnp.arange(n, dtype=jnp.int32)
    return jnp.full(size, n, jnp.int32).at[jnp.where(flags, rank, size)].set(indices, mode="drop")
