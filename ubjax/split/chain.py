"""The ascending chain of a sequential ubatch: consecutive sequence ids, each first met after the one before.

G  sequences that W words can name, 32 W
"""

import jax
import jax.numpy as jnp

from ubjax.split.groups import Groups
from ubjax.split.rectangles import next_rows
from ubjax.typing import I32, Int32, Scalar


def ascending_chain(
    groups: Groups, n_ubatch: I32, head: Int32[jax.Array, " G"]
) -> tuple[jax.Array, jax.Array]:
    """The sequences of the next sequential ubatch: (ids [G], how many of them count); `groups` by first sequence.

    The scan in batch order takes sequence id + 1 at its first unused row BEHIND the row at which it took id. While
    first unused rows ascend with the ids, those are the rows; from the first descent on each row is looked up.

        unused rows of 0: [0 5], 1: [3 6], 2: [1 4], 3: [2]     0 at row 0, 1 at row 3, 2 at row 4, 3 has none behind 4
    """
    n_groups = head.shape[0]
    capacity = groups.rows.shape[0]
    group = jnp.arange(n_groups, dtype=jnp.int32)
    row = next_rows(groups, head)
    first = jnp.argmin(row).astype(jnp.int32)
    following = jnp.concatenate([row[1:], jnp.full(1, capacity, jnp.int32)])
    ascends = (following > row) & (following < capacity)
    last = jnp.min(jnp.where((group >= first) & ~ascends, group, n_groups - 1))

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        last, at, _ = state
        behind = _row_behind(groups, head, last + 1, at)
        found = behind < capacity
        return jnp.where(found, last + 1, last), behind, found & (last + 2 < n_groups)

    # No trip at all unless the run of ascending rows ends before a sequence that still has rows.
    descends = (last + 1 < n_groups) & (following[last] < capacity)
    last, _, _ = jax.lax.while_loop(
        lambda state: state[2] & (state[0] - first + 1 < n_ubatch), step, (last, row[last], descends)
    )
    return first + group, jnp.minimum(last - first + 1, n_ubatch)


def _row_behind(groups: Groups, head: jax.Array, group: jax.Array, row: jax.Array) -> jax.Array:
    """The first unused row of a group behind `row`, T when there is none: a binary search."""
    capacity = groups.rows.shape[0]
    low, end = head[group], groups.end[group]

    def halve(_: Scalar, span: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = span
        middle = (low + high) // 2
        behind = groups.rows.at[middle].get(mode="clip") > row
        return jnp.where(behind | (low == high), low, middle + 1), jnp.where(behind, middle, high)

    low, _ = jax.lax.fori_loop(0, capacity.bit_length(), halve, (low, end))
    return jnp.where(low < end, groups.rows.at[low].get(mode="clip"), capacity)
