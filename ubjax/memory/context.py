"""Context shift: what to give up of a sequence that has filled its context (as llama.cpp's server does it)."""

from ubjax.config import as_integer
from ubjax.pictures.wording import amount
from ubjax.typing import Whole


def context_shift(n_past: Whole, n_keep: Whole, n_new: Whole, n_ctx: Whole) -> tuple[tuple[int, int], int]:
    """What makes room for `n_new` tokens behind `n_past`: ((p0, p1), delta), all in tokens.

    Positions [p0, p1) are to be removed and those from p1 on moved by delta = p0 - p1: `rm(seq, p0, p1)`, then
    `add(seq, p1, -1, delta)`. The first n_keep stay (all n_past of them when n_keep is larger); of the others the older
    half goes, or more where that is not enough. Where there is room already nothing is to be done: ((n_keep, n_keep),
    0). Raises ValueError when n_new tokens never fit behind what is kept.
    """
    sizes = {"n_past": n_past, "n_keep": n_keep, "n_new": n_new, "n_ctx": n_ctx}
    for name, value in sizes.items():
        if as_integer(value, name) < 0:
            raise ValueError(f"{name} is {value}, at least 0 is needed")
    past, new, ctx = (int(value) for value in (n_past, n_new, n_ctx))
    keep = min(int(n_keep), past)
    missing = past + new - ctx
    if missing <= 0:
        return (keep, keep), 0
    if missing > past - keep:
        fit = amount(new, "token never fits", "tokens never fit")
        raise ValueError(
            f"{fit} behind the {keep} that are kept: the context holds {ctx}, {keep + new} are needed"
        )
    n_discard = max((past - keep) // 2, missing)
    return (keep, keep + n_discard), -n_discard
