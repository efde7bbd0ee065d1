"""Splits of batches whose sequence sets overlap: right, but with steps that look at all rows.

T  rows a batch can hold     W  32-bit words of a set     G  disjoint sets a ubatch can hold, 32 W
"""

import dataclasses

import jax
import jax.numpy as jnp

from ubjax.pytree import pytree
from ubjax.split.groups import Groups
from ubjax.split.plan import SplitPlan
from ubjax.split.rectangles import next_rows
from ubjax.typing import I32, Array, Bool, Flag, Int32, Scalar, UInt32


@pytree
class _Walk:
    """split_seq under way: the open ubatch began at offset[n_closed]; its last row is `row`, of the set `within`."""

    order: Int32[jax.Array, " T"]
    offset: Int32[jax.Array, "T+1"]
    unused: Bool[jax.Array, " T"]
    within: UInt32[jax.Array, " W"]
    row: I32
    n_closed: I32
    n_used: I32


def disjoint_sets(
    groups: Groups, seq: UInt32[Array, "T W"], n_ubatch: I32, head: Int32[jax.Array, " T"]
) -> tuple[jax.Array, jax.Array]:
    """The sets of the next ubatch: (groups [G], how many of them count); `groups` by exact set.

    Always the set with the first unused row among those that are disjoint from what is taken: one that was refused
    stays refused, for what is taken only grows.
    """
    capacity, n_words = seq.shape
    row = next_rows(groups, head)
    sets = jnp.asarray(seq).at[row].get(mode="fill", fill_value=0)

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        chosen, n_sets, taken, _ = state
        free = jnp.all((sets & taken[None]) == 0, axis=-1) & (row < capacity)
        group = jnp.argmin(jnp.where(free, row, capacity)).astype(jnp.int32)
        found = free[group]
        chosen = chosen.at[jnp.where(found, n_sets, chosen.shape[0])].set(group, mode="drop")
        return chosen, n_sets + found.astype(jnp.int32), taken | jnp.where(found, sets[group], 0), found

    chosen = jnp.zeros(32 * n_words, jnp.int32)
    nothing = (chosen, jnp.int32(0), jnp.zeros(n_words, jnp.uint32), jnp.array(True))
    chosen, n_sets, _, _ = jax.lax.while_loop(lambda state: state[3] & (state[1] < n_ubatch), step, nothing)
    return chosen, n_sets


def walk_subsets(seq: UInt32[Array, "T W"], n_tokens: I32, n_ubatch: I32) -> SplitPlan:
    """split_seq for sets that overlap: one step per row, plus one per ubatch."""
    capacity, n_words = seq.shape
    seq = jnp.asarray(seq)
    at = jnp.arange(capacity + 1, dtype=jnp.int32)
    rows = at[:-1]
    usable = (rows < n_tokens) & jnp.any(seq != 0, axis=-1)
    n_rows = jnp.where(n_ubatch >= 1, jnp.sum(usable, dtype=jnp.int32), 0)
    anything = jnp.full(n_words, 2**32 - 1, jnp.uint32)

    def step(walk: _Walk) -> _Walk:
        fits = walk.unused & (rows > walk.row) & jnp.all((seq & ~walk.within[None]) == 0, axis=-1)
        row = jnp.argmax(fits).astype(jnp.int32)
        takes = fits[row] & (walk.n_used - walk.offset[walk.n_closed] < n_ubatch)
        n_closed = walk.n_closed + jnp.where(takes, 0, 1)
        return _Walk(
            order=walk.order.at[jnp.where(takes, walk.n_used, capacity)].set(row, mode="drop"),
            offset=walk.offset.at[n_closed].set(jnp.where(takes, walk.offset[n_closed], walk.n_used)),
            unused=walk.unused.at[jnp.where(takes, row, capacity)].set(False, mode="drop"),
            within=jnp.where(takes, seq[row], anything),
            row=jnp.where(takes, row, -1),
            n_closed=n_closed,
            n_used=walk.n_used + jnp.where(takes, 1, 0),
        )

    walk = _Walk(
        order=jnp.full(capacity, capacity, jnp.int32),
        offset=jnp.zeros(capacity + 1, jnp.int32),
        unused=usable,
        within=anything,
        row=jnp.int32(-1),
        n_closed=jnp.int32(0),
        n_used=jnp.int32(0),
    )
    walk = jax.lax.while_loop(lambda walk: walk.n_used < n_rows, step, walk)
    n_ubatches = jnp.where(walk.n_used > 0, walk.n_closed + 1, 0)
    plan = SplitPlan(
        order=walk.order,
        offset=jnp.where(at < n_ubatches, walk.offset, walk.n_used),
        n_seqs=(rows < n_ubatches).astype(jnp.int32),
        n_ubatches=n_ubatches,
        n_used=walk.n_used,
        equal_seqs=jnp.array(True),
        keeps_order=jnp.array(True),
    )
    return dataclasses.replace(plan, keeps_order=order_is_kept(plan, seq))


def order_is_kept(plan: SplitPlan, seq: UInt32[Array, "T W"]) -> Flag:
    """Whether the rows of every sequence appear in the plan in batch order: one step per row, [G] rows remembered."""
    n_words = seq.shape[-1]
    bit = jnp.arange(32, dtype=jnp.uint32)

    def step(place: Scalar, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        latest, kept = state
        row = plan.order[place]
        words = jnp.asarray(seq).at[row].get(mode="fill", fill_value=0)
        member = ((words[:, None] >> bit[None]) & 1) == 1
        return jnp.where(member, row, latest), kept & jnp.all(~member | (latest < row))

    start = (jnp.full((n_words, 32), -1, jnp.int32), jnp.array(True))
    return jax.lax.fori_loop(0, plan.n_used, step, start)[1]
