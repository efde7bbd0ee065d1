"""split_equal: rectangles, equally many rows of every sequence set in a ubatch.

T  rows a batch can hold       N  groups of rows (see groups.py)       G  sets a ubatch can hold at most, 32 W

One loop trip per ubatch over [G] vectors; no loop over rows unless sets overlap.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.split.chain import ascending_chain
from ubjax.split.coupled import disjoint_sets, order_is_kept
from ubjax.split.groups import Groups, any_coupled, are_disjoint, by_first_seq, by_set
from ubjax.split.limits import ALL_ROWS, as_size
from ubjax.split.plan import SplitPlan
from ubjax.split.rectangles import Choose, cut_all, next_rows, no_ubatches, place_rows
from ubjax.typing import I32, Array, Int32, Scalar, UInt32


def split_equal(
    batch: Batch,
    n_ubatch: Scalar,
    n_keep_tail: Scalar = 0,
    n_set_rows: Scalar = ALL_ROWS,
    *,
    sequential: bool,
) -> SplitPlan:
    """Cut a batch into rectangles of at most `n_ubatch` rows (semantics of llama.cpp's split_equal).

    Each ubatch takes sequence sets in the order of their first unused rows, as many as fit, and as many rows of each
    as the shortest has and the limit allows. `sequential` (static) wants the ids of the sets consecutive; a batch with
    a row in several sequences then gets the empty plan of a failed split. `n_keep_tail` K > 0: a set ends a ubatch
    used up or with at least K rows left. `n_set_rows`: rows of a set in a ubatch, at most; not with a tail.

    These sizes [rows] are data. ValueError when a host number is out of range (n_ubatch and n_set_rows >= 1,
    0 <= n_keep_tail < n_ubatch) or the capacity too large for a sort key; arrays out of range give the empty plan.

        sequences 0 1 2 0 1 2 0 1 2, n_ubatch 9     order [0 3 6 1 4 7 2 5 8]   offset [0 9 9 ...]   n_seqs [3 0 ...]
    """
    limit = as_size("n_ubatch", n_ubatch, least=1)
    tail = as_size("n_keep_tail", n_keep_tail, least=0)
    if not isinstance(limit, jax.Array) and not isinstance(tail, jax.Array) and tail >= limit:
        raise ValueError(f"n_keep_tail is {tail}, less than n_ubatch = {limit} is needed")
    most_of_set = as_size("n_set_rows", n_set_rows, least=1)
    capacity, most = batch.seq.shape[-2], (2**31 >> _id_bits(32 * batch.seq.shape[-1])) - 1
    if capacity > most:
        raise ValueError(
            f"the capacity of the batch is {capacity}, at most {most} rows and their ids fit a sort key"
        )
    sizes = limit, tail, most_of_set
    return _split_equal(batch.seq, batch.order, batch.n_tokens, *sizes, sequential=sequential)


@functools.partial(jax.jit, static_argnames="sequential")
def _split_equal(
    seq: UInt32[Array, "T W"],
    order: Int32[Array, " T"],
    n_tokens: I32,
    n_ubatch: I32,
    n_keep_tail: I32,
    n_set_rows: I32,
    sequential: bool,
) -> SplitPlan:
    n_ubatch, n_keep_tail, n_set_rows = map(jnp.asarray, (n_ubatch, n_keep_tail, n_set_rows))
    possible = (n_ubatch >= 1) & (n_keep_tail >= 0) & (n_keep_tail < n_ubatch)
    possible &= (n_set_rows >= 1) & ((n_keep_tail == 0) | (n_set_rows >= n_ubatch))
    cut = functools.partial(cut_all, n_ubatch=n_ubatch, n_keep_tail=n_keep_tail, n_set_rows=n_set_rows)
    groups = by_first_seq(seq, order, n_tokens)

    def nothing() -> SplitPlan:
        return no_ubatches(seq.shape[0])

    def disjoint(choose: Choose) -> SplitPlan:
        return place_rows(cut(groups, choose), groups)

    def coupled() -> SplitPlan:
        sets = by_set(seq, n_tokens)
        choose = functools.partial(disjoint_sets, sets, seq, n_ubatch)
        plan = place_rows(cut(sets, choose), sets)
        return dataclasses.replace(plan, keeps_order=order_is_kept(plan, seq))

    if sequential:
        chain = functools.partial(ascending_chain, groups, n_ubatch)
        return jax.lax.cond(possible & ~any_coupled(seq, n_tokens), lambda: disjoint(chain), nothing)
    by_first_row = functools.partial(_by_first_row, groups, n_ubatch)
    case = jnp.where(possible, 1 + are_disjoint(seq, groups), 0)
    return jax.lax.switch(case, [nothing, coupled, lambda: disjoint(by_first_row)])


def _by_first_row(groups: Groups, n_ubatch: I32, head: Int32[jax.Array, " G"]) -> tuple[jax.Array, jax.Array]:
    """The groups with rows left, by first unused row: (groups [G], how many of them go into the ubatch)."""
    n_groups = head.shape[0]
    bits = _id_bits(n_groups)
    row = next_rows(groups, head)
    key = jax.lax.sort((row << bits) | jnp.arange(n_groups, dtype=jnp.int32))
    n_live = jnp.sum(row < groups.rows.shape[0], dtype=jnp.int32)
    return key & ((1 << bits) - 1), jnp.minimum(n_live, n_ubatch)


def _id_bits(n_groups: int) -> int:
    """Bits of a sort key that hold a group."""
    return (n_groups - 1).bit_length()
