"""Arithmetic on rows of logits, to the same bits in any company.

A reduction that is left to the compiler may add in another order when the array has other rows: one row alone
and the same row among sixteen then differ in the last bit, and once in a while in the token. Here each addition
is written out. Axes: O rows of logits, V vocabulary, n any.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ubjax.typing import Array, Float, Int32

LARGEST = float(jnp.finfo(jnp.float32).max)


def usable(logits: Float[Array, "*n V"]) -> Float[jax.Array, "*n V"]:
    """float32 logits without NaN and +inf: NaN can't be drawn (-inf), +inf becomes the largest number.

    Also applied to edited logits, so that overflow stops at the largest number and -inf bans.
    """
    x = jnp.asarray(logits, jnp.float32)
    return jnp.where(jnp.isnan(x), -jnp.inf, jnp.minimum(x, LARGEST))


def row_max(x: Float[jax.Array, "O V"]) -> Float[jax.Array, "O 1"]:
    """The largest logit of each row; 0 where all are -inf, so that it can be subtracted."""
    largest = jnp.max(x, axis=1, keepdims=True)
    return jnp.where(largest == -jnp.inf, 0, largest)


def row_sum(x: Float[jax.Array, "*n V"]) -> Float[jax.Array, "*n"]:
    """The sum of each row, by halves: x0 + x2 and x1 + x3, then the two; what is odd is added last.

    Never less when an entry grows (rounding is monotone), and on CPU twice as fast as a reduction, which can't
    use vectors without changing the order.
    """
    odd = jnp.zeros(x.shape[:-1], x.dtype)
    while (n := x.shape[-1]) > 1:
        if n % 2:
            odd += x[..., -1]
        x = x[..., : n // 2] + x[..., n // 2 : n // 2 * 2]
    return x[..., 0] + odd


def log_sum_exp(x: Float[jax.Array, "O V"]) -> Float[jax.Array, "O 1"]:
    """The logarithm of the sum of exp; -inf for a row of nothing else."""
    largest = row_max(x)
    return largest + jnp.log(row_sum(jnp.exp(x - largest)))[:, None]


def first_true(
    low: Int32[jax.Array, " O"],
    high: Int32[jax.Array, " O"],
    test: Callable[[jax.Array], jax.Array],
) -> Int32[jax.Array, " O"]:
    """The smallest value in [low, high] at which a monotone test holds in each row; `high` where it never does."""

    def halve(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # floor of the mean, without overflow
        holds = test(middle)
        open_ = low < high
        return jnp.where(open_ & ~holds, middle + 1, low), jnp.where(open_ & holds, middle, high)

    return jax.lax.while_loop(lambda bounds: jnp.any(bounds[0] < bounds[1]), halve, (low, high))[1]
