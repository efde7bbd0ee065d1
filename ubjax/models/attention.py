"""Attention of a ubatch's rows over the cells of a cache: write the rows' K and V, then attend all of the cache.

R = Sb * Lb rows; B blocks that attend one stream each: Sb, or 1 when the cache has one stream (then all rows
attend it); NS streams, Ckv cells, H query heads in G groups over Hk key heads, D width of a head.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.models.config import DecoderConfig
from ubjax.models.layers import Linear, RMSNorm, soft_cap
from ubjax.models.matrix import Store
from ubjax.models.rope import Rotation, rotate
from ubjax.pytree import pytree
from ubjax.typing import I32, Array, Bool, Float, Int32


@pytree
class CellAccess:
    """Where the rows of a ubatch keep their K and V, and what they see.

    `slot` and `stream` the row's cell and its stream, a slot >= Ckv (padding) is not written; block b attends
    stream `first_stream` + b. `mask`: the cells that a row sees; `valid`: the cells that hold anything, [1, Ckv] for
    one stream.
    """

    slot: Int32[Array, " R"]
    stream: Int32[Array, " R"]
    first_stream: I32
    mask: Bool[Array, "Sb Lb Ckv"]
    valid: Bool[Array, "B Ckv"]


def write_rows(
    cache: Float[Array, "NS Hk Ckv D"], rows: Float[Array, "R Hk D"], access: CellAccess
) -> Float[jax.Array, "NS Hk Ckv D"]:
    """The cache with the rows in their cells.

    One scatter with an index for every row and head. A single slice to write (all heads of a row, or one head of one
    row) XLA would turn into a slice update, compute that again inside the attention, and keep the old cache for it:
    a copy of the whole cache in every layer.
    """
    n_heads, n_cells = cache.shape[1:3]
    slot, stream = jnp.asarray(access.slot), jnp.asarray(access.stream)
    if rows.shape[:2] == (1, 1):
        rows, slot, stream = jnp.tile(rows, (2, 1, 1)), jnp.append(slot, n_cells), jnp.append(stream, 0)
    index = (stream[:, None], jnp.arange(n_heads, dtype=jnp.int32)[None, :], slot[:, None])
    return jnp.asarray(cache).at[index].set(rows.astype(cache.dtype), mode="drop")


def attend(
    q: Float[Array, "R H D"],
    k: Float[Array, "NS Hk Ckv D"],
    v: Float[Array, "NS Hk Ckv D"],
    access: CellAccess,
    scale: float | None = None,
    cap: float | None = None,
) -> Float[jax.Array, "R H D"]:
    """softmax(scale * q k) v over the cells that each row sees; finite for a row that sees nothing.

    `scale` is 1 / sqrt(D) unless it is given; with a `cap` scores are soft-capped. Cells that hold nothing may contain
    NaN: their scores are replaced, their V is zeroed.
    """
    n_rows, n_heads, d = q.shape
    n_streams, n_kv_heads, n_cells = k.shape[:3]
    n_blocks = 1 if n_streams == 1 else access.mask.shape[0]
    if n_blocks < n_streams:
        k = jax.lax.dynamic_slice_in_dim(k, access.first_stream, n_blocks)
        v = jax.lax.dynamic_slice_in_dim(v, access.first_stream, n_blocks)
    v = jnp.where(access.valid[:, None, :, None], v, 0)
    length, groups = n_rows // n_blocks, n_heads // n_kv_heads
    # The rows of all query heads that share a key head become the rows of one matrix product.
    scale = d**-0.5 if scale is None else scale
    q = (q * scale).reshape(n_blocks, length, n_kv_heads, groups * d).transpose(0, 2, 1, 3)
    q = q.reshape(n_blocks, n_kv_heads, length * groups, d).astype(k.dtype)
    score = soft_cap(_product("bhmd,bhcd->bhmc", q, k), cap)
    score = score.reshape(n_blocks, n_kv_heads, length, groups, n_cells)
    mask = access.mask.reshape(n_blocks, 1, length, 1, n_cells)
    weight = jax.nn.softmax(jnp.where(mask, score, jnp.finfo(jnp.float32).min), axis=-1)
    weight = weight.reshape(n_blocks, n_kv_heads, length * groups, n_cells).astype(v.dtype)
    out = _product("bhmc,bhcd->bhmd", weight, v)
    out = out.reshape(n_blocks, n_kv_heads, length, groups * d).transpose(0, 2, 1, 3)
    return out.reshape(n_rows, n_heads, d)


def _product(axes: str, a: Array, b: Array) -> jax.Array:
    return jnp.einsum(axes, a, b, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; q, k and v are stacked in one matrix.

    With `qk_norm` every head of q and k is normed before it is rotated.
    """

    def __init__(self, config: DecoderConfig, *, store: Store, rngs: nnx.Rngs):
        self.config = config
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        in_bias = any(name in config.biases for name in ("attn_q", "attn_k", "attn_v"))
        self.qkv = Linear(config.n_embd, n_q + 2 * n_kv, bias=in_bias, store=store, rngs=rngs)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.output = Linear(n_q, config.n_embd, bias="attn_output" in config.biases, store=store, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "R E"],
        k: Float[Array, "NS Hk Ckv D"],
        v: Float[Array, "NS Hk Ckv D"],
        access: CellAccess,
        at: Rotation,
    ) -> tuple[Float[jax.Array, "R E"], Float[jax.Array, "NS Hk Ckv D"], Float[jax.Array, "NS Hk Ckv D"]]:
        """What the rows gather, and the cache of this layer with them in it."""
        c = self.config
        heads = self.qkv(x).reshape(x.shape[0], c.n_heads + 2 * c.n_kv_heads, c.head_dim)
        q, new_k, new_v = jnp.split(heads, [c.n_heads, c.n_heads + c.n_kv_heads], axis=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, new_k = self.q_norm(q), self.k_norm(new_k)
        k = write_rows(k, rotate(new_k, at), access)
        v = write_rows(v, new_v, access)
        out = attend(rotate(q, at), k, v, access, c.attn_scale, c.attn_softcap)
        return self.output(out.reshape(x.shape[0], -1)), k, v
