"""One token of each of several sequences, the rows of a decode loop: their cells without batch and plan.

    seqs    [ 0  1  2  S ]     row r belongs to sequence seqs[r]; S in padding
    active  [ 1  0  1  0 ]     rows that are not active take no cell and change nothing

R rows, S sequences, C cells a stream.
"""

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig
from ubjax.memory import ops
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.cells import Cells
from ubjax.memory.slots import Rows, apply, find_with
from ubjax.ragged import set_of
from ubjax.status import Reason, Status
from ubjax.typing import Array, Bool, Int32


def sections(pos: Int32[Array, " R"], n_pos: int) -> Int32[jax.Array, "P R"]:
    """The P positions of text rows: the first three are the same, the fourth is 0 (M-RoPE)."""
    return jnp.where(jnp.arange(n_pos, dtype=jnp.int32)[:, None] < 3, jnp.asarray(pos)[None], 0)


def place_one_each(
    cells: AllCells,
    seqs: Int32[Array, " R"],
    pos: Int32[Array, " R"],
    active: Bool[Array, " R"],
    caches: Caches,
) -> tuple[tuple[Int32[jax.Array, " R"], ...], AllCells, Status]:
    """The cells of the active rows in every cache, by row (C for the others), and the caches' cells with them written.

    As the engine places one ubatch of these rows in ascending order of their sequences. All or nothing: NO_SLOT (found,
    needed: cells of the stream that has too few) when a cache has no room; the cells are then the given ones.
    """
    slots, after, status = [], [], Status.ok()
    for own, config in zip(cells, caches, strict=True):
        slot, new, found = _place(own, jnp.asarray(seqs), jnp.asarray(pos), jnp.asarray(active), config)
        slots.append(slot)
        after.append(new)
        status = status.merge(found)
    ok = status.code == 0
    kept = jax.tree.map(lambda new, old: jnp.where(ok, new, old), tuple(after), cells)
    return tuple(jnp.where(ok, s, c.n_cells) for s, c in zip(slots, caches, strict=True)), kept, status


def _place(
    cells: Cells, seqs: jax.Array, pos: jax.Array, active: jax.Array, config: MemoryConfig
) -> tuple[jax.Array, Cells, Status]:
    R, C = seqs.shape[0], config.n_cells
    order = jnp.argsort(~active, stable=True).astype(jnp.int32)  # the active rows first, as a slot wants them
    n = jnp.sum(active, dtype=jnp.int32)
    index = jnp.arange(R, dtype=jnp.int32)
    valid = index < n
    at = jnp.where(valid, order, R)
    rows = Rows(
        place=at,
        pos=sections(pos.at[at].get(mode="fill", fill_value=0), config.n_pos),
        seq=set_of(seqs.at[at].get(mode="fill", fill_value=config.n_seq_max), config.n_words)
        * valid[:, None].astype(jnp.uint32),
        stream=jnp.where(
            valid, 0 if config.unified else seqs.at[at].get(mode="fill", fill_value=0), config.n_streams
        ),
        rank=jnp.where(valid & config.unified, index, 0),
        valid=valid,
        n_sets=jnp.asarray(1, jnp.int32) if config.unified else jnp.maximum(n, 1),
        n_rows=n if config.unified else jnp.minimum(n, 1),
    )
    slot = find_with(cells, ops.used(cells), rows, config.n_swa, config)
    written = apply(cells, rows, slot.index, config)
    status = Status.of(Reason.NO_SLOT, where=0, found=slot.found, needed=rows.n_rows).when(~slot.ok)
    by_row = jnp.full(R, C, jnp.int32).at[at].set(slot.index, mode="drop")
    return by_row, written, status
