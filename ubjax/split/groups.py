"""Groups: the rows of a batch by sequence set, as one permutation with starts and ends.

T  rows a batch can hold          N  groups that are possible: G by first sequence, T by exact set
W  32-bit words of a set          G  32 W, the sequences that W words can name

    batch rows      0    1    2    3    4   (5 padding)       first sequences 1 0 1 1 0
    by first seq    rows [1 4 | 0 2 3 | 5]    start [0 2 5 ...]    end [2 5 5 ...]     N = G, N = 32 for one word
"""

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.pytree import pytree
from ubjax.ragged import count_seqs, first_seq
from ubjax.typing import Array, Bool, Flag, Int32


@pytree
class Groups:
    """Group g is rows[start[g]:end[g]], in batch order. Rows in no group (padding, rows without a sequence) come last;
    `of_row` says the group of a row of the batch, N for a row in none.
    """

    rows: Int32[Array, "T"]
    of_row: Int32[Array, "T"]
    start: Int32[Array, "N"]
    end: Int32[Array, "N"]


def in_use(batch: Batch) -> Bool[jax.Array, "T"]:
    """The rows that count: below n_tokens. What padding rows hold is never trusted."""
    return jnp.arange(batch.token.shape[0], dtype=jnp.int32) < batch.n_tokens


def any_coupled(batch: Batch) -> Flag:
    """Whether some row is in more than one sequence."""
    return jnp.any(in_use(batch) & (count_seqs(batch.seq) > 1))


def by_first_seq(batch: Batch) -> Groups:
    """The rows grouped by first sequence id, through the batch's own `order`."""
    n_groups = 32 * batch.seq.shape[-1]
    first = jnp.where(in_use(batch), first_seq(batch.seq), n_groups)
    count = jnp.zeros(n_groups, jnp.int32).at[first].add(1, mode="drop")
    end = jnp.cumsum(count)
    return Groups(rows=jnp.asarray(batch.order), of_row=first, start=end - count, end=end)


def are_disjoint(batch: Batch, groups: Groups) -> Flag:
    """Whether any two sets of the batch are equal or disjoint; `groups` by first sequence.

    So it is when the rows of a group agree with its first row, and those first rows together hold as many sequences as
    they hold apart.
    """
    seq = jnp.asarray(batch.seq)
    live = groups.end > groups.start
    sets = jnp.where(live[:, None], seq[groups.rows.at[groups.start].get(mode="clip")], 0)
    agree = jnp.all(sets.at[groups.of_row].get(mode="clip") == seq, axis=-1) | (groups.of_row == len(sets))
    union = jax.lax.reduce_or(sets, axes=(0,))
    return jnp.all(agree) & (
        jnp.sum(count_seqs(sets)) == jnp.sum(jax.lax.population_count(union), dtype=jnp.int32)
    )


def by_set(batch: Batch) -> Groups:
    """The rows grouped by exactly equal set: one lexicographic sort of the words, ties in batch order."""
    capacity, n_words = batch.seq.shape
    seq = jnp.asarray(batch.seq)
    rows = jnp.arange(capacity, dtype=jnp.int32)
    nowhere = ~(in_use(batch) & jnp.any(seq != 0, axis=-1))
    keys = (nowhere.astype(jnp.int32), *(seq[:, w] for w in range(n_words)))
    nowhere_sorted, *words, rows = jax.lax.sort((*keys, rows), num_keys=len(keys), is_stable=True)
    fresh = jnp.zeros(capacity, bool).at[0].set(True)
    for word in words:
        fresh = fresh | jnp.concatenate([jnp.array([True]), word[1:] != word[:-1]])
    group = jnp.where(nowhere_sorted == 0, jnp.cumsum(fresh.astype(jnp.int32)) - 1, capacity)
    count = jnp.zeros(capacity, jnp.int32).at[group].add(1, mode="drop")
    end = jnp.cumsum(count)
    of_row = jnp.zeros(capacity, jnp.int32).at[rows].set(group)
    return Groups(rows=rows, of_row=of_row, start=end - count, end=end)
