"""split_seq: one sequence set in a ubatch.

T  rows a batch can hold     W  32-bit words of a set     G  sequences that W words can name, 32 W
"""

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.split.coupled import walk_subsets
from ubjax.split.groups import Groups, are_disjoint, by_first_seq
from ubjax.split.limits import as_size
from ubjax.split.plan import SplitPlan
from ubjax.typing import I32, Array, Int32, Scalar, UInt32


def split_seq(batch: Batch, n_ubatch: Scalar) -> SplitPlan:
    """Cut a batch into ubatches of one sequence set and at most `n_ubatch` rows, as llama.cpp's split_seq does.

    A ubatch starts at the first unused row and takes, in batch order, the unused rows whose set is contained in that
    of the row taken before. `n_ubatch` [rows] is data. ValueError when a host `n_ubatch` is below 1; an array below 1
    gives the empty plan of a failed split.

        sequences 0 1 0 0 1, n_ubatch 2     order [0 2 | 1 4 | 3]   offset [0 2 4 5 5 5]   n_seqs [1 1 1 0 0]
    """
    return _split_seq(batch.seq, batch.order, batch.n_tokens, as_size("n_ubatch", n_ubatch, least=1))


@jax.jit
def _split_seq(
    seq: UInt32[Array, "T W"], order: Int32[Array, " T"], n_tokens: I32, n_ubatch: I32
) -> SplitPlan:
    n_ubatch = jnp.asarray(n_ubatch)
    groups = by_first_seq(seq, order, n_tokens)
    return jax.lax.cond(
        are_disjoint(seq, groups),
        lambda: _chunks(groups, n_ubatch),
        lambda: walk_subsets(seq, n_tokens, n_ubatch),
    )


def _chunks(groups: Groups, n_ubatch: I32) -> SplitPlan:
    """Disjoint sets: each group in chunks of n_ubatch rows, the chunks in the order of their first rows."""
    capacity = groups.rows.shape[0]
    n_used = jnp.where(n_ubatch >= 1, jnp.max(groups.end), 0)
    at = jnp.arange(capacity, dtype=jnp.int32)
    live = at < n_used
    group = groups.of_row[groups.rows]
    step = (at - groups.start.at[group].get(mode="clip")) % jnp.maximum(n_ubatch, 1)  # place in the chunk
    leads = live & (step == 0)
    leading_row = jnp.zeros(capacity, jnp.int32).at[groups.rows].set(leads.astype(jnp.int32))
    number = jnp.cumsum(leading_row, dtype=jnp.int32) - 1  # of the chunk that a leading row leads
    ubatch = number.at[groups.rows.at[at - step].get(mode="clip")].get(mode="clip")
    size = jnp.minimum(n_ubatch, groups.end.at[group].get(mode="clip") - at)
    size = (
        jnp.zeros(capacity + 1, jnp.int32)
        .at[jnp.where(leads, ubatch + 1, capacity + 1)]
        .set(size, mode="drop")
    )
    offset = jnp.cumsum(size, dtype=jnp.int32)
    place = jnp.where(live, offset.at[ubatch].get(mode="clip") + step, capacity)
    n_ubatches = jnp.sum(leading_row, dtype=jnp.int32)
    return SplitPlan(
        order=jnp.full(capacity, capacity, jnp.int32).at[place].set(groups.rows, mode="drop"),
        offset=offset,
        n_seqs=(at < n_ubatches).astype(jnp.int32),
        n_ubatches=n_ubatches,
        n_used=n_used,
        equal_seqs=jnp.array(True),
        keeps_order=jnp.array(True),
    )
