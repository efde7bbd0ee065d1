"""Ubatch: one rectangle of a cut batch, padded to a bucket, ready for a fixed program.

R = Sb * Lb rows; set j of an equal split fills the first rows of block `first_block + j`, row `block * Lb +
t`. Padding lies behind AND inside (short rectangles) and, with first_block > 0, before: never assume that
rows >= n_tokens are padding; use `valid`.

Padding contract: token 0, type 0, embd and state 0, pos 0, seq words 0, output False, valid False, batch_idx
T, place T (both out of range), out_rows R; seq_id_unq S beyond n_seqs_unq, seq_idx -1 for absent sequences.
"""

from ubjax.buckets import Bucket
from ubjax.pytree import pytree, static
from ubjax.typing import I32, Array, Bool, Float, Int32, UInt32


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
