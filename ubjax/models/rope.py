"""Rotary positions: the pairs (i, i + rope_dim / 2) of a head are rotated by pos * scale * theta ** (-2 i / rope_dim).

This is ggml's NEOX order (Hugging Face's rotate_half); loaders bring other orders into it. Values of a head from
rope_dim on stay as they are.

With M-RoPE a row has P positions (time, y, x and, in llama.cpp's form, a fourth) and each pair turns by one of them:
`sections` pairs by the first, the next ones by the second, and so on.

    sections (1, 2, 1)     pairs 0 | 1 2 | 3     positions t | y y | x

R rows, P positions a row, H heads, D width of a head, N = rope_dim / 2 pairs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.pytree import pytree
from ubjax.typing import Array, Float, Int32


@pytree
class Rotation:
    """Cosine and sine of every row's angles; made once a step, for all layers that share a base."""

    cos: Float[Array, "R N"]
    sin: Float[Array, "R N"]


def rotation(
    pos: Int32[Array, "P R"],
    rope_dim: int,
    theta: float,
    factors: Float[Array, " N"] | None = None,
    scale: float = 1.0,
    sections: tuple[int, ...] = (),
) -> Rotation:
    """The rotation at positions `pos`; frequencies are divided by `factors` where there are any (rope_freqs).

    `scale` is 1 / factor of linearly scaled positions. `sections`: how many pairs turn by each of the P positions, N
    together; without, all turn by the first.
    """
    frequency = jnp.asarray(scale * theta ** (-np.arange(0, rope_dim, 2) / rope_dim), jnp.float32)
    if factors is not None:
        frequency = frequency / factors
    of_pair = np.repeat(np.arange(len(sections)), sections) if sections else np.zeros(1, np.int32)
    angle = jnp.asarray(pos, jnp.float32)[of_pair].T * frequency[None, :]
    cos, sin = jax.lax.platform_dependent(angle, cpu=_turned_once, default=_turned)
    return Rotation(cos=cos, sin=sin)


def _turned(angle: Array) -> tuple[jax.Array, jax.Array]:
    return jnp.cos(angle), jnp.sin(angle)


def _turned_once(angle: Array) -> tuple[jax.Array, jax.Array]:
    """As `_turned`, behind a branch: XLA would compute both anew in every layer, for every head of every row."""
    return jax.lax.cond(
        jnp.any(angle != 0), _turned, lambda angle: (jnp.ones_like(angle), jnp.zeros_like(angle)), angle
    )


def rotate(x: Float[Array, "R H D"], by: Rotation) -> Float[jax.Array, "R H D"]:
    """Rotate the first 2 N values of every head."""
    n = by.cos.shape[1]
    cos, sin = by.cos[:, None, :], by.sin[:, None, :]
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def shift_rows(
    k: Float[Array, "NS Hk Ckv D"], shift: Int32[Array, "NS Ckv"], by: Rotation
) -> Float[jax.Array, "NS Hk Ckv D"]:
    """K with the row of every cell rotated further, by the rotation at position `shift` (stream by stream).

    A row of position p becomes one of p + shift. Computed in float32; a cell with shift 0 keeps its bits, NaN or not.
    """
    n_streams, n_heads, n_cells, d = k.shape
    cells = jnp.swapaxes(jnp.asarray(k), 1, 2).reshape(n_streams * n_cells, n_heads, d)
    turned = rotate(cells.astype(jnp.float32), by).astype(k.dtype)
    turned = jnp.swapaxes(turned.reshape(n_streams, n_cells, n_heads, d), 1, 2)
    return jnp.where((shift != 0)[:, None, :, None], turned, k)
