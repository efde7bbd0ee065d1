"""Groups: the rows of a batch by sequence set, as one permutation with starts and ends.

T  rows a batch can hold          N  groups that are possible: G by first sequence, T by exact set
W  32-bit words of a set          G  32 W, the sequences that W words can name

    batch rows      0    1    2    3    4   (5 padding)       first sequences 1 0 1 1 0
    by first seq    rows [1 4 | 0 2 3 | 5]    start [0 2 5 ...]    end [2 5 5 ...]    N = G = 32
"""

import jax
import jax.numpy as jnp

from ubjax.pytree import pytree
from ubjax.ragged import count_seqs, first_seq
from ubjax.typing import I32, Array, Bool, Flag, Int32, UInt32


@pytree
class Groups:
    """Group g is rows[start[g]:end[g]], in batch order; `of_row` is the group of each row of the batch.

    Rows in no group (padding, rows without a sequence) come last in `rows`; their group is N.
    """

    rows: Int32[jax.Array, " T"]
    of_row: Int32[jax.Array, " T"]
    start: Int32[jax.Array, " N"]
    end: Int32[jax.Array, " N"]


def any_coupled(seq: UInt32[Array, "T W"], n_tokens: I32) -> Flag:
    """Whether some row is in more than one sequence."""
    return jnp.any(_counted(seq, n_tokens) & (count_seqs(seq) > 1))


def by_first_seq(seq: UInt32[Array, "T W"], order: Int32[Array, " T"], n_tokens: I32) -> Groups:
    """The rows grouped by first sequence id; `order` is the batch's own."""
    n_groups = 32 * seq.shape[-1]
    of_row = jnp.where(_counted(seq, n_tokens), first_seq(seq), n_groups)
    start, end = _extents(of_row, n_groups)
    return Groups(rows=jnp.asarray(order), of_row=of_row, start=start, end=end)


def are_disjoint(seq: UInt32[Array, "T W"], groups: Groups) -> Flag:
    """Whether any two sets of the batch are equal or disjoint; `groups` by first sequence.

    So it is when the rows of a group agree with its first row, and those first rows together hold as many
    sequences as they hold apart.
    """
    seq = jnp.asarray(seq)
    used = groups.end > groups.start
    sets = jnp.where(used[:, None], seq[groups.rows.at[groups.start].get(mode="clip")], 0)
    agree = jnp.all(sets.at[groups.of_row].get(mode="clip") == seq, axis=-1) | (groups.of_row == len(sets))
    union = jax.lax.reduce_or(sets, axes=(0,))
    return jnp.all(agree) & (jnp.sum(count_seqs(sets)) == count_seqs(union))


def by_set(seq: UInt32[Array, "T W"], n_tokens: I32) -> Groups:
    """The rows grouped by exactly equal set: one lexicographic sort of the words, ties in batch order."""
    capacity, n_words = seq.shape
    seq = jnp.asarray(seq)
    outside = ~(_counted(seq, n_tokens) & jnp.any(seq != 0, axis=-1))
    keys = (outside.astype(jnp.int32), *(seq[:, w] for w in range(n_words)))
    rows = jnp.arange(capacity, dtype=jnp.int32)
    outside, *words, rows = jax.lax.sort((*keys, rows), num_keys=len(keys), is_stable=True)
    changes = [word != jnp.roll(word, 1) for word in words]
    fresh = jnp.any(jnp.stack(changes), axis=0).at[0].set(True)
    group = jnp.where(outside == 0, jnp.cumsum(fresh, dtype=jnp.int32) - 1, capacity)
    of_row = jnp.zeros(capacity, jnp.int32).at[rows].set(group)
    start, end = _extents(of_row, capacity)
    return Groups(rows=rows, of_row=of_row, start=start, end=end)


def _counted(seq: UInt32[Array, "T W"], n_tokens: I32) -> Bool[jax.Array, " T"]:
    """The rows that count: what rows from n_tokens on hold is never trusted."""
    return jnp.arange(seq.shape[0], dtype=jnp.int32) < n_tokens


def _extents(of_row: Int32[jax.Array, " T"], n_groups: int) -> tuple[jax.Array, jax.Array]:
    """Where each group starts and ends once the rows are sorted by group."""
    size = jnp.zeros(n_groups, jnp.int32).at[of_row].add(1, mode="drop")
    end = jnp.cumsum(size, dtype=jnp.int32)
    return end - size, end
