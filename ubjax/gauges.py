"""Gauges: how full the cache is, and whether a batch without a slot is too large now or for ever."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ubjax.batch import Batch
from ubjax.buckets import Buckets
from ubjax.config import BatchConfig, MemoryConfig, as_integer
from ubjax.control import plan_decode
from ubjax.host_batch import first_seq, on_host
from ubjax.memory.caches import AllCells
from ubjax.memory.init_batch import Mode
from ubjax.memory.kv import AllKV
from ubjax.memory_report import MemoryReport, memory_report
from ubjax.models.config import DecoderConfig
from ubjax.pictures.wording import noun
from ubjax.prefixes import Prefixes
from ubjax.status import NoSlotError, Status, sentence
from ubjax.typing import Whole


class Gauges(Prefixes):
    """What an engine says of the room in its cache, and how it makes some."""

    model_config: DecoderConfig
    batch_config: BatchConfig
    n_ubatch: int
    buckets: Buckets
    _kv: AllKV
    _kv_dtype: str

    @abc.abstractmethod
    def _grow(self, n_kv: Sequence[Any]) -> None:
        """Let K/V have room for n_kv cells a stream of each cache."""

    def reserve(self, n_kv: Whole) -> None:
        """Give K/V room for n_kv cells a stream at once; step by step, each size is a copy and programs of its own.

        `clear` and the removal of the last sequence undo it. Raises ValueError above the cells of a stream.
        """
        n, n_cells = as_integer(n_kv, "n_kv"), self.memory.n_cells
        if not 0 <= n <= n_cells:
            raise ValueError(f"n_kv is {n}, a number of cells in [0, {n_cells}] is needed")
        self._grow([min(n, ladder.top) for ladder in self.buckets.n_kv])

    def memory_report(self) -> MemoryReport:
        """Cells used, free and shared, bytes of K/V, and what still fits; a table in a terminal or a notebook."""
        return self._later_report()()

    def _later_report(self) -> Callable[[], MemoryReport]:
        """The report on the cells as they are now, made when it is asked for."""
        model = self.model_config
        row = 2 * model.n_kv_heads * model.head_dim * np.dtype(self._kv_dtype).itemsize
        of_cell = [row * len(model.cache_layers(c)) for c in range(len(self.caches))]
        held = [own.nbytes for own in self._kv] or [0] * len(self.caches)
        return functools.partial(memory_report, self._cells, self._without_kept(), self.caches, held, of_cell)

    def _without_kept(self) -> AllCells:
        """The cells once all kept sequences are given up, as a decode may do."""
        return self._emptied(self._cells, self._kept)

    def _no_slot(self, status: Status, batch: Batch, mode: Mode, cells: AllCells) -> NoSlotError:
        """The error of a batch that found no slot, not even in these cells: with what fits now, or that it never does.

        cells: without the kept sequences, but for those of the batch.
        """
        n, full = int(batch.n_tokens), self.caches[0]
        used = np.sum(np.asarray(cells[0].pos) >= 0, axis=1)
        rank, stream = _ranks(batch, full)
        fits = _first(rank >= (full.n_cells - used)[stream])
        n_ubatch, in_window = 0, len(self.caches) > 1 and fits == n
        if len(self.caches) > 1:
            n_ubatch = self._smaller_ubatch(cells, batch, mode) if in_window and mode.causal else 0
            fits = self._longest(cells, batch, mode, fits)
        most = int(rank.max()) + 1
        never = most > full.n_cells
        if never:
            verdict = f"{most} tokens of one stream never fit into its {full.n_cells} cells"
        elif n_ubatch:
            verdict = f"with n_ubatch {n_ubatch} the batch fits now"
        elif fits:
            verdict = f"the first {fits} of its {n} tokens {noun(fits, 'fits', 'fit')} now"
        else:
            verdict = "not one token fits until cells are free"
        words = f"{sentence(status)}; {self._held(cells, used)}; {verdict}; nothing was changed"
        if not n_ubatch:
            words += f": {self._way_out(0, 1) if in_window else self._way_out(most)}"
        return NoSlotError(words, status, fits=fits, never=never, report=self._later_report())

    def _way_out(self, needed: int, c: int = 0) -> str:
        """What can be done so that a stream of cache c has the cells that are needed."""
        config = self.caches[c]
        more = "swa_full" if c else "a larger n_ctx"
        if not c and config.n_streams > 1 and needed <= config.n_streams * config.n_cells:
            more += " or kv_unified"
        return f"{more} is needed" if needed > config.n_cells else f"rm frees cells, {more} has more"

    def _held(self, cells: AllCells, used: np.ndarray) -> str:
        n_cells = self.memory.n_cells
        if self.memory.n_streams > 1:
            held = ", ".join(f"sequence {s} holds {used[s]}" for s in np.flatnonzero(used)[:8])
            return f"each sequence has {n_cells} cells, {held or 'none are used'}"
        window = ""
        if len(self.caches) > 1:
            in_window = int(np.sum(np.asarray(cells[1].pos) >= 0))
            window = f" and its window cache {in_window} of {self.caches[1].n_cells}"
        return f"the cache holds {used[0]} of {n_cells} cells{window}"

    def _fits(self, cells: AllCells, batch: Batch, mode: Mode, n_ubatch: int) -> bool:
        """Whether a batch has slots with ubatches of so many rows."""
        static = self.batch_config, self.caches, self.n_ubatch
        prepared, _ = plan_decode(batch, cells, np.int32(n_ubatch), mode, *static)
        return int(prepared.status.code) == 0

    def _smaller_ubatch(self, cells: AllCells, batch: Batch, mode: Mode) -> int:
        """The largest half, quarter, ... of n_ubatch with which the batch fits, 0 when none does."""
        sizes = (self.n_ubatch >> bit for bit in range(1, self.n_ubatch.bit_length()))
        return next((size for size in sizes if self._fits(cells, batch, mode, size)), 0)

    def _longest(self, cells: AllCells, batch: Batch, mode: Mode, most: int) -> int:
        """The longest beginning of a batch, of up to `most` tokens, that fits."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            part = on_host(dataclasses.replace(batch, n_tokens=np.asarray(middle, np.int32)))
            fits = self._fits(cells, part, mode, self.n_ubatch)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _ranks(batch: Batch, config: MemoryConfig) -> tuple[np.ndarray, np.ndarray]:
    """(rank, stream) of every token: which of its stream's tokens it is, counted from 0, and the stream."""
    n = int(batch.n_tokens)
    if config.unified:
        return np.arange(n), np.zeros(n, np.int32)
    stream = first_seq(batch.seq[:n])
    order = np.asarray(batch.order[:n])
    counts = np.bincount(stream, minlength=config.n_streams)
    rank = np.empty(n, np.int32)
    rank[order] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank, stream


def _first(flags: np.ndarray) -> int:
    """Where the first flag is set; their number when none is."""
    return int(np.argmax(flags)) if flags.any() else len(flags)
