"""From requests to batches, as a server with continuous batching forms them; no model runs, only lengths are followed.

A decode holds one token of every running slot, then pieces of the waiting prompts in the order of their slots,
n_batch tokens in all. The prompt's last piece gives the first output token, so a request of p and g tokens runs g - 1
times alone:

    slots 2, n_batch 4, requests (3, 2), (4, 1)      decode 0: 0 x 3, 1 x 1      1: 0 x 1, 1 x 3
"""

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ubjax.analysis.traces import Trace
from ubjax.analysis.traffic import Traffic
from ubjax.config import MAX_SEQ
from ubjax.typing import Number

Piece: TypeAlias = tuple[int, int, int, bool]  # seq_id, n_tokens, pos, output


@dataclasses.dataclass
class _Log:
    """Decodes as they come."""

    slots: int
    pieces: list[list[Piece]] = dataclasses.field(default_factory=list)
    n_cells: list[int] = dataclasses.field(default_factory=list)
    repeats: list[int] = dataclasses.field(default_factory=list)

    def add(self, pieces: list[Piece], n_cells: int, repeats: int = 1) -> None:
        self.pieces.append(pieces)
        self.n_cells.append(n_cells)
        self.repeats.append(repeats)

    def traffic(self) -> Traffic:
        counts = np.asarray([len(pieces) for pieces in self.pieces], np.int64)
        flat = np.asarray([piece for pieces in self.pieces for piece in pieces], np.int32).reshape(-1, 4)
        decode = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
        table = np.zeros((4, len(counts), self.slots), np.int32)
        table[:, decode, place] = flat.T
        return Traffic(
            seq_id=table[0],
            n_tokens=table[1],
            pos=table[2],
            output=table[3].astype(bool),
            n_cells=np.asarray(self.n_cells, np.int32),
            repeats=np.asarray(self.repeats, np.int32),
        )


@dataclasses.dataclass
class _Slot:
    """A request under way: prompt tokens and later decodes it still needs, and its next position."""

    prompt: int
    steps: int
    pos: int = 0

    @property
    def done(self) -> bool:
        return self.prompt == 0 and self.steps == 0


def drive(
    trace: Trace, *, slots: int = 32, n_batch: int = 2048, seconds: Callable[[int], Number] | None = None
) -> Traffic:
    """The decodes of a server with `slots` sequences and `n_batch` tokens a decode: first come, first served.

    Closed loop without `seconds`: the next request is there whenever a slot is free. Open loop with it: a request
    waits for its arrival time, and a decode of n tokens takes seconds(n). A sequence's id is its slot, the lowest
    free one.
    """
    _check_sizes(slots, n_batch)
    log = _Log(slots)
    table: dict[int, _Slot] = {}
    queue = deque(zip(trace.arrival.tolist(), trace.prompt.tolist(), trace.output.tolist(), strict=True))
    now = 0.0
    while queue or table:
        for slot in range(slots):
            if slot not in table and queue and (seconds is None or queue[0][0] <= now):
                _, prompt, output = queue.popleft()
                table[slot] = _Slot(prompt, max(output - 1, 0))
        if not table:  # only in an open loop
            now = queue[0][0]
            continue
        pieces = _pieces(table, n_batch)
        repeats = 1
        if not any(slot.prompt for slot in table.values()):
            repeats = min(slot.steps for slot in table.values())
        if seconds is not None:
            step = seconds(sum(n for _, n, _, _ in pieces))
            if not step > 0:
                raise ValueError(f"a decode took {step} seconds, a positive time is needed")
            if queue and len(table) < slots:
                repeats = min(repeats, max(1, int(np.ceil((queue[0][0] - now) / step))))
            now += repeats * step
        log.add(pieces, sum(slot.pos for slot in table.values()) + sum(n for _, n, _, _ in pieces), repeats)
        for seq_id, n, _, _ in pieces:
            slot = table[seq_id]
            if slot.prompt:
                slot.prompt -= n
                slot.pos += n
            else:
                slot.steps -= repeats
                slot.pos += repeats
            if slot.done:
                del table[seq_id]
    return log.traffic()


def _pieces(table: dict[int, _Slot], n_batch: int) -> list[Piece]:
    """The pieces of the next decode: running slots, then prompts while there is room."""
    by_id = sorted(table.items())
    pieces = [(seq_id, 1, slot.pos, True) for seq_id, slot in by_id if not slot.prompt]
    room = n_batch - len(pieces)
    for seq_id, slot in by_id:
        n = min(slot.prompt, room)
        if n:
            pieces.append((seq_id, n, slot.pos, n == slot.prompt))
            room -= n
    return pieces


def pack_prompts(trace: Trace, *, slots: int = 32, n_batch: int = 2048) -> Traffic:
    """The decodes of embedding mode: whole prompts as they arrived, up to `slots` and `n_batch` tokens a decode.

    A prompt longer than n_batch goes in pieces of n_batch, its rest shares a decode with the prompts behind it. Every
    row of an embedding asks for its output; `output` says so of the last one.
    """
    _check_sizes(slots, n_batch)
    log = _Log(slots)
    pieces: list[Piece] = []
    room = n_batch

    def close() -> None:
        log.add(pieces, sum(pos + n for _, n, pos, _ in pieces))

    for prompt in trace.prompt.tolist():
        pos = 0
        if pieces and (prompt > room or len(pieces) == slots):
            close()
            pieces, room = [], n_batch
        while prompt - pos > n_batch:
            log.add([(0, n_batch, pos, True)], pos + n_batch)
            pos += n_batch
        pieces.append((len(pieces), prompt - pos, pos, True))
        room -= prompt - pos
    if pieces:
        close()
    return log.traffic()


def _check_sizes(slots: int, n_batch: int) -> None:
    if not 1 <= slots <= MAX_SEQ:
        raise ValueError(f"{slots} slots were asked for, 1 to {MAX_SEQ} are needed")
    if n_batch < slots:
        raise ValueError(f"n_batch is {n_batch}, at least one token for each of the {slots} slots is needed")
