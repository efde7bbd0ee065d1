"""Rows of a cache taken out of their cells and put into others: how a saved state leaves and enters.

M rows of a bucket, the first n of them real; padding has the cell C, out of range. NS streams, C cells a stream, W
words of a sequence set, P positions a row, Xp1 of them kept by cells (1 when P = 1, else 3).
"""

from functools import partial

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig
from ubjax.memory import ops
from ubjax.memory.cells import Cells
from ubjax.memory.slots import Rows, apply, find_with
from ubjax.memory.window import out_of_window
from ubjax.pytree import pytree
from ubjax.ragged import has_seq
from ubjax.typing import Array, Bool, Flag, Float, Int32, Scalar, UInt32


@pytree
class Placed:
    """Rows in their cells: `index` [M] ascending. When not `ok`: the cells as given, and `found` usable ones."""

    cells: Cells
    index: Int32[jax.Array, " M"]
    ok: Flag
    found: Int32[jax.Array, ""]


@partial(jax.jit, static_argnames="config")
def place_rows(
    cells: Cells,
    pos: Int32[Array, "Xp1 M"],
    seq: UInt32[Array, "M W"],
    stream: Scalar,
    n: Scalar,
    n_swa: Scalar,
    config: MemoryConfig,
) -> Placed:
    """Find cells of a stream for n rows, as `find_slot` does, and write them there; all or none.

    pos: (position, y, x) of each row, or the position alone when P = 1. The rows take the cells in ascending order,
    so that rows of one position keep theirs.
    """
    M, zero = pos.shape[1], jnp.asarray(0, jnp.int32)
    rank = jnp.arange(M, dtype=jnp.int32)
    valid = rank < n
    sections = jnp.zeros((config.n_pos, M), jnp.int32).at[: pos.shape[0]].set(pos)
    rows = Rows(
        place=rank,
        pos=sections,
        seq=jnp.asarray(seq),
        stream=jnp.where(valid, stream, config.n_streams),
        rank=jnp.where(valid, rank, 0),
        valid=valid,
        n_sets=zero + 1,
        n_rows=zero + n,
    )
    slot = find_with(cells, ops.used(cells), rows, n_swa, config)
    index = jnp.sort(slot.index)
    return Placed(cells=apply(cells, rows, index, config), index=index, ok=slot.ok, found=slot.found)


@partial(jax.jit, static_argnames="config")
def seen_at_the_end(
    pos: Int32[Array, " M"], seq: UInt32[Array, "M W"], n_swa: Scalar, config: MemoryConfig
) -> Bool[jax.Array, " M"]:
    """Which rows the windows of their sequences still hold for the position after the sequence's last row.

    Padding: pos -1 and an empty set; it is not seen.
    """
    pos = jnp.asarray(pos)
    _, last = ops.span_by_seq(pos, seq, config.n_seq_max)

    def look(s: jax.Array, seen: jax.Array) -> jax.Array:
        passed = out_of_window(pos, last[s][None] + 1, n_swa, config.swa_type)
        return seen | (has_seq(seq, s) & ~passed)

    return jax.lax.fori_loop(0, config.n_seq_max, look, jnp.zeros(pos.shape, bool))


@jax.jit
def take_rows(
    cache: Float[Array, "NS Hk Ckv D"], stream: Scalar, index: Int32[Array, " M"]
) -> Float[jax.Array, "Hk M D"]:
    """Some cells of a stream in K or V of one layer; zeros where the index is out of range."""
    rows = jnp.asarray(cache).at[stream, :, index].get(mode="fill", fill_value=0)
    return rows.transpose(1, 0, 2)


def put_rows(
    cache: Float[Array, "NS Hk Ckv D"],
    rows: Float[Array, "Hk M D"],
    stream: Scalar,
    index: Int32[Array, " M"],
) -> Float[jax.Array, "NS Hk Ckv D"]:
    """K or V of one layer with rows written into cells of a stream; an index out of range drops its row."""
    heads = jnp.arange(cache.shape[1], dtype=jnp.int32)
    at = (stream, heads[:, None], jnp.asarray(index)[None, :])
    return jnp.asarray(cache).at[at].set(rows, mode="drop")
