"""The control plane of a decode as jitted programs: plan a batch, advance the cells by a ubatch, stage its rows.

Integers and cells only, no weights and no K/V.

They run on the device of the cells (the engine keeps them on the CPU beside an accelerator) or inside a
larger program.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.buckets import Bucket
from ubjax.config import BatchConfig, as_choice
from ubjax.memory.caches import AllCells, Caches, pending, seq_ranges
from ubjax.memory.init_batch import Mode, Prepared, init_batch
from ubjax.memory.slots import apply_slot
from ubjax.pytree import pack, pytree
from ubjax.ragged import first_seq
from ubjax.split.plan import SplitPlan
from ubjax.typing import I32, Array, Choice, Flag, Int32, Scalar
from ubjax.ubatch import Ubatch, take_ubatch
from ubjax.validate import validate


def required_ubatch(batch: Batch, *, causal: Choice = True) -> int:
    """The n_ubatch that a decode of this batch needs at least, in rows.

    1, or when it isn't causal all its tokens: each row is to see every other of its sequence, so none may come later.
    """
    return 1 if as_choice(causal, "causal") else int(batch.n_tokens)


@partial(jax.jit, static_argnames=("config", "caches", "max_rows"))
def plan_decode(
    batch: Batch,
    cells: AllCells,
    n_ubatch: I32,
    mode: Mode,
    config: BatchConfig,
    caches: Caches,
    max_rows: int,
) -> tuple[Prepared, Int32[jax.Array, " packed"]]:
    """Validate a batch, split it and find its slots; returns that and, packed, what the host needs of it.

    The first error is the status; the cells are then the given ones. Packed: (plan, status, n_kv_needed, pending),
    pending as `memory.caches.pending` says. max_rows: static bound on the rows of a ubatch, n_ubatch <= max_rows.
    """
    pos_min, pos_max = seq_ranges(cells, caches)
    invalid = validate(batch, pos_min, pos_max, config)
    prepared = init_batch(cells, batch, n_ubatch, caches, max_rows=max_rows, mode=mode)
    final = jax.tree.map(lambda new, old: jnp.where(invalid.code == 0, new, old), prepared.cells, cells)
    prepared = dataclasses.replace(prepared, cells=final, status=invalid.merge(prepared.status))
    return prepared, pack((prepared.plan, prepared.status, prepared.n_kv_needed, pending(cells)))


@pytree
class Staged:
    """What one step needs: the cells with this ubatch in them, its rows, their slots and the first stream it reads.

    Cells and slots are those of each cache. `causal`: whether a row sees no later position.
    """

    cells: AllCells
    ubatch: Ubatch
    slot: tuple[Int32[Array, " R"], ...]
    first_stream: I32
    causal: Flag


@partial(jax.jit, static_argnames="caches")
def advance(
    cells: AllCells,
    batch: Batch,
    plan: SplitPlan,
    slot: tuple[Int32[Array, " T"], ...],
    k: I32,
    caches: Caches,
) -> AllCells:
    """The cells with ubatch k in them. After the last ubatch they are those of the prepared batch, bit for bit."""
    triples = zip(cells, slot, caches, strict=True)
    return tuple(apply_slot(own, batch, plan, at, k, config) for own, at, config in triples)


def stage(
    cells: AllCells,
    batch: Batch,
    plan: SplitPlan,
    slot: tuple[Int32[Array, " T"], ...],
    k: Scalar,
    causal: Flag,
    bucket: Bucket,
    caches: Caches,
) -> Staged:
    """Ubatch k beside the cells that have it in them (see `advance`)."""
    ubatch, rows, first_stream = stage_rows(batch, plan, slot, k, bucket, caches)
    return Staged(cells=cells, ubatch=ubatch, slot=rows, first_stream=first_stream, causal=causal)


@partial(jax.jit, static_argnames=("bucket", "caches"))
def stage_rows(
    batch: Batch,
    plan: SplitPlan,
    slot: tuple[Int32[Array, " T"], ...],
    k: I32,
    bucket: Bucket,
    caches: Caches,
) -> tuple[Ubatch, tuple[Int32[jax.Array, " R"], ...], I32]:
    """The rows of ubatch k in a bucket, their slots in each cache, and the first stream that the step reads.

    With streams, block b of the ubatch stands for stream first_stream + b, so that a step reads consecutive
    streams; a ubatch near the last stream starts at a later block.
    """
    memory, pairs = caches[0], list(zip(slot, caches, strict=True))
    row = jnp.asarray(plan.order)[jnp.asarray(plan.offset)[k]]
    lead = jnp.int32(0) if memory.unified else first_seq(jnp.asarray(batch.seq)[row])
    first_stream = jnp.minimum(lead, memory.n_streams - bucket.n_blocks)
    ubatch = take_ubatch(batch, plan, k, bucket, lead - first_stream)
    rows = tuple(
        jnp.asarray(at).at[ubatch.place].get(mode="fill", fill_value=config.n_cells) for at, config in pairs
    )
    return ubatch, rows, first_stream
