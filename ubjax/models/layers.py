"""The parts of a layer: linear maps, norms, the gated feed-forward. Activations are float32.

Matrices are [out, in], in the dtype of storage; vectors are float32. R rows.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.typing import Array, Float


def linear(x: Float[Array, "R in_"], weight: Float[Array, "out in_"]) -> Float[jax.Array, "R out"]:
    """Apply a matrix to every row: x @ weight.T, summed in float32; x is rounded to the dtype of the weight first.

    The formulation is that of the platform the program is compiled for; on CPU it depends on the rows as well, on
    others it is a plain dot.
    """
    return jax.lax.platform_dependent(x.astype(weight.dtype), weight, cpu=_linear_on_cpu, default=_dot)


def _dot(x: Array, weight: Array) -> jax.Array:
    # The highest precision keeps float32 products float32 (no TF32); narrower storage is not affected.
    return jax.lax.dot_general(
        x,
        weight,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _linear_on_cpu(x: Array, weight: Array) -> jax.Array:
    """What was fastest in the whole model; R is static, so one form is compiled.

    float32, 2 to 32 rows: multiply and reduce, which takes 0.65 to 0.8 of the dot's time. It needs matrices of equal
    shape that are applied to the same x to be stacked in one: XLA would share the products' common operand, x
    spread out over `out`, and so write it to memory. Narrow storage below 4 rows: rows are added up to 4, since XLA's
    product of a single narrow row is ten times slower.
    """
    n = x.shape[0]
    if weight.dtype == jnp.float32:
        return jnp.sum(weight[:, None, :] * x[None, :, :], axis=-1).T if 2 <= n <= 32 else _dot(x, weight)
    return _dot(x, weight) if n >= 4 else _dot(jnp.pad(x, ((0, 4 - n), (0, 0))), weight)[:n]


def random_matrix(rngs: nnx.Rngs, n_out: int, n_in: int, dtype: Any) -> nnx.Param:
    """A matrix [n_out, n_in] of normal values that keeps the size of what it is applied to."""
    return nnx.Param((jax.random.normal(rngs.params(), (n_out, n_in)) * n_in**-0.5).astype(dtype))


class Linear(nnx.Module):
    """A matrix and perhaps a bias. What is applied to the same rows may be stacked in one (q over k over v)."""

    def __init__(self, n_in: int, n_out: int, *, bias: bool, dtype: Any, rngs: nnx.Rngs):
        self.weight = random_matrix(rngs, n_out, n_in, dtype)
        self.bias = nnx.Param(jnp.zeros(n_out)) if bias else None

    def __call__(self, x: Float[Array, "R in_"]) -> Float[jax.Array, "R out"]:
        """The rows after the matrix, with the bias added."""
        y = linear(x, self.weight[...])
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
        dtype: Any,
        rngs: nnx.Rngs,
        activation: str = "silu",
    ):
        self.gate_up = Linear(n_embd, 2 * n_ff, bias=in_bias, dtype=dtype, rngs=rngs)
        self.down = Linear(n_ff, n_embd, bias=out_bias, dtype=dtype, rngs=rngs)
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
