"""Loops: many decode steps of an engine in one dispatch, as `decode_loop` makes them.

    rows -> room for all steps (integers, control device) -> K/V grows -> one program -> tokens, cells, K/V

All or nothing: without room, or when the program fails, no step has happened.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ubjax.buckets import Bucket, shape_name
from ubjax.config import MemoryConfig, as_choice, as_integer
from ubjax.decode_loop import Ended, LoopResult, LoopRows, LoopState, reserve_steps, run_steps
from ubjax.engine_state import EngineState
from ubjax.generate import MAX_STEPS, N_STOP, Drawing, NextToken, Steps, stop_room
from ubjax.memory.caches import AllCells, Caches, next_pos, pending
from ubjax.memory.kv import AllKV
from ubjax.models.decoder import Decoder
from ubjax.pictures.wording import amount
from ubjax.pytree import Layout, pack
from ubjax.status import DecodeError, NoSlotError, Reason, refusal
from ubjax.step import model_step
from ubjax.typing import Choice, Flag, Int32, Scalar, Whole


@functools.cache
def loop_program(graphdef: nnx.GraphDef[Decoder], treedef: Any, caches: Caches) -> Callable[..., Any]:
    """The jitted loop of all models with this structure, one program for each bucket and size of K/V; kv is donated.

    (leaves, kv, cells, rows, n_steps, until_end, drawing, bucket) -> (packed result, cells, kv, last tokens)
    """
    step = model_step(graphdef, treedef, caches)

    def decode_steps(
        leaves: Any,
        kv: AllKV,
        cells: AllCells,
        rows: LoopRows,
        n_steps: Scalar,
        until_end: Flag,
        drawing: Drawing,
        bucket: Bucket,
    ) -> tuple[Int32[jax.Array, " packed"], AllCells, AllKV, Any]:
        params, constraints, last = drawing
        result, after = run_steps(
            functools.partial(step, leaves),
            LoopState(cells=cells, kv=kv, rows=rows, last=last),
            params,
            constraints,
            n_steps,
            caches,
            max_steps=MAX_STEPS,
            bucket=bucket,
            until_end=until_end,
        )
        return packed(result), after.cells, after.kv, after.last

    return jax.jit(decode_steps, donate_argnums=1, static_argnums=7)


def packed(result: LoopResult) -> Int32[jax.Array, " packed"]:
    """tokens, bits of the log-probabilities, count, ended, n_steps: what the host needs, fetched at once."""
    bits = jax.lax.bitcast_convert_type(result.logprobs, jnp.int32)
    return pack((result.tokens, bits, result.count, result.ended, result.n_steps))


@functools.partial(jax.jit, static_argnames="caches")
def steps_room(
    cells: AllCells, rows: LoopRows, n_steps: Scalar, caches: Caches
) -> Int32[jax.Array, " packed"]:
    """What `reserve_steps` says, what K and V owe the cells, and where the rows' sequences go on, packed.

    The next position of each row, n_kv_needed of each cache, whether rows are to be rotated, streams to be copied,
    code, where, found and needed.
    """
    n_kv, status = reserve_steps(cells, rows, n_steps, caches)
    pos = next_pos(cells, caches).at[rows.seqs].get(mode="fill", fill_value=0)
    return pack((pos, n_kv, pending(cells), (status.code, status.where, status.found, status.needed)))


def no_rows(bucket: Bucket, memory: MemoryConfig, first: int = 0, n_stop: int = N_STOP) -> LoopRows:
    """Rows of a loop of which none is active, on the host; with streams, of those from `first` on."""
    n = bucket.n_rows if memory.unified else bucket.n_blocks
    seqs = (
        np.full(n, memory.n_seq_max, np.int32)
        if memory.unified
        else np.arange(first, first + n, dtype=np.int32)
    )
    zeros = {name: np.zeros(n, np.int32) for name in ("token", "pos", "left", "dropped")}
    stop = np.full((n, n_stop), -1, np.int32)
    return LoopRows(seqs=seqs, active=np.zeros(n, bool), stop=stop, **zeros)


class Loops(EngineState):
    """What an engine does many steps at a time."""

    n_ubatch: int

    def loop_bucket(self, seqs: Sequence[int]) -> Bucket | None:
        """The shape of a loop over these sequences, None where one ubatch can't hold them well.

        With streams a loop reads all of them between the first and the last: it should not be far more than asked. With
        batch_invariant there is none: its steps would be of another shape and another program.
        """
        if self.batch_invariant:
            return None
        n = len(seqs) if self.memory.unified else max(seqs) - min(seqs) + 1
        bucket = self.buckets.loop(n) if n <= self.n_ubatch else None
        return bucket if self.memory.unified or n < 2 * len(seqs) else None

    def decode_steps(
        self, rows: Sequence[NextToken], n_steps: Whole, drawing: Drawing, *, until_end: Choice = False
    ) -> Steps:
        """Decode the next token of each row and draw the one after it, n_steps <= 32 times, in one dispatch.

        A row ends with its stop tokens or when `left` tokens are drawn; the others go on. until_end: the step in which
        a row ends is the last. Tokens, cells and K/V are those of single steps. drawing: parameters, constraints and
        last tokens of all sequences, on the model's device; `Steps.last` replaces the latter.

        Raises NoSlotError when there are no cells for all steps (`fits`: for how many there are), ValueError for rows
        that are wrong: nothing has changed then.
        """
        n, seqs = np.int32(self._checked(rows, n_steps)), [row.seq for row in rows]
        bucket = self.loop_bucket(seqs)
        if bucket is None:
            raise ValueError(f"sequences {seqs} are no loop of one ubatch: see loop_bucket")
        host = self._loop_rows(rows, bucket)
        *n_kv, rotate, n_copies = self._loop_room(host, n)
        self._grow(n_kv)
        if rotate or n_copies:
            self._update(n_copies, bool(rotate))
        given = jax.device_put(
            (self._cells, host, n, np.bool_(as_choice(until_end, "until_end"))), self.device
        )
        found, cells, last = self._run_loop(given, drawing, bucket)
        self._cells = jax.device_put(cells, self._control)
        layout = _layout(host.seqs.shape[0])
        tokens, bits, count, ended, steps = layout.unpack(found)
        n_drawn = count + np.isin(ended, (Ended.STOP, Ended.NOTHING_ALLOWED))
        at = {int(seq): r for r, seq in enumerate(host.seqs)}
        name = shape_name(bucket, self._kv_sizes())
        total = int(n_drawn.sum())
        self.usage.count(name, bucket.n_rows, total, total, steps=int(steps))
        self.usage.decodes += 1
        logprobs = bits.view(np.float32)
        drawn = [
            list(zip(tokens[r, : n_drawn[r]].tolist(), logprobs[r, : n_drawn[r]].tolist(), strict=True))
            for r in (at[seq] for seq in seqs)
        ]
        return Steps(drawn=drawn, last=last)

    def _checked(self, rows: Sequence[NextToken], n_steps: Whole) -> int:
        """n_steps, where they and all of the rows that needs no look at the cells is right."""
        n, n_vocab, n_seqs = as_integer(n_steps, "n_steps"), self.batch_config.n_vocab, self.memory.n_seq_max
        if not 1 <= n <= MAX_STEPS:
            raise ValueError(f"n_steps is {n}, a number in [1, {MAX_STEPS}] is needed")
        if not rows:
            raise ValueError("a loop has 0 rows, at least 1 is needed")
        seen: set[int] = set()
        for row in rows:
            if not 0 <= row.seq < n_seqs:
                raise ValueError(f"a row has sequence {row.seq}, a sequence in [0, {n_seqs}) is needed")
            if row.seq in seen:
                raise ValueError(f"sequence {row.seq} has two rows, one is needed")
            if not 0 <= row.token < n_vocab:
                raise ValueError(
                    f"the row of sequence {row.seq} has token {row.token}, one in [0, {n_vocab}) is needed"
                )
            if row.left < 1:
                raise ValueError(
                    f"sequence {row.seq} has {row.left} tokens left to draw, at least 1 is needed"
                )
            seen.add(row.seq)
        return n

    def _misplaced(self, rows: LoopRows, next_pos: Sequence[int]) -> DecodeError | None:
        """The error of a row that doesn't go on where its sequence ends in the cache, or (M-RoPE) later."""
        for seq, pos, needed, active in zip(rows.seqs, rows.pos, next_pos, rows.active, strict=True):
            if active and (pos < needed or (pos > needed and self.memory.n_pos == 1)):
                return refusal(Reason.POS_NOT_NEXT, where=int(seq), found=int(pos), needed=needed)
        return None

    def _loop_rows(self, rows: Sequence[NextToken], bucket: Bucket) -> LoopRows:
        """The rows in their places on the host: ascending, or with streams each at its own."""
        memory, ordered = self.memory, sorted(rows, key=lambda row: row.seq)
        first = 0 if memory.unified else min(ordered[0].seq, memory.n_streams - bucket.n_blocks)
        host = no_rows(bucket, memory, first, stop_room([row.stop for row in rows]))
        for i, row in enumerate(ordered):
            r = i if memory.unified else row.seq - first
            host.seqs[r], host.token[r], host.pos[r] = row.seq, row.token, row.pos
            host.left[r], host.dropped[r], host.active[r] = row.left, row.dropped, True
            host.stop[r, : len(row.stop)] = list(row.stop)
        return host

    def _loop_room(self, rows: LoopRows, n_steps: np.int32) -> Sequence[int]:
        """Cells of each cache that all steps need (kept sequences make way), and what `pending` says."""
        cells, kept, n_rows = self._cells, self._kept.copy(), len(rows.seqs)
        self._touched(rows.seqs[rows.active])  # they are wanted, not to be given up
        on_control = jax.device_put((rows, n_steps), self._control)
        while True:
            told = np.asarray(steps_room(self._cells, *on_control, self.caches)).tolist()
            *room, code, where, found, needed = told[n_rows:]
            misplaced = self._misplaced(rows, told[:n_rows])
            if misplaced is None and code == Reason.OK:
                return room
            if misplaced is not None or not self._kept:
                break
            self._evict()
        self._cells, self._kept = cells, kept
        if misplaced is not None:
            raise misplaced
        status = refusal(Reason.NO_SLOT, where=where, found=found, needed=needed).status
        words = (
            f"step {where} of {n_steps} needs {amount(needed, 'cell')} of one stream, "
            f"{amount(found, 'is', 'are')} free: no slot; "
            f"the steps before it fit now; nothing was changed: {self._way_out(needed)}"
        )
        raise NoSlotError(words, status, fits=where, report=self._later_report())

    def _run_loop(
        self, given: tuple[AllCells, LoopRows, Any, Any], drawing: Drawing, bucket: Bucket
    ) -> tuple[np.ndarray, AllCells, Any]:
        """The packed result, the cells and the last tokens; K/V is the new one."""
        program = loop_program(*self._step.structure, self.caches)
        with self._nothing_or_lost():
            found, cells, kv, last = program(self._step.leaves, self._kv, *given, drawing, bucket)
            host = jax.device_get(found)
        self._kv = kv
        return host, cells, last


@functools.cache
def _layout(n_rows: int) -> Layout:
    """Where `packed` puts the results of so many rows."""
    each = jax.ShapeDtypeStruct((n_rows,), np.int32)
    wide = jax.ShapeDtypeStruct((n_rows, MAX_STEPS), np.int32)
    return Layout((wide, wide, each, each, jax.ShapeDtypeStruct((), np.int32)))
