"""Prepare: the slots of all ubatches of a batch, all or nothing, as one program however many there are.

T rows a batch can hold, M rows of a window onto one ubatch, NS streams, C cells a stream.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory import ops
from ubjax.memory.cells import Cells
from ubjax.memory.slots import apply, find_with, ubatch_rows
from ubjax.pytree import pytree
from ubjax.split.plan import SplitPlan
from ubjax.status import Reason, Status
from ubjax.typing import I32, Int32, Scalar


@pytree
class _Trial:
    """The state of `prepare` before ubatch k; `used`, `top`: used cells and used_max_p1 of each stream."""

    k: Int32[jax.Array, ""]
    cells: Cells
    used: Int32[jax.Array, " NS"]
    top: Int32[jax.Array, " NS"]
    slot: Int32[jax.Array, " T"]
    n_kv: Int32[jax.Array, ""]
    status: Status


def _try_next(
    trial: _Trial, batch: Batch, plan: SplitPlan, n_swa: Scalar, config: MemoryConfig, max_rows: int
) -> _Trial:
    """Find and apply the slot of ubatch k on the trial state."""
    rows = ubatch_rows(batch, plan, trial.k, config, max_rows=max_rows)
    slot = find_with(trial.cells, trial.used, rows, n_swa, config)
    cells = apply(trial.cells, rows, slot.index, config)
    if config.swa_type is SwaType.NONE:
        used = trial.used.at[rows.stream].add(1, mode="drop")
        top = trial.top.at[rows.stream].max(slot.index + 1, mode="drop")
    else:
        used, top = ops.used(cells), ops.used_max_p1(cells)
    n_kv = jnp.max(top.at[rows.stream].get(mode="fill", fill_value=0))
    failed = Status.of(Reason.NO_SLOT, where=trial.k, found=slot.found, needed=rows.n_rows)
    return _Trial(
        k=trial.k + 1,
        cells=cells,
        used=used,
        top=top,
        slot=trial.slot.at[rows.place].set(slot.index, mode="drop"),
        n_kv=jnp.maximum(trial.n_kv, n_kv),
        status=failed.when(~slot.ok),
    )


@partial(jax.jit, static_argnames=("config", "max_rows"))
def prepare(
    cells: Cells, batch: Batch, plan: SplitPlan, config: MemoryConfig, *, max_rows: int
) -> tuple[Int32[jax.Array, " T"], Cells, I32, Status]:
    """Find the slots of all ubatches, one after the other: (slot [T] by place, cells, n_kv_needed, status).

    `cells` are those after the last ubatch; pending shifts and copies stay pending (see `ops.settle`).
    n_kv_needed is the largest used_max_p1 of a stream that a ubatch touches. All or nothing: when a ubatch
    finds no slot, the status is NO_SLOT (where: the ubatch, found: usable cells of the stream that failed,
    needed: its rows), the cells are the ones given, bit for bit, every slot is C and n_kv_needed is 0.
    max_rows: M, no ubatch has more rows.
    """
    return prepare_after(Status.ok(), cells, batch, plan, config.n_swa, config, max_rows=max_rows)


@partial(jax.jit, static_argnames=("config", "max_rows"))
def prepare_after(
    status: Status,
    cells: Cells,
    batch: Batch,
    plan: SplitPlan,
    n_swa: Scalar,
    config: MemoryConfig,
    *,
    max_rows: int,
) -> tuple[Int32[jax.Array, " T"], Cells, I32, Status]:
    """`prepare` unless `status` holds an error already; the window's size is data, one program for all."""
    before = jax.tree.map(jnp.asarray, cells)
    T, zero = batch.token.shape[0], jnp.asarray(0, jnp.int32)
    max_rows = min(max_rows, T)
    trial = jax.lax.while_loop(
        lambda t: (t.k < plan.n_ubatches) & (t.status.code == 0),
        lambda t: _try_next(t, batch, plan, n_swa, config, max_rows),
        _Trial(
            k=zero,
            cells=before,
            used=ops.used(before),
            top=ops.used_max_p1(before),
            slot=jnp.full(T, config.n_cells, jnp.int32),
            n_kv=zero,
            status=jax.tree.map(jnp.asarray, status),
        ),
    )
    ok = trial.status.code == 0
    after = jax.tree.map(lambda new, old: jnp.where(ok, new, old), trial.cells, before)
    slot = jnp.where(ok, trial.slot, config.n_cells)
    return slot, after, jnp.where(ok, trial.n_kv, 0), trial.status
