"""The parts of a layer: linear maps, norms, the gated feed-forward. Activations and vectors are float32. R rows."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.models.matrix import Matrix, Store
from ubjax.typing import Array, Float


def random_matrix(rngs: nnx.Rngs, n_out: int, n_in: int, store: Store) -> Matrix:
    """A matrix [n_out, n_in] of normal values that keeps the size of what it is applied to."""
    return store(jax.random.normal(rngs.params(), (n_out, n_in)) * n_in**-0.5)


class Linear(nnx.Module):
    """A matrix and perhaps a bias. What is applied to the same rows may be stacked in one (q over k over v)."""

    def __init__(self, n_in: int, n_out: int, *, bias: bool, store: Store, rngs: nnx.Rngs):
        self.weight: Matrix = random_matrix(rngs, n_out, n_in, store)
        self.bias = nnx.Param(jnp.zeros(n_out)) if bias else None

    def __call__(self, x: Float[Array, "R in_"]) -> Float[jax.Array, "R out"]:
        """The rows after the matrix, with the bias added."""
        y = self.weight(x)
        return y if self.bias is None else y + self.bias[...][None, :]


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x ** 2) + eps) * weight, along the last axis."""

    def __init__(self, n: int, eps: float):
        self.weight = nnx.Param(jnp.ones(n))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows n"]) -> Float[jax.Array, "*rows n"]:
        """The normed rows."""
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps)
        weight = self.weight[...]
        return scale * x * weight.reshape((1,) * (x.ndim - 1) + weight.shape)


class LayerNorm(nnx.Module):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, along the last axis."""

    def __init__(self, n: int, eps: float):
        self.weight = nnx.Param(jnp.ones(n))
        self.bias = nnx.Param(jnp.zeros(n))
        self.eps = eps

    def __call__(self, x: Float[Array, "R n"]) -> Float[jax.Array, "R n"]:
        """The normed rows."""
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps)
        return x * scale * self.weight[...][None, :] + self.bias[...][None, :]


class GatedFeedForward(nnx.Module):
    """down(activation(gate(x)) * up(x)), gate and up stacked (SwiGLU or GeGLU)."""

    def __init__(
        self,
        n_embd: int,
        n_ff: int,
        *,
        in_bias: bool,
        out_bias: bool,
        store: Store,
        rngs: nnx.Rngs,
        activation: str = "silu",
    ):
        self.gate_up = Linear(n_embd, 2 * n_ff, bias=in_bias, store=store, rngs=rngs)
        self.down = Linear(n_ff, n_embd, bias=out_bias, store=store, rngs=rngs)
        self.activation = activation

    def __call__(self, x: Float[Array, "R E"]) -> Float[jax.Array, "R E"]:
        """What the feed-forward adds to the rows."""
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(ACTIVATIONS[self.activation](gate) * up)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Keep x within a cap: cap * tanh(x / cap); x itself where there is none."""
    return x if cap is None else cap * jnp.tanh(x / cap)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
}
