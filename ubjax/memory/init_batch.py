"""What an attention memory does with a batch before anything runs: choose the split, find every slot.

T rows a batch can hold, M rows of a window onto one ubatch.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.batch import Batch
from ubjax.config import MemoryConfig
from ubjax.memory.cells import Cells
from ubjax.memory.prepare import prepare_after
from ubjax.memory.window import any_size
from ubjax.pytree import pytree
from ubjax.ragged import count_seqs
from ubjax.split.equal import split_equal
from ubjax.split.plan import SplitPlan
from ubjax.split.seq import split_seq
from ubjax.split.simple import split_simple
from ubjax.status import Reason, Status
from ubjax.typing import I32, Array, Int32, Scalar


@pytree
class Prepared:
    """A batch that is ready to run, or the status that says why it isn't.

    `slot` by place in plan.order, C at padding; `cells` after the last ubatch (the given ones, bit for bit,
    unless the status is OK); `n_kv_needed` cells that a step of this batch must attend at most.
    """

    plan: SplitPlan
    slot: Int32[Array, " T"]
    cells: Cells
    n_kv_needed: I32
    status: Status


def init_batch(
    cells: Cells,
    batch: Batch,
    n_ubatch: Scalar,
    config: MemoryConfig,
    *,
    max_rows: int,
    embd_all: bool = False,
) -> Prepared:
    """Cut a valid batch and find the slots of all its ubatches, all or nothing.

    Unified: split_simple. Streams: split_equal, sequential; or split_seq with `embd_all` (static; embeddings
    of every row, or a decode that is not causal). n_ubatch is data, `max_rows` its static bound: ubatches
    have at most min(n_ubatch, max_rows) rows. Status: SPLIT_FAILED when the split leaves rows over, or turns
    the order of a sequence round, or a row is in several streams; NO_SLOT as `prepare` says. As llama.cpp's
    init_batch.
    """
    # Two programs, so that a split is not compiled again for every size of cache.
    plan, cut = _cut(batch, n_ubatch, config.unified, embd_all, max_rows)
    window = np.int32(config.n_swa)
    slot, after, n_kv, status = prepare_after(
        cut, cells, batch, plan, window, any_size(config), max_rows=max_rows
    )
    return Prepared(plan=plan, slot=slot, cells=after, n_kv_needed=n_kv, status=status)


@partial(jax.jit, static_argnames=("unified", "embd_all", "max_rows"))
def _cut(
    batch: Batch, n_ubatch: Scalar, unified: bool, embd_all: bool, max_rows: int
) -> tuple[SplitPlan, Status]:
    """The plan, and SPLIT_FAILED with the first token that has no ubatch to go into unless all of them have."""
    n_ubatch = jnp.minimum(jnp.asarray(n_ubatch, jnp.int32), max_rows)
    if unified:
        plan = split_simple(batch, n_ubatch)
    elif embd_all:
        plan = split_seq(batch, n_ubatch)
    else:
        plan = split_equal(batch, n_ubatch, sequential=True)
    T, n_tokens = batch.token.shape[0], jnp.asarray(batch.n_tokens)
    placed = jnp.zeros(T, bool).at[plan.order].set(True, mode="drop")
    if not unified:
        placed &= count_seqs(batch.seq) <= 1  # K/V rows of several streams can't be shared
    missing = ~placed & (jnp.arange(T, dtype=jnp.int32) < n_tokens)
    n_missing = jnp.sum(missing, dtype=jnp.int32)
    first = jnp.where(n_missing > 0, jnp.argmax(missing), -1)
    failed = Status.of(Reason.SPLIT_FAILED, where=first, found=n_tokens - n_missing, needed=n_tokens)
    return plan, failed.when((n_missing > 0) | ~jnp.asarray(plan.keeps_order))
