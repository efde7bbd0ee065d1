"""split_simple: the rows in batch order, n_ubatch at a time.

T  rows a batch can hold
"""

import functools

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.split.limits import as_size
from ubjax.split.plan import SplitPlan
from ubjax.typing import I32, Scalar


def split_simple(batch: Batch, n_ubatch: Scalar) -> SplitPlan:
    """Cut a batch into runs of at most `n_ubatch` rows (semantics of llama.cpp's split_simple).

    `n_ubatch` [rows] is data. Rows beyond n_tokens are never looked at. ValueError when a host `n_ubatch` is below 1;
    an array below 1 gives the empty plan of a failed split.

        n_tokens 5, T 6, n_ubatch 2     order [0 1 | 2 3 | 4, 6]   offset [0 2 4 5 5 5 5]   n_seqs [2 2 1 0 0 0]
    """
    return _split_simple(batch.n_tokens, as_size("n_ubatch", n_ubatch, least=1), batch.token.shape[-1])


@functools.partial(jax.jit, static_argnames="capacity")
def _split_simple(n_tokens: I32, n_ubatch: I32, capacity: int) -> SplitPlan:
    n_tokens, n_ubatch = jnp.asarray(n_tokens), jnp.asarray(n_ubatch)
    n_used = jnp.where(n_ubatch >= 1, n_tokens, 0)
    size = jnp.clip(n_ubatch, 1, jnp.maximum(n_used, 1))
    n_ubatches = (n_used + size - 1) // size
    at = jnp.arange(capacity + 1, dtype=jnp.int32)
    offset = jnp.where(
        at < n_ubatches, at * size, n_used
    )  # the product stays below n_used where it is looked at
    rows = at[:-1]
    return SplitPlan(
        order=jnp.where(rows < n_used, rows, capacity),
        offset=offset,
        n_seqs=offset[1:] - offset[:-1],
        n_ubatches=n_ubatches,
        n_used=n_used,
        equal_seqs=jnp.array(False),
        keeps_order=jnp.array(True),
    )
