"""Attention of a ubatch's rows over the cells of a cache: write the rows' K and V, then attend all of the cache.

R = Sb * Lb rows; B blocks that attend one stream each: Sb, or 1 when the cache has one stream (then all rows
attend it); NS streams, Ckv cells, H query heads in G groups over Hk key heads, D width of a head.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.models.config import DecoderConfig
from ubjax.models.layers import Linear, RMSNorm, soft_cap
from ubjax.models.matrix import Store
from ubjax.models.rope import Rotation, rotate
from ubjax.pytree import pytree
from ubjax.typing import I32, Array, Bool, Float, Int32

# On CPU, measured: rows of a tile, and from how many rows (of a block) and cells on tiles pay (docs/log.md).
TILE, TILED_ROWS, TILED_CELLS = 128, 32, 256
FEW_ROWS = 64  # of all query heads of a key head, up to which keys are the left operand


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
    NaN: their scores are replaced, their V is zeroed. On CPU many rows go in tiles (`_attend_tiles`).
    """
    n_rows, n_heads, d = q.shape
    n_streams, n_kv_heads = k.shape[:2]
    n_blocks = 1 if n_streams == 1 else access.mask.shape[0]
    if n_blocks < n_streams:
        k = jax.lax.dynamic_slice_in_dim(k, access.first_stream, n_blocks)
        v = jax.lax.dynamic_slice_in_dim(v, access.first_stream, n_blocks)
    length, groups = n_rows // n_blocks, n_heads // n_kv_heads
    # The rows of all query heads that share a key head become the rows of one matrix product.
    scale = d**-0.5 if scale is None else scale
    q = (q * scale).reshape(n_blocks, length, n_kv_heads, groups * d).transpose(0, 2, 1, 3)
    q = q.reshape(n_blocks, n_kv_heads, length * groups, d).astype(k.dtype)
    mask = access.mask.reshape(n_blocks, length, -1)
    args = (q, jnp.asarray(k), jnp.asarray(v), mask, jnp.asarray(access.valid))
    cells, tiles = (functools.partial(form, cap=cap) for form in (_attend_cells, _attend_tiles))
    in_tiles = _in_tiles(mask.shape)
    out = jax.lax.platform_dependent(*args, cpu=tiles, default=cells) if in_tiles else cells(*args)
    out = out.reshape(n_blocks, n_kv_heads, length, groups * d).transpose(0, 2, 1, 3)
    return out.reshape(n_rows, n_heads, d)


def _attend_cells(q: Array, k: Array, v: Array, mask: Array, valid: Array, cap: float | None) -> jax.Array:
    """What q [B, Hk, L G, D] gather from the first n cells of k and v; n is what mask [B, L, n] has."""
    length, n_cells = mask.shape[1:]
    k = k[:, :, :n_cells]
    v = jnp.where(valid[:, None, :n_cells, None], v[:, :, :n_cells], 0)
    score = soft_cap(_scores(q, k), cap)
    score = score.reshape(*q.shape[:2], length, -1, n_cells)
    score = jnp.where(mask[:, None, :, None], score, jnp.finfo(jnp.float32).min)
    # Divided behind the product: [m, d] values instead of [m, c] weights.
    weight = jnp.exp(score - jnp.max(score, axis=-1, keepdims=True)).reshape(*q.shape[:3], n_cells)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    return _product("bhmc,bhcd->bhmd", weight.astype(v.dtype), v) / total


def _in_tiles(mask: tuple[int, ...]) -> bool:
    """Whether rows with a mask [B, L, Ckv] of this shape go in tiles on CPU.

    At fewer rows it saves nothing in the whole model, and a single row's bits would depend on how many cells are read.
    """
    return mask[1] >= TILED_ROWS and mask[2] >= TILED_CELLS


def _attend_tiles(q: Array, k: Array, v: Array, mask: Array, valid: Array, cap: float | None) -> jax.Array:
    """As `_attend_cells`, in tiles of rows that each read a quarter, a half, three quarters or all of the cells.

    As many as it takes to the last cell that a row of the tile sees: the rows of a prompt see no later cells than
    their own, and a cache is filled from its first cell on. What is left out would have had weights of 0.
    """
    n_blocks, n_kv_heads, n_all, d = q.shape
    length, n_cells = mask.shape[1:]
    tile = TILE if length % TILE == 0 else length
    n_tiles, quarter = length // tile, -(-n_cells // 4)
    q = jnp.moveaxis(q.reshape(n_blocks, n_kv_heads, n_tiles, n_all // n_tiles, d), 2, 0)
    mask = jnp.moveaxis(mask.reshape(n_blocks, n_tiles, tile, n_cells), 1, 0)
    seen = jnp.arange(1, n_cells + 1, dtype=jnp.int32)[None, :] * jnp.any(mask, axis=(1, 2))
    which = jnp.maximum(jnp.max(seen, axis=1) - 1, 0) // quarter

    def first(n: int) -> Callable[..., jax.Array]:
        return lambda q, mask: _attend_cells(q, k, v, mask[:, :, :n], valid, cap)

    parts = [first(min(i * quarter, n_cells)) for i in range(1, 5)]
    out = jax.lax.map(lambda of: jax.lax.switch(of[0], parts, *of[1:]), (which, q, mask))
    return jnp.moveaxis(out, 0, 2).reshape(n_blocks, n_kv_heads, n_all, d)


def _scores(q: Array, k: Array) -> jax.Array:
    """Products of q [B, Hk, M, D] and k [B, Hk, C, D]; for few rows on CPU k is the left operand, not copied."""
    if q.shape[2] > FEW_ROWS or k.dtype != jnp.float32:
        return _product("bhmd,bhcd->bhmc", q, k)
    return jax.lax.platform_dependent(
        q,
        k,
        cpu=lambda q, k: jnp.swapaxes(jax.lax.optimization_barrier(_product("bhcd,bhmd->bhcm", k, q)), 2, 3),
        default=lambda q, k: _product("bhmd,bhcd->bhmc", q, k),
    )


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
