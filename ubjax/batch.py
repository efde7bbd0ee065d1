"""Batch: the caller's flat list of tokens as a pytree of fixed capacity, and the two ways to make one.

Padding contract, rows >= n_tokens: token 0, type 0, pos 0, seq words 0, output False, embd and state 0. `order` lists
the rows sorted by first sequence id (stable); padding rows and rows without a sequence come last, in row order.

A row's `type` is a set of bits: ROW_ID | ROW_EMBD | ROW_STATE; 0 in padding (and, refused later, in a row with neither).
"""

from ubjax.pytree import pytree
from ubjax.typing import I32, Array, Bool, Float, Int32, UInt32

ROW_ID = 1
ROW_EMBD = 2
ROW_STATE = 4


@pytree
class Batch:
    """T rows of which the first n_tokens count. E is 0 when no row has an embedding; likewise Es for hidden states."""

    token: Int32[Array, "T"]
    embd: Float[Array, "T E"]
    state: Float[Array, "T Es"]
    type: Int32[Array, "T"]
    pos: Int32[Array, "P T"]
    seq: UInt32[Array, "T W"]
    output: Bool[Array, "T"]
    order: Int32[Array, "T"]
    n_tokens: I32
