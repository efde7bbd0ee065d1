"""Saving: a cache's state as bytes or a file, of one sequence or of all (llama.cpp's llama_state_*).

    collect   cells -> rows in canonical order, with K and V
    restore   checked rows -> cells for all of them, or for none -> K and V written

Sizes of programs come from the ladders of K/V. A state that can't be loaded changes nothing.
"""

import abc
import functools
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from typing import Any

import jax
import numpy as np

from ubjax.gauges import Gauges
from ubjax.host_arrays import as_int32, length_of, sized
from ubjax.memory import caches
from ubjax.memory.caches import AllCells
from ubjax.memory.kv import KV
from ubjax.memory.slots import usable_cells
from ubjax.memory.window import any_size
from ubjax.memory_report import NAMES
from ubjax.pictures.wording import amount, noun
from ubjax.safetensors import encode, read_header, read_tensors, reader
from ubjax.saving.collect import collect
from ubjax.saving.files import as_path, opened, write_whole
from ubjax.saving.fingerprint import fingerprint
from ubjax.saving.restore import Group, groups, padded_layers, place
from ubjax.saving.state import ALL, ONE, Form, SavedRows, State
from ubjax.status import DecodeError, NoSlotError, Reason, refusal
from ubjax.step import Step, store_rows
from ubjax.typing import Bytes, FilePath, Whole


class Saving(Gauges):
    """What an engine can do with the state of its cache.

    A state holds the cells of one sequence or of all, their K and V, and tokens that the caller wants kept with it.
    It may be loaded into any cache of the same model with the same kv_dtype, whatever its size and its number of
    sequences, and whether they share it. What has been saved and loaded is saved as the same bytes again.
    """

    _step: Step
    _control: Any

    @abc.abstractmethod
    def _update(self, n_copies: int, rotate: bool) -> None:
        """Let K and V follow what sequence operations did to the cells; a failure leaves that pending."""

    @abc.abstractmethod
    def _lost(self) -> DecodeError | None:
        """The failure and an empty cache, when the K/V buffers are gone."""

    # -- save
    # ------------------------------------------------------------------------------------------------------

    def get_state(self, seq_id: Whole | None = None, tokens: Any = ()) -> bytes:
        """The state of a sequence, or of all, as bytes (llama_state_seq_get_data, llama_state_get_data).

        The bytes are a safetensors file (`ubjax.saving.state` says what is in it). Of a window cache what it still
        holds is saved; sequences that are kept for later are saved like any other. tokens: ids to be kept with the
        state. Shifts and copies that are pending are carried out. Raises ValueError for K or V that is not finite.
        """
        return b"".join(self._encoded(seq_id, tokens))

    def save_state(self, path: FilePath, seq_id: Whole | None = None, tokens: Any = ()) -> None:
        """`get_state` into a file (llama_state_seq_save_file, llama_state_save_file), written whole or not at all."""
        write_whole(as_path(path), self._encoded(seq_id, tokens))

    def _encoded(self, seq_id: Whole | None, tokens: Any) -> Iterator[memoryview]:
        seq = None if seq_id is None else int(self._known(seq_id))
        kept = sized(as_int32(tokens, "tokens"), length_of(tokens, "tokens"), "tokens")
        self._form.check_tokens(kept)
        self._follow()
        kvs = self._kv or [None] * len(self.caches)
        found = zip(jax.device_get(self._cells), kvs, self.buckets.n_kv, strict=True)
        rows = [collect(cells, kv, seq, self._form, c, ladder) for c, (cells, kv, ladder) in enumerate(found)]
        state = State(tokens=kept, caches=tuple(rows))
        try:
            self._form.check_finite(state)
        except ValueError as error:
            what = "the cache" if seq is None else f"sequence {seq}"
            raise ValueError(f"{what} can't be saved: {error}") from None
        return encode(self._form.metadata(ALL if seq is None else ONE), state.tensors())

    @functools.cached_property
    def _form(self) -> Form:
        config = self.model_config
        return Form(
            model=fingerprint(config, self._step.model, self._kv_dtype),
            layers=tuple(len(config.cache_layers(c)) for c in range(len(self.caches))),
            n_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            dtype=np.dtype(self._kv_dtype),
            n_sections=1 if self.memory.n_pos == 1 else 3,
            n_seq_max=self.memory.n_seq_max,
            n_vocab=self.batch_config.n_vocab,
        )

    def _follow(self) -> None:
        """Carry out what K and V owe the cells."""
        rotate, n_copies = jax.device_get(caches.pending(self._cells))
        if not (rotate or n_copies):
            return
        if any(np.any(np.asarray(own.pos) >= 0) for own in self._cells):
            self._update(int(n_copies), bool(rotate))
        else:
            self._cells = caches.settle(self._cells)

    # -- load
    # ------------------------------------------------------------------------------------------------------

    def set_state(self, data: Bytes, seq_id: Whole | None = None) -> list[int]:
        """Load what `get_state` gave (llama_state_seq_set_data, llama_state_set_data); the tokens kept with it.

        The state of one sequence replaces the sequence `seq_id`, whichever it was; the state of all replaces
        everything. Cells are taken where there are some, together or scattered. A window cache without room for all
        saved rows takes those that its windows still need.

        Raises ValueError for a state that is damaged or belongs to another model, naming the mismatch, and
        NoSlotError when there are not enough cells: then nothing has changed.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ValueError(f"the state is {type(data).__name__}, bytes are needed")
        return self._load(*reader(bytes(data)), seq_id, "the state")

    def load_state(self, path: FilePath, seq_id: Whole | None = None) -> list[int]:
        """`set_state` from a file (llama_state_seq_load_file, llama_state_load_file)."""
        with opened(as_path(path)) as (file, n_bytes):
            return self._load(file, n_bytes, seq_id, str(path))

    def _load(self, file: BufferedIOBase, n_bytes: int, seq_id: Whole | None, what: str) -> list[int]:
        seq = None if seq_id is None else int(self._known(seq_id))
        try:
            header = read_header(file, n_bytes)
            self._form.check(header, ALL if seq is None else ONE)
            self._check_sizes(self._form.sizes(header), seq)
            state = State.of_tensors(read_tensors(file, header), len(self.caches))
            self._form.check_values(state)
            after, placed, replaced = self._with_room(state, seq)
        except NoSlotError:
            raise
        except ValueError as error:
            raise ValueError(f"{what} can't be loaded: {error}; nothing was changed") from None
        if placed:
            after = self._write(state, placed, after)
        self._cells = after
        self._touched(replaced)
        return state.tokens.tolist()

    def _without(self, seq: int | None) -> AllCells:
        """The cells without what a state replaces: a sequence, or everything."""
        if seq is None:
            return jax.device_put(caches.empty(self.caches), self._control)
        return self._emptied(self._cells, [seq])

    def _check_sizes(self, sizes: Sequence[int], seq: int | None) -> None:
        """Refuse more rows than there are cells, before they are read. A window cache may leave some out."""
        most = self.memory.n_cells * (self.memory.n_streams if seq is None else 1)
        for needed in sizes:
            if needed > most:
                raise self._no_room(0, self._without(seq), 0 if self.memory.unified else seq or 0, needed)

    def _with_room(self, state: State, seq: int | None) -> tuple[AllCells, list[Group], list[int]]:
        """`_placed`, and the sequences that are no longer what they were: kept ones make room, oldest first."""
        before, kept = self._without(seq), [] if seq is None else [s for s in self._kept if s != seq]
        replaced = list(range(self.memory.n_seq_max)) if seq is None else [seq]
        while True:
            try:
                return (*self._placed(state, before, seq), replaced)
            except NoSlotError:
                if not kept:
                    raise
            oldest = kept.pop(0)
            before = self._emptied(before, [oldest])
            replaced.append(oldest)

    def _placed(self, state: State, before: AllCells, seq: int | None) -> tuple[AllCells, list[Group]]:
        """The cells with every saved row in one of them, and the rows by stream."""
        cells, placed = list(before), []
        for c, rows in enumerate(state.caches):
            for group in groups(c, rows, seq, self.memory):
                done = place(cells[c], rows, group, self.caches[c], self.buckets)
                if done is None:
                    raise self._no_room(c, before, group.stream, len(group.rows))
                cells[c], group = done
                placed.append(group)
        after = tuple(cells)
        misplaced = self._hindrance(after) if self.batch_invariant else None
        if misplaced is not None:
            raise ValueError(misplaced)
        if len(self.caches) > 1:
            ends = np.asarray(caches.can_go_on(after, self.caches))
            if not (ends.all() if seq is None else ends[seq]):
                raise ValueError("its window cache has given up positions that the end of a sequence needs")
        return after, placed

    def _no_room(self, c: int, cells: AllCells, stream: int, needed: int) -> NoSlotError:
        """The error of rows that find too few cells in a stream."""
        config = self.caches[c]
        found = int(np.sum(usable_cells(cells[c], np.int32(config.n_swa), any_size(config))[stream]))
        status = refusal(Reason.NO_SLOT, where=-1, found=found, needed=needed).status
        return NoSlotError(
            f"the state needs {amount(needed, 'cell')} of one stream of the {NAMES[c]} cache, {found} of its "
            f"{config.n_cells} {noun(found, 'is', 'are')} free: no slot; "
            f"nothing was changed: {self._way_out(needed, c)}",
            status,
            fits=found,
            never=needed > config.n_cells,
            report=self._later_report(),
        )

    def _write(self, state: State, placed: Sequence[Group], after: AllCells) -> AllCells:
        """Write K and V of all groups; the cells, which owe nothing then. A failure leaves all, or clears all."""
        tops = [max((g.top for g in placed if g.cache == c), default=0) for c in range(len(self.caches))]
        self._grow(tops)
        self._follow()  # what is owed concerns other sequences, and must not strike the new rows
        kv = list(self._kv)
        try:
            for group in placed:
                kv[group.cache] = self._stored(kv[group.cache], state.caches[group.cache], group)
            jax.block_until_ready(kv)
        except BaseException as error:
            failed = refusal(Reason.STEP_FAILED, where=-1, found=0, needed=0).status
            failure = self._lost() or DecodeError(
                "writing the state's rows failed: nothing was changed", failed
            )
            if isinstance(error, Exception):
                raise failure from error
            raise
        self._kv = tuple(kv)
        return caches.settle(after)

    def _stored(self, kv: KV, saved: SavedRows, group: Group) -> KV:
        """K/V of a cache with the rows of a group, layer by layer; the given K/V is gone afterwards."""
        rows = padded_layers(saved.k, group), padded_layers(saved.v, group)
        (new_k, new_v), index = jax.device_put((rows, group.index), self._step.device)
        stream = np.int32(group.stream)
        k, v = (
            tuple(store_rows(old, new, stream, index) for old, new in zip(layers, news, strict=True))
            for layers, news in ((kv.k, new_k), (kv.v, new_v))
        )
        return KV(k=k, v=v, n_cells=kv.n_cells)
