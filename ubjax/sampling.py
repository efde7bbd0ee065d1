"""Logits to tokens."""

import jax
import jax.numpy as jnp

from ubjax.typing import Array, Float, Int32


@jax.jit
def greedy(logits: Float[Array, "*n V"]) -> Int32[jax.Array, "*n"]:
    """The most likely token of each row; the smallest id where several are."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)
