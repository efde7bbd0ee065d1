"""From requests to batches, as a server with continuous batching forms them; no model runs, only lengths are followed.

D  different decodes in a row      S  slots, one sequence each

A decode holds one token of every running slot, then pieces of the waiting prompts in the order of their slots,
n_batch tokens in all. The prompt's last piece gives the first output token, so a request of p and g tokens runs g - 1
times alone:

    slots 2, n_batch 4, requests (3, 2), (4, 1)      decode 0: 0 x 3, 1 x 1      1: 0 x 1, 1 x 3
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from ubjax.analysis.traces import Trace
from ubjax.config import MAX_SEQ
from ubjax.typing import Array, Bool, Int32, Number


@dataclasses.dataclass(frozen=True, eq=False)
class Traffic:
    """The decodes of a server: in each, pieces of n_tokens > 0 rows of sequence seq_id, in batch order.

    `repeats`: how many decodes in a row have these pieces. `pos`: the position of a piece's first row in the first of
    them (each repetition is one further). `output`: whether its last row asks for logits. Padding: n_tokens 0, seq_id
    0, pos 0, output False, behind the pieces.
    """

    seq_id: Int32[Array, "D S"]
    n_tokens: Int32[Array, "D S"]
    pos: Int32[Array, "D S"]
    output: Bool[Array, "D S"]
    repeats: Int32[Array, " D"]

    def __len__(self) -> int:
        """Decodes, repetitions counted."""
        return int(self.repeats.sum())

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """For every decode its pieces as (seq_id, n_tokens)."""
        for seq_id, n_tokens, repeats in zip(self.seq_id, self.n_tokens, self.repeats, strict=True):
            n_pieces = np.count_nonzero(n_tokens)
            pieces = list(zip(seq_id[:n_pieces].tolist(), n_tokens[:n_pieces].tolist(), strict=True))
            for _ in range(repeats):
                yield list(pieces)

    @property
    def tokens(self) -> int:
        """Rows of all decodes."""
        return int((self.n_tokens.sum(axis=1, dtype=np.int64) * self.repeats).sum())

    def signatures(
        self,
    ) -> tuple[Int32[np.ndarray, "N S"], Int32[np.ndarray, "N S"], Int32[np.ndarray, " N"]]:
        """The decodes that differ in their (seq_id, n_tokens): both [N, S], and how often each occurs [N]."""
        both = np.concatenate([self.seq_id, self.n_tokens], axis=1)
        unique, inverse = np.unique(both, axis=0, return_inverse=True)
        counts = np.zeros(len(unique), np.int32)
        np.add.at(counts, inverse.reshape(-1), self.repeats)
        n_slots = self.seq_id.shape[1]
        return unique[:, :n_slots], unique[:, n_slots:], counts


Piece: TypeAlias = tuple[int, int, int, bool]  # seq_id, n_tokens, pos, output


def _as_traffic(decodes: list[tuple[list[Piece], int]], slots: int) -> Traffic:
    """Decodes given as pieces and repetitions."""
    counts = np.asarray([len(pieces) for pieces, _ in decodes], np.int64)
    flat = np.asarray([piece for pieces, _ in decodes for piece in pieces], np.int32).reshape(-1, 4)
    decode = np.repeat(np.arange(len(decodes)), counts)
    place = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.zeros((4, len(decodes), slots), np.int32)
    table[:, decode, place] = flat.T
    return Traffic(
        seq_id=table[0],
        n_tokens=table[1],
        pos=table[2],
        output=table[3].astype(bool),
        repeats=np.asarray([repeats for _, repeats in decodes], np.int32),
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
    decodes: list[tuple[list[Piece], int]] = []
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
        decodes.append((pieces, repeats))
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
    return _as_traffic(decodes, slots)


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
    decodes: list[tuple[list[Piece], int]] = []
    pieces: list[Piece] = []
    room = n_batch
    for prompt in trace.prompt.tolist():
        pos = 0
        if pieces and (prompt > room or len(pieces) == slots):
            decodes.append((pieces, 1))
            pieces, room = [], n_batch
        while prompt - pos > n_batch:
            decodes.append(([(0, n_batch, pos, True)], 1))
            pos += n_batch
        pieces.append((len(pieces), prompt - pos, pos, True))
        room -= prompt - pos
    if pieces:
        decodes.append((pieces, 1))
    return _as_traffic(decodes, slots)


def _check_sizes(slots: int, n_batch: int) -> None:
    if not 1 <= slots <= MAX_SEQ:
        raise ValueError(f"{slots} slots were asked for, 1 to {MAX_SEQ} are needed")
    if n_batch < slots:
        raise ValueError(f"n_batch is {n_batch}, at least one token for each of the {slots} slots is needed")
