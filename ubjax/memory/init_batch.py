"""What an attention memory does with a batch before anything runs: choose the split, find every slot.

T rows a batch can hold, M rows of a window onto one ubatch.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.batch import Batch
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.prepare import prepare_after
from ubjax.memory.window import any_size
from ubjax.pytree import pytree
from ubjax.ragged import count_seqs
from ubjax.split.equal import split_equal
from ubjax.split.limits import ALL_ROWS
from ubjax.split.plan import SplitPlan
from ubjax.split.seq import split_seq
from ubjax.split.simple import split_simple
from ubjax.status import Reason, Status
from ubjax.typing import I32, Array, Flag, Int32, Scalar


@pytree
class Mode:
    """How a batch is decoded, as data: one program for all.

    `causal`: a row sees no later position; otherwise all of its sequence, cached or in its ubatch. `embd_all`:
    embeddings of every row are wanted. `n_set_rows`: rows of a sequence in an equal ubatch of streams, at most.
    """

    causal: Flag
    embd_all: Flag
    n_set_rows: I32

    @classmethod
    def of(cls, *, causal: bool = True, embd_all: bool = False, n_set_rows: int | None = None) -> "Mode":
        """A mode on the host."""
        return cls(
            causal=np.asarray(causal, bool),
            embd_all=np.asarray(embd_all, bool),
            n_set_rows=np.asarray(ALL_ROWS if n_set_rows is None else n_set_rows, np.int32),
        )


CAUSAL = Mode.of()


@pytree
class Prepared:
    """A batch that is ready to run, or the status that says why it isn't; `slot`, `cells` and needs by cache.

    `slot` by place in plan.order, C at padding; `cells` after the last ubatch (the given ones, bit for bit,
    unless the status is OK); `n_kv_needed` cells that a step of this batch must attend at most. `causal` as the
    batch's `Mode` says it.
    """

    plan: SplitPlan
    slot: tuple[Int32[Array, " T"], ...]
    cells: AllCells
    n_kv_needed: tuple[I32, ...]
    causal: Flag
    status: Status


def init_batch(
    cells: AllCells,
    batch: Batch,
    n_ubatch: Scalar,
    caches: Caches,
    *,
    max_rows: int,
    mode: Mode = CAUSAL,
) -> Prepared:
    """Cut a valid batch and find the slots of all its ubatches in every cache, all or nothing.

    Unified: split_simple; where a window cache can't hold that, split_equal, not sequential (which may tear a sequence
    apart: not for a decode that isn't causal). Streams: split_equal, sequential; or split_seq with embeddings of every
    row, or when the decode isn't causal; the rows of a sequence then share a ubatch as long as n_ubatch is not below
    the batch's tokens (`control.required_ubatch`). `n_ubatch` is data, `max_rows` its static bound: ubatches have at
    most min(n_ubatch, max_rows) rows. Status: SPLIT_FAILED when the split leaves rows over, or turns the order of a
    sequence round, or a row is in several streams; NO_SLOT as `prepare` says. As llama.cpp's init_batch.
    """

    def attempt(strategy: str) -> Prepared:
        # Two programs, so that a split is not compiled again for every size of cache.
        plan, cut = _cut(batch, n_ubatch, mode, strategy, caches[0].unified, max_rows)
        return _place(plan, cut, cells, batch, caches, mode, max_rows)

    if not caches[0].unified:
        return attempt("streams")
    first = attempt("simple")
    if len(caches) == 1:
        return first

    def again() -> Prepared:
        second = attempt("equal")
        return jax.tree.map(lambda new, old: jnp.where(second.status.code == 0, new, old), second, first)

    return jax.lax.cond((first.status.code == Reason.NO_SLOT) & mode.causal, again, lambda: first)


def _place(
    plan: SplitPlan,
    cut: Status,
    cells: AllCells,
    batch: Batch,
    caches: Caches,
    mode: Mode,
    max_rows: int,
) -> Prepared:
    """Slots of a plan in every cache, or in none."""
    slots, after, needs, status = [], [], [], cut
    for own, config in zip(cells, caches, strict=True):
        slot, new, n_kv, status = prepare_after(
            status, own, batch, plan, np.int32(config.n_swa), any_size(config), max_rows=max_rows
        )
        slots.append(slot)
        after.append(new)
        needs.append(n_kv)
    ok = status.code == 0
    nowhere = tuple(jnp.full_like(slot, c.n_cells) for slot, c in zip(slots, caches, strict=True))
    none = jax.tree.map(jnp.asarray, (nowhere, cells, tuple(jnp.zeros_like(n) for n in needs)))
    found = (tuple(slots), tuple(after), tuple(needs))
    slot, after, needs = jax.tree.map(lambda new, old: jnp.where(ok, new, old), found, none)
    causal = jnp.asarray(mode.causal)
    return Prepared(plan=plan, slot=slot, cells=after, n_kv_needed=needs, causal=causal, status=status)


@partial(jax.jit, static_argnames=("strategy", "unified", "max_rows"))
def _cut(
    batch: Batch, n_ubatch: Scalar, mode: Mode, strategy: str, unified: bool, max_rows: int
) -> tuple[SplitPlan, Status]:
    """The plan, and SPLIT_FAILED with the first token that has no ubatch to go into unless all of them have."""
    n_ubatch = jnp.minimum(jnp.asarray(n_ubatch, jnp.int32), max_rows)
    match strategy:
        case "simple":
            plan = split_simple(batch, n_ubatch)
        case "streams":
            plan = jax.lax.cond(
                jnp.asarray(mode.embd_all) | ~jnp.asarray(mode.causal),
                lambda: split_seq(batch, n_ubatch),
                lambda: split_equal(batch, n_ubatch, 0, jnp.asarray(mode.n_set_rows), sequential=True),
            )
        case _:
            plan = split_equal(batch, n_ubatch, sequential=False)
    if (
        unified and strategy == "equal"
    ):  # all rows attend the one stream: to the step they are rows, not rectangles
        counts = jnp.diff(plan.offset)
        plan = dataclasses.replace(plan, n_seqs=counts, equal_seqs=jnp.zeros_like(plan.equal_seqs))
    T, n_tokens = batch.token.shape[0], jnp.asarray(batch.n_tokens)
    placed = jnp.zeros(T, bool).at[plan.order].set(True, mode="drop")
    if not unified:
        placed &= count_seqs(batch.seq) <= 1  # K/V rows of several streams can't be shared
    missing = ~placed & (jnp.arange(T, dtype=jnp.int32) < n_tokens)
    n_missing = jnp.sum(missing, dtype=jnp.int32)
    first = jnp.where(n_missing > 0, jnp.argmax(missing), -1)
    failed = Status.of(Reason.SPLIT_FAILED, where=first, found=n_tokens - n_missing, needed=n_tokens)
    return plan, failed.when((n_missing > 0) | ~jnp.asarray(plan.keeps_order))
