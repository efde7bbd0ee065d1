"""EngineState: the cells and K/V of an engine, and what becomes of them when a program fails.

step fails          its ubatch never happened, earlier ones stay     unless K/V went with it: an empty cache, LOST
K/V grows           before the first ubatch, to the bucket that holds every slot
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ubjax.batch import Batch
from ubjax.buckets import Bucket, Buckets
from ubjax.control import Staged
from ubjax.memory import caches
from ubjax.memory.caches import AllCells
from ubjax.memory.init_batch import Prepared
from ubjax.memory.kv import AllKV, grow
from ubjax.pooling import HiddenRows
from ubjax.saving import Saving
from ubjax.status import DecodeError, Reason, refusal
from ubjax.step import Step
from ubjax.usage import Usage
from ubjax.whole_decode import whole_program


class EngineState(Saving):
    """The only state there is. Cells lie on the `_control` device, K/V beside the weights of `_step`."""

    buckets: Buckets
    usage: Usage
    _step: Step
    _kv_dtype: str
    _control: Any

    @property
    def device(self) -> Any:
        """Where the weights, K/V and logits are."""
        return self._step.device

    def clear(self) -> None:
        """Empty the cache; K/V is allocated by the next decode, in the bucket that this one needs."""
        self._kept = {}
        self._cells: AllCells = jax.device_put(caches.empty(self.caches), self._control)
        self._kv: AllKV = ()

    def _launch(self, staged: Staged, hidden: HiddenRows | None = None) -> jax.Array:
        """Start a step: K/V is the one that it will have written, the cells are those without its ubatch."""
        try:
            if hidden is None:
                logits, self._kv = self._step(self._kv, staged)
            else:
                logits, rows, self._kv = self._step.with_hidden(self._kv, staged)
                hidden.add(rows, staged.ubatch.batch_idx)
        except BaseException as error:  # an interrupt too may leave K/V half way
            failure = self._lost() or self._cut_back(staged)
            if isinstance(error, Exception):
                raise failure from error
            raise
        return logits

    def _launch_whole(self, batch: Batch, prepared: Prepared, bucket: Bucket, n_outputs: int) -> jax.Array:
        """Start all ubatches of a batch as one program; a failure leaves the cells as they are."""
        program, n_vocab = whole_program(*self._step.structure, self.caches), self.batch_config.n_vocab
        with self._nothing_or_lost():
            given = jax.device_put((self._cells, batch, prepared), self.device)
            logits, self._kv = program(self._step.leaves, self._kv, *given, bucket, n_vocab, n_outputs)
        return logits

    def _finish(self, logits: jax.Array, cells: AllCells) -> None:
        """Wait for the step of these logits; only now, when it is known to have run, do the cells advance."""
        try:
            logits.block_until_ready()  # the results of one program are ready, or lost, together
        except BaseException as error:  # an interrupt too: cells of a window may have been overwritten
            self.clear()
            if isinstance(error, Exception):
                raise refusal(Reason.LOST, where=-1, found=0, needed=0) from error
            raise
        self._cells = cells

    def _cut_back(self, staged: Staged) -> DecodeError:
        """Undo a failed step: its ubatch never happened, earlier ones stay."""
        ubatch = jax.device_get(staged.ubatch)
        for s in ubatch.seq_id_unq[: int(ubatch.n_seqs_unq)]:
            rows = ubatch.valid & ((ubatch.seq[:, s // 32] >> np.uint32(s % 32)) & 1 != 0)
            p0 = np.int32(ubatch.pos[0, rows].min())
            self._cells = caches.rm(self._cells, np.int32(s), p0, np.int32(-1), self.caches)
        return refusal(Reason.STEP_FAILED, where=-1, found=0, needed=0)

    def _lost(self) -> DecodeError | None:
        """The failure and an empty cache, when the K/V buffers were taken over by a program that failed."""
        if not any(x.is_deleted() for x in jax.tree.leaves(self._kv)):
            return None
        self.clear()
        return refusal(Reason.LOST, where=-1, found=0, needed=0)

    @contextlib.contextmanager
    def _nothing_or_lost(self) -> Iterator[None]:
        """What fails here has changed nothing, or K/V went with it: an empty cache."""
        try:
            yield
        except BaseException as error:  # an interrupt too may have cost K/V
            failure = self._lost() or refusal(Reason.STEP_FAILED, where=-1, found=0, needed=0)
            if isinstance(error, Exception):
                raise failure from error
            raise

    def _update(self, n_copies: int, rotate: bool) -> None:
        """Let K and V follow what sequence operations did to the cells; a failure leaves that pending."""
        with self._nothing_or_lost():
            kv = self._kv
            if n_copies:
                kv = self._step.update(kv, self._cells, self.buckets.n_copies.pick(n_copies), False)
            if rotate:
                kv = self._step.update(kv, self._cells, 0, True)
            jax.tree.leaves(kv)[0].block_until_ready()
        self._cells, self._kv = caches.settle(self._cells), kv

    def _grow(self, n_kv: Sequence[Any]) -> None:
        sizes = self.buckets.pick_kv(int(n) for n in n_kv)
        if not self._kv:
            self._kv = self._step.new_kv(sizes, self._kv_dtype)
        elif sizes[0] > self._kv[0].n_cells:
            pairs = zip(self._kv, sizes, strict=True)
            self._kv = tuple(grow(own, size) if size > own.n_cells else own for own, size in pairs)

    def _kv_sizes(self) -> tuple[int, ...]:
        return tuple(kv.n_cells for kv in self._kv)
