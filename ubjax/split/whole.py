"""split_whole: whole sequences packed into ubatches, as models without a cache need them.

T  rows a batch can hold     G  sequences that W words can name, 32 W
"""

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.split.groups import any_coupled, by_first_seq
from ubjax.split.limits import as_size
from ubjax.split.plan import SplitPlan
from ubjax.typing import I32, Array, Int32, Scalar, UInt32


def split_whole(batch: Batch, n_ubatch: Scalar) -> SplitPlan:
    """Pack the sequences of a batch, in the order of their ids, each into the first ubatch that has room for it.

    A ubatch has at most `n_ubatch` rows [data], sequence after sequence; its n_seqs is how many. A sequence that is
    longer than n_ubatch is left out, so n_used < n_tokens tells; a row in several sequences gives the empty plan of a
    failed split. ValueError when a host `n_ubatch` is below 1; an array below 1 gives the empty plan.

        sequences 0 0 0 1 1 1 2, n_ubatch 4     order [0 1 2 6 | 3 4 5]   offset [0 4 7 7 ...]   n_seqs [2 1 0 ...]
    """
    return _split_whole(batch.seq, batch.order, batch.n_tokens, as_size("n_ubatch", n_ubatch, least=1))


@jax.jit
def _split_whole(
    seq: UInt32[Array, "T W"], order: Int32[Array, " T"], n_tokens: I32, n_ubatch: I32
) -> SplitPlan:
    groups, capacity, limit = by_first_seq(seq, order, n_tokens), seq.shape[0], jnp.asarray(n_ubatch)
    size = groups.end - groups.start
    size = jnp.where((size <= limit) & ~any_coupled(seq, n_tokens), size, 0)

    def place(fill: jax.Array, n: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        ubatch = jnp.argmax(fill + n <= limit).astype(
            jnp.int32
        )  # there are as many as sequences: one has room
        return fill.at[ubatch].add(n), (ubatch, fill[ubatch])

    n_groups = size.shape[0]
    fill, (ubatch, at) = jax.lax.scan(place, jnp.zeros(n_groups, jnp.int32), size)
    first = jnp.cumsum(fill, dtype=jnp.int32) - fill
    group = groups.of_row[groups.rows]
    rank = jnp.arange(capacity, dtype=jnp.int32) - groups.start.at[group].get(mode="clip")
    taken = (group < n_groups) & (size.at[group].get(mode="clip") > 0)
    start = (first[ubatch] + at).at[group].get(mode="clip")
    ends = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(fill, dtype=jnp.int32)])
    last = jnp.arange(capacity + 1, dtype=jnp.int32)
    n_seqs = jnp.zeros(capacity, jnp.int32).at[ubatch].add((size > 0).astype(jnp.int32), mode="drop")
    return SplitPlan(
        order=jnp.full(capacity, capacity, jnp.int32)
        .at[jnp.where(taken, start + rank, capacity)]
        .set(groups.rows, mode="drop"),
        offset=ends.at[last].get(mode="clip"),
        n_seqs=n_seqs,
        n_ubatches=jnp.sum(fill > 0, dtype=jnp.int32),
        n_used=ends[-1],
        equal_seqs=jnp.array(False),
        keeps_order=jnp.array(True),
    )
