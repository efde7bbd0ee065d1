"""The sliding window: which cached positions a later position no longer sees (llama.cpp's is_masked_swa)."""

import dataclasses

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig, SwaType
from ubjax.typing import Array, Bool, Int32, Scalar


def out_of_window(
    p0: Int32[Array, "*#n"], p1: Int32[Array, "*#n"], n_swa: Scalar, swa_type: SwaType
) -> Bool[jax.Array, "*n"]:
    """Whether position p0 is masked as seen from position p1 (arrays of one rank).

    With W = n_swa (data): standard p1 - p0 >= W; chunked p0 < floor(p1 / W) * W; symmetric |p1 - p0| >
    floor(W / 2).
    """
    p0, p1 = jnp.asarray(p0), jnp.asarray(p1)
    match swa_type:
        case SwaType.NONE:
            return jnp.zeros(jnp.broadcast_shapes(p0.shape, p1.shape), bool)
        case SwaType.STANDARD:
            return p1 - p0 >= n_swa
        case SwaType.CHUNKED:
            return p0 < p1 // n_swa * n_swa
        case SwaType.SYMMETRIC:
            return jnp.abs(p1 - p0) > n_swa // 2


def any_size(config: MemoryConfig) -> MemoryConfig:
    """The static argument of a program that takes the window's size as data: one program for all sizes."""
    return dataclasses.replace(config, n_swa=min(config.n_swa, 1))
