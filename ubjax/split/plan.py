"""SplitPlan: how a batch is cut, as a permutation of its rows plus offsets.

O(T) memory however many ubatches.

    batch rows          0 1 2 3 4 5      sequences 0 0 0 1 1 2, n_ubatch 4, split_equal(sequential)
    order             [ 0 3 5 | 1 4 | 2 ]
    offset            [ 0, 3, 5, 6, 6, 6, 6 ]   ubatch k = order[offset[k] : offset[k + 1]]
    n_seqs            [ 3, 2, 1, 0, 0, 0 ]

Padding: places of `order` from n_used on hold T (out of range, dropped on writes); offsets beyond the last
ubatch repeat n_used; n_seqs is 0 there.
"""

from ubjax.pytree import pytree
from ubjax.typing import I32, Array, Flag, Int32


@pytree
class SplitPlan:
    """The ubatches of a batch.

    `equal_seqs`: every ubatch is a rectangle, set-major (n_seqs sets of count / n_seqs rows). `n_used` <
    n_tokens means that the split failed as a whole. `keeps_order`: no ubatch order shows a later token of a
    sequence before an earlier one.
    """

    order: Int32[Array, " T"]
    offset: Int32[Array, "T+1"]
    n_seqs: Int32[Array, " T"]
    n_ubatches: I32
    n_used: I32
    equal_seqs: Flag
    keeps_order: Flag
