"""The sliding window: which cached positions a later position no longer sees (llama.cpp's is_masked_swa)."""

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig, SwaType
from ubjax.typing import Array, Bool, Int32


def out_of_window(
    p0: Int32[Array, "*#n"], p1: Int32[Array, "*#n"], config: MemoryConfig
) -> Bool[jax.Array, "*n"]:
    """Whether position p0 is masked as seen from position p1 (arrays of one rank).

    With W = n_swa: standard p1 - p0 >= W; chunked p0 < floor(p1 / W) * W; symmetric |p1 - p0| > floor(W / 2).
    """
    p0, p1, w = jnp.asarray(p0), jnp.asarray(p1), config.n_swa
    match config.swa_type:
        case SwaType.NONE:
            return jnp.zeros(jnp.broadcast_shapes(p0.shape, p1.shape), bool)
        case SwaType.STANDARD:
            return p1 - p0 >= w
        case SwaType.CHUNKED:
            return p0 < p1 // w * w
        case SwaType.SYMMETRIC:
            return jnp.abs(p1 - p0) > w // 2
