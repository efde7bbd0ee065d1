"""What becomes of one batch: its plan, the cells of every ubatch, what their rows see; by the functions that decode.

T  rows a batch can hold    NS  streams    C  cells a stream    Sb, Lb  blocks of a ubatch and rows of each
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ubjax.batch import Batch
from ubjax.buckets import Buckets
from ubjax.config import MemoryConfig, as_integer, round_up
from ubjax.host_batch import on_host
from ubjax.memory.cells import Cells, cell_rows
from ubjax.memory.mask import attention_mask
from ubjax.memory.prepare import prepare
from ubjax.memory.slots import apply_slot
from ubjax.pictures import CellRows, TokenRows
from ubjax.pictures.mask import MaskRows
from ubjax.pictures.wording import amount, ids_of, noun
from ubjax.split.plan import SplitPlan
from ubjax.status import sentence
from ubjax.typing import Int32, Whole
from ubjax.ubatch import Ubatch, take_ubatch, token_rows
from ubjax.viz.plan_view import BatchView, PlanView
from ubjax.viz.strategies import STRATEGIES, why_refused


class Way:
    """A batch, its `plan` and the `cells` after it; `refused` says why it has none, in a sentence."""

    def __init__(
        self,
        batch: Any,
        n_ubatch: Whole,
        strategy: str,
        memory: MemoryConfig | None,
        cells: Cells | None,
        texts: Sequence[str] | None,
    ):
        self.batch = on_host(batch)
        self.n_ubatch = as_integer(n_ubatch, "n_ubatch")
        if strategy not in STRATEGIES:
            raise ValueError(f"the strategy is {strategy!r}, one of {', '.join(STRATEGIES)} is needed")
        if texts is not None and len(texts) != self.batch.n_tokens:
            found, needed = len(texts), int(self.batch.n_tokens)
            raise ValueError(
                f"there {noun(found, 'is', 'are')} {amount(found, 'text')}, {needed} "
                f"{noun(needed, 'is', 'are')} needed: one for each token"
            )
        self.texts = texts
        host = BatchView.of(self.batch)
        self.memory = _memory_for(host, strategy) if memory is None else memory
        self._before = _checked(cells, memory) if cells is not None else Cells.empty(self.memory)
        _check_streams(host, strategy, self.memory)
        self.batch = _with_words(self.batch, self.memory)
        self.plan: SplitPlan = jax.device_get(STRATEGIES[strategy](self.batch, self.n_ubatch, 0))
        self.view = PlanView(host, self.plan, self._buckets())
        self.refused = why_refused(strategy, self.view)
        self.after, self._n_kv = self._before, 0
        self.slot = np.full(self.batch.capacity, self.memory.n_cells, np.int32)
        if self.refused is None and len(self.view):
            self._prepare()

    def _buckets(self) -> Buckets:
        return Buckets.default(
            n_batch=self.batch.capacity,
            n_ubatch=self.n_ubatch,
            n_streams=self.memory.n_seq_max,
            n_cells=(1,),
            kv_pad=1,
        )

    def _prepare(self) -> None:
        n = max(1, min(self.n_ubatch, self.batch.capacity))
        found = prepare(self._before, self.batch, self.plan, self.memory, max_rows=n)
        self.slot, self.after, n_kv, status = jax.device_get(found)
        self._n_kv = int(n_kv)
        if int(status.code):
            self.refused = sentence(status)

    def stream(self, row: int) -> int:
        """The stream of a batch row's cells."""
        return 0 if self.memory.unified else int(self.view.batch.first_seq[row])

    def tokens(self) -> TokenRows:
        """The rows of the batch."""
        rows = np.arange(int(self.batch.n_tokens), dtype=np.int32)
        return dataclasses.replace(TokenRows.of(self.batch, rows, rows), texts=self.texts)

    def written(self) -> dict[tuple[int, int], str]:
        """By stream and cell, the token that this batch put there."""
        if self.refused is not None:
            return {}
        found = {}
        for k, ubatch in enumerate(self.view):
            for row, cell in zip(ubatch.batch_idxs, self.slot[self.plan.offset[k] :], strict=False):
                found[self.stream(int(row)), int(cell)] = f"token {row}, ubatch {k}"
        return found

    def ubatch(self, k: int) -> tuple[TokenRows, Int32[np.ndarray, "Sb Lb"]]:
        """The rows of ubatch k in its bucket, as `token_rows` gives them; each says which cell it goes to."""
        ubatch = jax.device_get(self._take(k, 0))
        tokens, places = token_rows(ubatch)
        texts = None if self.texts is None else [self.texts[row] for row in tokens.row]
        notes = None
        if self.refused is None:
            cells = self.slot[ubatch.place[ubatch.valid]]
            several = self.memory.n_streams > 1
            notes = [
                f"cell {cell}" + (f" of stream {self.stream(int(row))}" if several else "")
                for row, cell in zip(tokens.row, cells, strict=True)
            ]
        return dataclasses.replace(tokens, texts=texts, notes=notes), places

    def _take(self, k: int, first_block: int) -> Ubatch:
        return take_ubatch(self.batch, self.plan, np.int32(k), self.view[k].bucket, np.int32(first_block))

    def masks(self, n: int) -> list[MaskRows]:
        """What the rows of the first n ubatches see, of the cells as they are when the ubatch runs."""
        masks, cells = [], self._before
        for k in range(min(n, len(self.view)) if self.refused is None else 0):
            cells = apply_slot(cells, self.batch, self.plan, self.slot, np.int32(k), self.memory)
            masks.append(self._mask(k, cells))
        return masks

    def _mask(self, k: int, cells: Cells) -> MaskRows:
        bucket = self.view[k].bucket
        lead = self.stream(int(self.view[k].batch_idxs[0]))
        # block b stands for stream first + b, so that consecutive streams are read, as in a decode
        first = min(lead, max(0, self.memory.n_streams - bucket.n_blocks))
        ubatch = self._take(k, lead - first)
        sees = attention_mask(cells, ubatch, self._n_kv, self.memory, np.int32(first))
        tokens, places = token_rows(jax.device_get(ubatch))
        texts = None if self.texts is None else [self.texts[row] for row in tokens.row]
        blocks = np.arange(bucket.n_blocks, dtype=np.int32)
        return MaskRows(
            sees=np.asarray(sees),
            tokens=dataclasses.replace(tokens, texts=texts),
            places=places,
            cells=cell_rows(jax.device_get(cells)),
            stream=np.zeros_like(blocks) if self.memory.unified else first + blocks,
        )

    def cells(self) -> CellRows:
        """The cells after the batch; the given ones when it was refused."""
        return cell_rows(jax.device_get(self.after))


def _memory_for(batch: BatchView, strategy: str) -> MemoryConfig:
    """A cache for this batch alone, with a little room to spare."""
    if not batch.n_tokens:
        return MemoryConfig(n_cells=8)
    unified = strategy in ("simple", "equal-any") or bool((batch.n_seqs > 1).any())
    most = batch.n_tokens if unified else int(np.bincount(batch.first_seq).max())
    n_seq_max = int(batch.sequences().max()) + 1
    return MemoryConfig(n_cells=round_up(most + 1, 8), n_seq_max=n_seq_max, unified=unified)


def _check_streams(batch: BatchView, strategy: str, memory: MemoryConfig) -> None:
    if memory.unified:
        return
    shared = np.flatnonzero(batch.n_seqs > 1)
    if shared.size or strategy in ("simple", "equal-any"):
        why = f"token {shared[0]} is in several sequences" if shared.size else f"{strategy} mixes sequences"
        raise ValueError(f"the memory has a stream for each sequence but {why}: a unified one is needed")


def _checked(cells: Cells, memory: MemoryConfig | None) -> Cells:
    """The cells given, if they are those of the memory given."""
    if memory is None:
        raise ValueError("cells were given without the memory they belong to: it is needed")
    needed = (memory.n_streams, memory.n_cells, memory.n_words)
    if tuple(cells.seq.shape) != needed:
        raise ValueError(
            f"the cells have shape {list(cells.seq.shape)}, [NS, C, W] = {list(needed)} is needed"
        )
    return cells


def _with_words(batch: Batch, memory: MemoryConfig) -> Batch:
    """The batch with sets of as many words as the memory's; every sequence has to be one that the memory knows."""
    words = np.zeros((batch.capacity, memory.n_words), np.uint32)
    n = min(memory.n_words, batch.seq.shape[1])
    words[:, :n] = batch.seq[:, :n]
    ids = ids_of(np.bitwise_or.reduce(batch.seq[: int(batch.n_tokens)], axis=0, initial=0))
    if ids.size and ids[-1] >= memory.n_seq_max:
        raise ValueError(
            f"the batch has tokens of sequence {ids[-1]}, one in [0, {memory.n_seq_max}) is needed for this memory"
        )
    return dataclasses.replace(batch, seq=words)
