"""Rectangles: the state of an equal split between two ubatches, and the way from its marks to a SplitPlan.

T  rows a batch can hold       N  groups of rows (see groups.py)       G  sets a ubatch can hold (lanes)

A ubatch takes the next L rows of each chosen group. Only where such a run of L rows begins is written down: its
place p in the plan gets the distance from p to the run in `groups.rows`. The rows are placed after the last ubatch,
all at once.

    groups.rows  [0 1 2 3 | 4 5]    n_ubatch 4: ubatch 0 takes 0 1 | 4 5, ubatch 1 takes 2 3
    place           0  1  2  3  4  5
    distance        0  .  2  . -2  .        rows[place + distance of the run] = 0 1 4 5 2 3
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.pytree import pytree
from ubjax.split.groups import Groups
from ubjax.split.plan import SplitPlan
from ubjax.typing import I32, Int32

Choose: TypeAlias = Callable[[jax.Array], tuple[jax.Array, jax.Array]]

_NO_RUN = np.int32(-(2**31))
_MANY = np.int32(2**31 - 1)


@pytree
class Cut:
    """What was cut off so far: `head` is each group's next unused place in groups.rows, its end when used up."""

    head: Int32[jax.Array, " N"]
    distance: Int32[jax.Array, " T"]
    offset: Int32[jax.Array, "T+1"]
    n_seqs: Int32[jax.Array, " T"]
    n_ubatches: I32
    n_used: I32


def begin(groups: Groups) -> Cut:
    """Nothing cut off yet."""
    capacity = groups.rows.shape[0]
    return Cut(
        head=groups.start,
        distance=jnp.full(capacity, _NO_RUN, jnp.int32),
        offset=jnp.zeros(capacity + 1, jnp.int32),
        n_seqs=jnp.zeros(capacity, jnp.int32),
        n_ubatches=jnp.int32(0),
        n_used=jnp.int32(0),
    )


def next_rows(groups: Groups, head: Int32[jax.Array, " N"]) -> Int32[jax.Array, " N"]:
    """The first unused row of each group; T for a group that is used up."""
    capacity = groups.rows.shape[0]
    return jnp.where(head < groups.end, groups.rows.at[head].get(mode="clip"), capacity)


def take_rectangle(
    cut: Cut,
    groups: Groups,
    chosen: Int32[jax.Array, " G"],
    n_sets: I32,
    n_ubatch: I32,
    n_keep_tail: I32,
    n_set_rows: I32,
) -> Cut:
    """Cut off one ubatch: equally many rows of the groups chosen[:n_sets], as many as fit in `n_ubatch` rows.

    At most `n_set_rows` of each, for which n_keep_tail has to be 0.

    `n_sets` is in [1, n_ubatch] and every chosen group has rows left. With `n_keep_tail` > 0 a group may end
    a ubatch only used up or with that many rows left: the first group that can't is put back with all behind
    it; if it is the very first, it goes alone and far enough.
    """
    lane = jnp.arange(chosen.shape[0], dtype=jnp.int32)
    taken = lane < n_sets
    head = cut.head.at[chosen].get(mode="clip")
    left = groups.end.at[chosen].get(mode="clip") - head
    room = jnp.minimum(jax.lax.div(n_ubatch, n_sets), n_set_rows)
    length = jnp.minimum(jnp.min(jnp.where(taken, left, _MANY)), room)
    rest = left - length
    stranded = taken & (rest > 0) & (rest < n_keep_tail)
    kept = jnp.min(jnp.where(stranded, lane, n_sets))
    alone = jnp.where(left[0] <= n_ubatch, left[0], left[0] - n_keep_tail)
    length = jnp.where(kept == 0, alone, length)
    n_sets = jnp.maximum(kept, 1)
    place = cut.n_used + lane * length
    n_used = cut.n_used + n_sets * length
    return Cut(
        head=cut.head.at[jnp.where(lane < n_sets, chosen, cut.head.shape[0])].add(length, mode="drop"),
        distance=cut.distance.at[jnp.where(lane < n_sets, place, cut.distance.shape[0])].set(
            head - place, mode="drop"
        ),
        offset=cut.offset.at[cut.n_ubatches + 1].set(n_used, mode="drop"),
        n_seqs=cut.n_seqs.at[cut.n_ubatches].set(n_sets, mode="drop"),
        n_ubatches=cut.n_ubatches + 1,
        n_used=n_used,
    )


def cut_all(groups: Groups, choose: Choose, n_ubatch: I32, n_keep_tail: I32, n_set_rows: I32) -> Cut:
    """Cut until no group has rows left.

    `choose(head)` gives the groups of the next ubatch in order [G] and how many of them count, at least one.
    """
    n_rows = jnp.max(groups.end)

    def step(cut: Cut) -> Cut:
        chosen, n_sets = choose(cut.head)
        return take_rectangle(cut, groups, chosen, n_sets, n_ubatch, n_keep_tail, n_set_rows)

    return jax.lax.while_loop(lambda cut: cut.n_used < n_rows, step, begin(groups))


def no_ubatches(capacity: int) -> SplitPlan:
    """The plan of a refused split."""
    return SplitPlan(
        order=jnp.full(capacity, capacity, jnp.int32),
        offset=jnp.zeros(capacity + 1, jnp.int32),
        n_seqs=jnp.zeros(capacity, jnp.int32),
        n_ubatches=jnp.int32(0),
        n_used=jnp.int32(0),
        equal_seqs=jnp.array(True),
        keeps_order=jnp.array(True),
    )


def place_rows(cut: Cut, groups: Groups) -> SplitPlan:
    """The plan of a finished cut; right about keeps_order when the sets are disjoint."""
    capacity = groups.rows.shape[0]
    place = jnp.arange(capacity, dtype=jnp.int32)
    run = jax.lax.cummax(jnp.where(cut.distance == _NO_RUN, 0, place))
    rows = groups.rows.at[place + cut.distance[run]].get(mode="clip")
    ubatch = jnp.arange(capacity + 1, dtype=jnp.int32)
    return SplitPlan(
        order=jnp.where(place < cut.n_used, rows, capacity),
        offset=jnp.where(ubatch <= cut.n_ubatches, cut.offset, cut.n_used),
        n_seqs=cut.n_seqs,
        n_ubatches=cut.n_ubatches,
        n_used=cut.n_used,
        equal_seqs=jnp.array(True),
        keeps_order=jnp.array(True),
    )
