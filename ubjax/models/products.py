"""Rows times matrices of each storage, in the form that the platform is fastest with (docs/log.md has the figures).

A program is compiled for one number of rows R, so that one form of each product is in it. Other platforms than CPU get
a plain dot. What XLA's CPU library does with a product: it copies a transposed right operand into tiles first, it gives
its threads shares of the outputs of one matrix, and those of a batch of small ones to one thread, up to 32,768 outputs.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Num

from ubjax.typing import Array, Float

FEW = 128  # rows up to which a matrix is the left operand
CHUNK = 2**19  # values of a matrix that are dequantized at once: they stay in the CPU's caches
MANY = 256  # rows from which on they are outside of the panels
SHARED = 64  # panels from which on threads share them
HIGHEST = (
    jax.lax.Precision.HIGHEST
)  # float32 products stay float32 (no TF32); narrower storage is not affected


def rows_product(x: Float[Array, "R in_"], weight: Float[Array, "out in_"]) -> Float[jax.Array, "R out"]:
    """Give x @ weight.T, summed in float32; x is rounded to the dtype of the weight first."""
    x = x.astype(weight.dtype)
    if weight.dtype == jnp.float16:  # no product of XLA's CPU library
        return jax.lax.platform_dependent(x, weight, cpu=_float16_on_cpu, default=_dot)
    return jax.lax.platform_dependent(x, weight, cpu=_rows_on_cpu, default=_dot)


def _dot(x: Array, weight: Array) -> jax.Array:
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, weight, contract, precision=HIGHEST, preferred_element_type=jnp.float32)


def _rows_on_cpu(x: Array, weight: Array) -> jax.Array:
    """Float32, up to 128 rows: the matrix on the left. Narrow storage below 4 rows: a dot of 4.

    A product of a single row is another one, and slower; of a single narrow row it is ten times slower. Without the
    barrier XLA would take the transposition of the result as a product with the operands swapped.
    """
    n = x.shape[0]
    least = 2 if weight.dtype == jnp.float32 else 4
    if n < least:
        return _rows_on_cpu(jnp.pad(x, ((0, least - n), (0, 0))), weight)[:n]
    if weight.dtype == jnp.float32 and n <= FEW:
        return jax.lax.optimization_barrier(_dot(weight, x)).T
    return _dot(x, weight)


def _float16_on_cpu(x: Array, weight: Array) -> jax.Array:
    return _chunks_on_cpu(x.astype(jnp.float32), (weight,), lambda rows: rows.astype(jnp.float32))


def dequantized_product(
    x: Float[Array, "R in_"], stored: tuple[Num[Array, "out _"], ...], dequantize: Callable[..., jax.Array]
) -> Float[jax.Array, "R out"]:
    """Give x @ dequantize(*stored).T; `dequantize` makes float32 rows [n, in] of n rows of what is stored."""
    return jax.lax.platform_dependent(
        x.astype(jnp.float32),
        stored,
        cpu=lambda x, stored: _chunks_on_cpu(x, stored, dequantize),
        default=lambda x, stored: _dot(x, dequantize(*stored)),
    )


def _chunks_on_cpu(x: Array, stored: tuple[Array, ...], dequantize: Callable[..., jax.Array]) -> jax.Array:
    """As many rows of the matrix at a time as CHUNK allows, in a loop; the last ones again where they don't fill one.

    Dequantized whole, all matrices would lie in memory at once: XLA computes what depends on no x before all else, in a
    decode loop once for all steps. So it is with a loop of one turn, which it does away with, and with zeros to begin a
    product with: any value of x does, each is overwritten.
    """
    (n, n_in), n_out = x.shape, stored[0].shape[0]
    if n < 2:
        return _chunks_on_cpu(jnp.pad(x, ((0, 2 - n), (0, 0))), stored, dequantize)[:n]
    n_chunks = max(2, -(-n_out // max(1, CHUNK // n_in)))
    size = -(-n_out // n_chunks)
    few = n <= FEW

    def add(i: jax.Array, product: jax.Array) -> jax.Array:
        start = jnp.minimum(i * size, n_out - size)
        rows = dequantize(*(jax.lax.dynamic_slice_in_dim(part, start, size) for part in stored))
        part = _dot(rows, x) if few else _dot(x, rows)
        return jax.lax.dynamic_update_slice_in_dim(product, part, start, 0 if few else 1)

    product = jax.lax.fori_loop(
        0, n_chunks, add, jnp.broadcast_to(x[0, 0], (n_out, n) if few else (n, n_out))
    )
    return product.T if few else product


def panels_product(x: Float[Array, "R in_"], panels: Float[Array, "P in_ w"]) -> Float[jax.Array, "R PW"]:
    """Give x times the rows of all panels, one behind the other."""
    return jax.lax.platform_dependent(x, panels, cpu=_panels_on_cpu, default=_panels_by_dot)


def _panels_by_dot(x: Array, panels: Array) -> jax.Array:
    product = jnp.einsum("ri,piw->rpw", x, panels, precision=HIGHEST)
    return product.reshape(x.shape[0], panels.shape[0] * panels.shape[2])


def _panels_on_cpu(x: Array, panels: Array) -> jax.Array:
    """Multiply and reduce, which XLA makes a batch of products of; panels outside where threads can share them.

    A single row gets one of zeros beside it: XLA makes a loop of its own of one row's, thirty times slower. Four parts
    of the panels are shared more evenly than all of them; of many rows the product is in halves, which for a gated
    feed-forward network are what is multiplied next.
    """
    n, n_panels = x.shape[0], panels.shape[0]
    n_out = n_panels * panels.shape[2]
    if n == 1:
        return _panels_on_cpu(jnp.pad(x, ((0, 1), (0, 0))), panels)[:1]
    if n <= 8 or n_panels < SHARED:
        return jnp.sum(panels[None] * x[:, None, :, None], axis=2).reshape(n, n_out)
    parts = panels.reshape(math.gcd(n_panels, 2 if n >= MANY else 4), -1, *panels.shape[1:])
    if n >= MANY:
        product = jnp.sum(parts[:, None] * x[None, :, None, :, None], axis=3)
        return product.transpose(1, 0, 2, 3).reshape(n, n_out)
    product = jnp.sum(parts[:, :, :, None, :] * x.T[None, None, :, :, None], axis=2)
    return product.transpose(2, 0, 1, 3).reshape(n, n_out)


def int8_product(x: Float[Array, "R in_"], values: Num[Array, "out in_"]) -> Float[jax.Array, "R out"]:
    """Give x @ values.T, a value of x as two 8-bit numbers, the second 254 times finer: sums are whole numbers.

    One 8-bit number would cost half as much for many rows, but lose one most likely token of six instead of one of
    fourteen (SmolLM2). The scale is that of the largest value of a row of x.
    """
    x = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127
    scaled = x / jnp.where(scale == 0, 1, scale)
    first = jnp.round(scaled)
    second = jnp.round((scaled - first) * 254)
    both = jnp.concatenate([first, second]).astype(jnp.int8)
    contract = (((1,), (1,)), ((), ()))
    sums = jax.lax.dot_general(both, values, contract, preferred_element_type=jnp.int32).astype(jnp.float32)
    upper, lower = jnp.split(sums, 2)
    return (upper + lower / 254) * scale
