"""Matrices [out, in] as they are stored: what is kept of one, and how rows are multiplied with it.

    Rows      as they are, in float32, bfloat16 or float16
    Panels    float32 for CPU, small and tall ones: 32 rows side by side, so that a few rows of x read them in one go
    Int8      8 bits with one scale for a row; x is rounded to twice 8 bits, row by row, so that sums are whole numbers
    Blocks    8 or 4 bits with a scale, and perhaps an offset, for 32 values of a row: Q8_0, and others that files hold

All are called with rows of x, and give rows of the matrix by number; both are float32, and so are sums (int32 in Int8).
R rows of x, P panels, N blocks of a row.
"""

import platform
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Num

from ubjax.config import KV_DTYPES, WEIGHT_DTYPES, check_dtype
from ubjax.models.products import dequantized_product, int8_product, panels_product, rows_product
from ubjax.models.quantized import BLOCK
from ubjax.models.slabs import Slabs
from ubjax.typing import Array, Float, Int32

PANEL = 32  # rows of a panel; with 16 or 48 a product takes two to five times as long
X86 = ("x86_64", "AMD64")
SMALL = 2**19  # values of a matrix up to which threads that share it gain nothing
TALL = 2048  # rows of a matrix from which on there are enough panels for all threads
LONGEST = 133_144  # values of a row up to which sums of products of 8 bits stay below 2^31: 127^2 each
TINY = float(np.finfo(np.float32).tiny)  # a smaller scale is 0, as what is divided by it would overflow
PACKED = {"int4": jnp.int8, "uint4": jnp.uint8}  # what two values of 4 bits are kept in
slabs = Slabs()


class Rows(nnx.Module):
    """The rows as they are; x is rounded to their dtype before it is multiplied."""

    def __init__(self, rows: Float[Array, "out in_"], dtype: Any = jnp.float32):
        self.shape = rows.shape
        self.values = _kept(rows, dtype)

    def __call__(self, x: Float[Array, "R in_"]) -> Float[jax.Array, "R out"]:
        """Give x @ matrix.T."""
        return rows_product(x, self.values[...])

    def rows(self, ids: Int32[Array, " n"]) -> Float[jax.Array, "n in_"]:
        """Rows of the matrix, the nearest one for a number outside."""
        return _taken(self.values, ids).astype(jnp.float32)


class Panels(nnx.Module):
    """panels[p, i, j] is input i of row 32 p + j; rows that the last panel lacks are zero."""

    def __init__(self, rows: Float[Array, "out in_"]):
        self.shape = rows.shape
        n_out, n_in = rows.shape
        n = -(-n_out // PANEL)
        if n_out % PANEL:
            rows = rows.__array_namespace__().pad(rows, ((0, n * PANEL - n_out), (0, 0)))
        self.panels = _kept(rows.reshape(n, PANEL, n_in).transpose(0, 2, 1), jnp.float32)

    def __call__(self, x: Float[Array, "R in_"]) -> Float[jax.Array, "R out"]:
        """Give x @ matrix.T."""
        return panels_product(x, self.panels[...])[:, : self.shape[0]]

    def rows(self, ids: Int32[Array, " n"]) -> Float[jax.Array, "n in_"]:
        """Rows of the matrix, the nearest one for a number outside."""
        ids = jnp.clip(ids, 0, self.shape[0] - 1)
        return self.panels[...].at[ids // PANEL, :, ids % PANEL].get(mode="clip")


class Int8(nnx.Module):
    """round(row / scale) with scale = max |row| / 127."""

    def __init__(self, rows: Float[Array, "out in_"]):
        self.shape = rows.shape
        scale, divisor = _scale(rows)
        self.values = _kept((rows / divisor[:, None]).round(), jnp.int8)
        self.scale = _kept(scale, jnp.float32)

    def __call__(self, x: Float[Array, "R in_"]) -> Float[jax.Array, "R out"]:
        """Give x @ matrix.T, x rounded to twice 8 bits, row by row."""
        return int8_product(x, self.values[...]) * self.scale[...][None]

    def rows(self, ids: Int32[Array, " n"]) -> Float[jax.Array, "n in_"]:
        """Rows of the matrix, the nearest one for a number outside."""
        return _taken(self.values, ids).astype(jnp.float32) * _taken(self.scale, ids)[:, None]


class Blocks(nnx.Module):
    """values * scale + offset, 32 values of a row with one float16 scale and, where there is any, one offset.

    `kind` says what all values are within: "int8", or "int4" [-8, 8) or "uint4" [0, 16), then two of them share a byte:
    the lower half of byte j of a row is value j, the upper half value j + in / 2, as side by side they would have to be
    sorted one by one.
    """

    def __init__(
        self,
        values: Num[Array, "out in_"],
        scale: Float[Array, "out N"],
        offset: Float[Array, "out N"] | None = None,
        kind: str = "int8",
    ):
        self.shape, self.kind = values.shape, kind
        if kind == "int8":
            self.values = _kept(values, jnp.int8)
        else:
            lower, upper = np.split(np.asarray(values), 2, axis=1)
            self.values = _kept(lower & 15 | upper << 4, PACKED[kind])
        self.scale = _kept(scale, jnp.float16)
        self.offset = None if offset is None else _kept(offset, jnp.float16)

    @classmethod
    def q8_0(cls, rows: Float[Array, "out in_"]) -> "Blocks":
        """Rounded as ggml's Q8_0 is: scale = max |values| / 127, halves away from zero."""
        xp = rows.__array_namespace__()
        blocks = rows.reshape(rows.shape[0], -1, BLOCK)
        scale, divisor = _scale(blocks)
        exact = blocks * (1 / divisor)[..., None]
        return cls(xp.trunc(exact + xp.copysign(0.5, exact)).reshape(rows.shape), scale)

    def __call__(self, x: Float[Array, "R in_"]) -> Float[jax.Array, "R out"]:
        """Give x @ matrix.T."""
        return dequantized_product(
            x, tuple(part[...] for part in self._parts()), partial(_dequantized, self.kind)
        )

    def rows(self, ids: Int32[Array, " n"]) -> Float[jax.Array, "n in_"]:
        """Rows of the matrix, the nearest one for a number outside."""
        return _dequantized(self.kind, *(_taken(part, ids) for part in self._parts()))

    def _parts(self) -> tuple[nnx.Param, ...]:
        return (self.values, self.scale) + (() if self.offset is None else (self.offset,))


def _scale(values: Float[Array, "*rows in_"]) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Max |values| / 127 of the last axis, and what to divide by: 1 where that is too little for a scale."""
    xp = values.__array_namespace__()
    scale = abs(values).max(-1) / 127
    return xp.where(scale < TINY, 0, scale), xp.where(scale < TINY, 1, scale)


def _taken(part: nnx.Param, ids: Int32[Array, " n"]) -> jax.Array:
    # Without the barrier a decode loop would keep all of a bfloat16 matrix in float32, made before its first step.
    values, ids = jax.lax.optimization_barrier((part[...], jnp.clip(ids, 0, part.shape[0] - 1)))
    return values.at[ids].get(mode="clip")  # clipped before: a negative number would count from the end


def _dequantized(
    kind: str,
    values: Num[Array, "n _"],
    scale: Float[Array, "n N"],
    offset: Float[Array, "n N"] | None = None,
) -> Float[jax.Array, "n in_"]:
    """What rows of blocks stand for."""
    if kind != "int8":  # a shift keeps the sign of int8
        lower = values << 4 >> 4 if kind == "int4" else values & 15
        values = jnp.concatenate([lower, values >> 4], axis=1)
    blocks = values.reshape(*scale.shape, BLOCK).astype(jnp.float32) * scale[..., None]
    return (blocks if offset is None else blocks + offset[..., None]).reshape(values.shape)


Matrix: TypeAlias = Rows | Panels | Int8 | Blocks
Store: TypeAlias = Callable[[Any], Matrix]  # rows [out, in], float32, to the matrix that keeps them


def store_of(dtype: Any, *, few_rows: bool) -> Store:
    """How matrices are stored for a `dtype` of weights: one of `config.WEIGHT_DTYPES`, or jax's or numpy's of a float.

    few_rows: whether a few rows are often all there are, as in decodes; then small and tall matrices in float32 lie in
    panels, on CPUs of the kind that this was measured on. Rows whose length is no multiple of 32 stay float32 where
    blocks are asked for, and those above 133,144 where int8 is. Raises ValueError as `dtype_name`; what it gives raises
    one for numpy's numbers that can't be kept: too large ones, and in 8 bits such as are not finite. (bfloat16, whose
    range ends 0.4 % before float32's, makes those beyond it infinite.)
    """
    dtype = dtype_name(dtype)
    panels = few_rows and jax.default_backend() == "cpu" and platform.machine() in X86
    full: Store = _panels_or_rows if panels else Rows
    stores: dict[str, Store] = {
        "float32": full,
        "stored": full,
        "int8": lambda rows: Int8(rows) if rows.shape[1] <= LONGEST else full(rows),
        "q8_0": lambda rows: full(rows) if rows.shape[1] % BLOCK else Blocks.q8_0(rows),
    }
    return partial(_stored, stores.get(dtype, partial(Rows, dtype=dtype)), dtype)


def _stored(store: Store, dtype: str, rows: Float[Array, "out in_"]) -> Matrix:
    """From float32, whatever the rows come as: a quotient in 16 bits may round to 128."""
    try:
        with np.errstate(over="raise", invalid="raise"):
            return store(rows.astype(np.float32, copy=False))
    except FloatingPointError:
        raise ValueError(
            f"{dtype} does not hold its largest number, {abs(rows).max():g}: smaller and finite ones are needed, "
            "or another dtype"
        ) from None


def dtype_name(dtype: Any) -> str:
    """The one of `config.WEIGHT_DTYPES` that is meant: its name, or jax's or numpy's dtype of a float.

    Raises ValueError for another one, also for an 8-bit one of numpy's, which has no scales.
    """
    if not isinstance(dtype, str):
        dtype = next((name for name in KV_DTYPES if jnp.dtype(name) == dtype), dtype)
    check_dtype("dtype", dtype, WEIGHT_DTYPES)
    return dtype


def _panels_or_rows(rows: Float[Array, "out in_"]) -> Rows | Panels:
    """Panels if the matrix is small or tall: a product with up to a dozen rows reads them in one thread."""
    n_out, n_in = rows.shape
    return Panels(rows) if n_out * n_in <= SMALL or n_out >= TALL else Rows(rows)


def _kept(values: Array, dtype: Any) -> nnx.Param:
    """A parameter that keeps the values as `dtype`; a host array is copied once, to where jax takes it as it is."""
    if not isinstance(values, np.ndarray):
        return nnx.Param(values.astype(dtype))
    kept = slabs.empty(values.shape, dtype)
    kept[...] = values
    return nnx.Param(jax.device_put(kept))
