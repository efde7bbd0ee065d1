"""SplitPlan: how a batch is cut, as a permutation of its rows plus offsets.

O(T) memory however many ubatches.

    batch rows          0 1 2 3 4 5      sequences 0 0 0 1 1 2, n_ubatch 4, split_equal(sequential)
    order             [ 0 3 5 | 1 4 | 2 ]
    offset            [ 0, 3, 5, 6, 6, 6, 6 ]   ubatch k = order[offset[k] : offset[k + 1]]
    n_seqs            [ 3, 2, 1, 0, 0, 0 ]

Padding: places of `order` from n_used on hold T (out of range, dropped on writes); offsets beyond the last
ubatch repeat n_used; n_seqs is 0 there.
"""

import numpy as np

from ubjax.pictures import draw_plan
from ubjax.pictures.wording import amount
from ubjax.pytree import at_hand, pytree
from ubjax.typing import I32, Array, Flag, Int32


@pytree
class SplitPlan:
    """The ubatches of a batch.

    `equal_seqs`: every ubatch is a rectangle, set-major (n_seqs sets of count / n_seqs rows). `n_used` < n_tokens
    means that the split failed as a whole. `keeps_order`: no later token of a sequence comes before an earlier one.
    """

    order: Int32[Array, " T"]
    offset: Int32[Array, "T+1"]
    n_seqs: Int32[Array, " T"]
    n_ubatches: I32
    n_used: I32
    equal_seqs: Flag
    keeps_order: Flag

    def __repr__(self) -> str:
        """Ubatches as sets x rows, where the plan's arrays are at hand and of one batch."""
        if not self._readable():
            return f"SplitPlan(T={self.order.shape[-1]}, traced or batched)"
        k = int(self.n_ubatches)
        sizes, sets = np.diff(np.asarray(self.offset)[: k + 1]), np.asarray(self.n_seqs)[:k]
        cut = [f"{s}x{n // s}" if self.equal_seqs else f"{n}" for n, s in zip(sizes, sets, strict=True)]
        shown = ", ".join(cut[:8]) + (f", ... {cut[-1]}" if k > 8 else "")
        order = _shortened(self.order, self.n_used)
        cut_into = f"{amount(k, 'ubatch', 'ubatches')}: {shown}"
        n = int(self.n_used)
        return f"SplitPlan({cut_into}; {amount(n, 'token')}, order {order})"

    def _repr_html_(self) -> str | None:
        """A picture for notebooks; None, so that the text is shown, where `repr` shows no ubatches either."""
        if not self._readable():
            return None
        k = int(self.n_ubatches)
        picture = draw_plan(
            order=np.asarray(self.order)[: int(self.n_used)],
            n_seqs=np.asarray(self.n_seqs)[:k],
            offset=np.asarray(self.offset)[: k + 1],
            equal_seqs=bool(self.equal_seqs),
        )
        return picture._repr_html_()

    def _readable(self) -> bool:
        return at_hand(self) and np.ndim(self.n_ubatches) == 0


def _shortened(order: Array, n: Array) -> str:
    rows = np.asarray(order)[: int(n)].tolist()
    return str(rows) if len(rows) <= 24 else f"[{', '.join(map(str, rows[:20]))}, ...]"
