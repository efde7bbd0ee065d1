"""Filters: which tokens remain, as logits in which what is dropped is -inf.

Each is a shortest prefix in some order, ties broken by the smallest token id, and keeps at least one token:

    logits  [2, 3, 3, 1]     descending: token 1, 2, 0, 3
    top_k 2 [-, 3, 3, -]     top_k 1: token 1 alone, although token 2 is as likely

A prefix is found without sorting: the key (then, among equals, the id) at which it ends is bisected, with a
masked sum at each trip. That is at most 32 + log2(V) passes over the rows, and none when no row uses the
filter (under vmap a cond computes both ways). A sort of 16 rows of 49,152 takes tens of times as long on CPU.
Sums are float32: where the mass so far equals the limit to the last bits, either side may come out. Subnormal
numbers count as 0.

Axes: O rows of logits, V vocabulary. Parameters have one entry for each row.
"""

import jax
import jax.numpy as jnp

from ubjax.sampling.rows import first_true, row_max, row_sum
from ubjax.typing import Bool, Float, Int32

Rows = Float[jax.Array, "O V"]


def top_k(x: Rows, k: Int32[jax.Array, " O"]) -> Rows:
    """The k largest logits; k = 0 or k >= V keeps all."""
    active = (k > 0) & (k < x.shape[1])

    def prefix() -> Rows:
        weight = (x > -jnp.inf).astype(x.dtype)  # counted in float32: exact up to 2^24 tokens
        return _keep(x, -x, weight, k.astype(x.dtype), active)

    return jax.lax.cond(jnp.any(active), prefix, lambda: x)


def typical(x: Rows, p: Float[jax.Array, " O"]) -> Rows:
    """The tokens whose surprise is nearest to the entropy, until their probability exceeds p; p = 1 keeps all.

    The nearest comes first, so the most likely token may go (locally typical sampling, Meister et al. 2022).
    """

    def prefix() -> Rows:
        weight = jnp.exp(x - row_max(x))
        total = row_sum(weight)[:, None]
        surprise = jnp.log(total) - (x - row_max(x))
        entropy = row_sum(jnp.where(weight > 0, weight * surprise, 0))[:, None] / total
        distance = jnp.where(x > -jnp.inf, jnp.abs(surprise - entropy), jnp.inf)
        target = jnp.nextafter(p * total[:, 0], jnp.float32(jnp.inf))  # exceed, not reach
        return _keep(x, distance, weight, target, p < 1)

    return jax.lax.cond(jnp.any(p < 1), prefix, lambda: x)


def top_p(x: Rows, p: Float[jax.Array, " O"]) -> Rows:
    """The most likely tokens until their probability reaches p (nucleus); p = 1 keeps all, p = 0 one."""

    def prefix() -> Rows:
        weight = jnp.exp(x - row_max(x))
        return _keep(x, -x, weight, p * row_sum(weight), p < 1)

    return jax.lax.cond(jnp.any(p < 1), prefix, lambda: x)


def min_p(x: Rows, p: Float[jax.Array, " O"]) -> Rows:
    """The tokens at least p times as likely as the most likely one, equality included; p = 0 keeps all."""
    return jnp.where(x >= row_max(x) + jnp.log(p)[:, None], x, -jnp.inf)


def _keep(
    x: Rows, order: Rows, weight: Rows, target: Float[jax.Array, " O"], active: Bool[jax.Array, " O"]
) -> Rows:
    """The first tokens by (order, id) whose weights reach `target`, the others -inf; all where they never do.

    Rows that are not active keep all.
    """
    key, ids = _sort_key(order), jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)

    def reaches(inside: Bool[jax.Array, "O V"]) -> Bool[jax.Array, " O"]:
        return row_sum(jnp.where(inside, weight, 0)) >= target

    low, high = _sort_key(jnp.min(order, axis=1)), _sort_key(jnp.max(order, axis=1))
    last_key = first_true(jnp.where(active, low, high), high, lambda k: reaches(key <= k[:, None]))[:, None]
    before, tied = key < last_key, key == last_key
    low, high = jnp.min(jnp.where(tied, ids, x.shape[1]), axis=1), jnp.max(jnp.where(tied, ids, -1), axis=1)
    last_id = first_true(
        jnp.where(active, low, high), high, lambda i: reaches(before | (tied & (ids <= i[:, None])))
    )
    kept = before | (tied & (ids <= last_id[:, None])) | ~active[:, None]
    return jnp.where(kept, x, -jnp.inf)


def _sort_key(x: Float[jax.Array, "*n"]) -> Int32[jax.Array, "*n"]:
    """Integers in the order of the floats (none NaN), equal where these are: 0 and -0 as well."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
