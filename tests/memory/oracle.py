"""A cache in plain Python, cell by cell: what the jitted cells are compared with."""

import copy
import dataclasses
from typing import Any

import numpy as np

from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.cells import Cells


def masked(p0: int, p1: int, w: int, kind: SwaType) -> bool:
    """The window rule, written as the sentences of the semantics."""
    return {
        SwaType.NONE: False,
        SwaType.STANDARD: p1 - p0 >= w,
        SwaType.CHUNKED: w > 0 and p0 < p1 // w * w,
        SwaType.SYMMETRIC: abs(p1 - p0) > w // 2,
    }[kind]


@dataclasses.dataclass
class Cell:
    pos: int = -1
    k_pos: int = -1  # what the K row is rotated to
    shift: int = 0
    seqs: set[int] = dataclasses.field(default_factory=set)
    ext: tuple[int, int] = (0, 0)

    def drop(self, seq: int) -> bool:
        """Take a sequence out; True when that emptied the cell."""
        self.seqs.discard(seq)
        if self.seqs:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        self.pos, self.k_pos, self.shift, self.seqs, self.ext = -1, -1, 0, set(), (0, 0)


class Cache:
    """Streams of cells with a head each, and the operations on them."""

    def __init__(self, config: MemoryConfig):
        self.config = config
        self.streams = [[Cell() for _ in range(config.n_cells)] for _ in range(config.n_streams)]
        self.heads = [0] * config.n_streams
        self.src = list(range(config.n_streams))

    def of(self, seq: int) -> int:
        return 0 if self.config.unified else seq

    def used(self, stream: int) -> int:
        return sum(cell.pos >= 0 for cell in self.streams[stream])

    def used_max_p1(self, stream: int) -> int:
        return max((i + 1 for i, cell in enumerate(self.streams[stream]) if cell.pos >= 0), default=0)

    def positions(self, seq: int) -> list[int]:
        return sorted(cell.pos for cell in self.streams[self.of(seq)] if seq in cell.seqs)

    def usable(self, cell: Cell) -> bool:
        if cell.pos < 0:
            return True
        if len(cell.seqs) != 1:
            return False
        (seq,) = cell.seqs
        coming = self.positions(seq)[-1] + 1
        return masked(cell.pos, coming, self.config.n_swa, self.config.swa_type)

    def find(self, stream: int, n: int, cont: bool = False) -> list[int] | None:
        """The walk, step by step."""
        cells, C = self.streams[stream], self.config.n_cells
        head = 0 if self.heads[stream] > self.used(stream) + 2 * n else self.heads[stream]
        if n > C:
            return None
        found: list[int] = []
        tested, stride = 0, n if cont else 1
        while True:
            if head + stride > C:
                tested, head = tested + C - head, 0
                continue
            for _ in range(stride):
                head, tested = head + 1, tested + 1
                if self.usable(cells[head - 1]):
                    found.append(head - 1)
                elif cont:
                    break
            if len(found) == n:
                return found
            if cont:
                found = []
            if tested >= C:
                return None

    def write(self, stream: int, slot: list[int], rows: list[tuple[int, set[int]]]) -> dict[int, int]:
        """Write rows (pos, seqs) into their cells; returns the largest overwritten position per sequence."""
        lost: dict[int, int] = {}
        for index, (pos, seqs) in zip(slot, rows, strict=True):
            cell = self.streams[stream][index]
            for seq in cell.seqs:
                lost[seq] = max(lost.get(seq, -1), cell.pos)
            cell.clear()
            cell.pos, cell.k_pos, cell.seqs = pos, pos, set(seqs)
        self.heads[stream] = slot[-1] + 1
        return lost

    def purge(self, lost: dict[int, int]) -> None:
        for seq, last in lost.items():
            for cell in self.streams[self.of(seq)]:
                if seq in cell.seqs and cell.pos <= last:
                    cell.drop(seq)

    def decode(self, ubatches: list[list[list[tuple[int, set[int]]]]]) -> list[list[list[int]]] | None:
        """Ubatches of sets of rows -> slots, or None and nothing changed; shifts and copies are carried out."""
        before, slots = copy.deepcopy((self.streams, self.heads)), []
        for sets in ubatches:
            streams = [self.of(min(rows[0][1])) for rows in sets]
            found = [self.find(s, len(rows)) for s, rows in zip(streams, sets, strict=True)]
            if None in found:
                self.streams, self.heads = before
                return None
            slot: list[Any] = found
            lost: dict[int, int] = {}
            for stream, cells, rows in zip(streams, slot, sets, strict=True):
                for seq, last in self.write(stream, cells, rows).items():
                    lost[seq] = max(lost.get(seq, -1), last)
            self.purge(lost)
            slots.append(slot)
        for stream in self.streams:
            for cell in stream:
                cell.k_pos, cell.shift = cell.pos, 0
        self.src = list(range(len(self.streams)))
        return slots

    def rm(self, seq: int, p0: int, p1: int) -> None:
        streams = range(len(self.streams)) if seq == -1 else [self.of(seq)]
        for s in streams:
            freed = []
            for i, cell in enumerate(self.streams[s]):
                if not in_range(cell.pos, p0, p1):
                    continue
                if seq == -1:
                    cell.clear()
                    freed.append(i)
                elif seq in cell.seqs and cell.drop(seq):
                    freed.append(i)
            self.heads[s] = min([self.heads[s], *freed])

    def keep(self, seq: int) -> None:
        s, freed = self.of(seq), []
        for i, cell in enumerate(self.streams[s]):
            if seq in cell.seqs:
                cell.seqs = {seq}
            elif cell.pos >= 0:
                cell.clear()
                freed.append(i)
        self.heads[s] = min([self.heads[s], *freed])

    def cp(self, src: int, dst: int, p0: int, p1: int) -> bool:
        here, there = self.of(src), self.of(dst)
        mine = [cell for cell in self.streams[here] if src in cell.seqs]
        chosen = [cell for cell in mine if in_range(cell.pos, p0, p1)]
        if here == there:
            for cell in chosen:
                cell.seqs.add(dst)
            return True
        if len(chosen) < len(mine):
            return False
        self.streams[there] = copy.deepcopy(self.streams[here])
        for cell in self.streams[there]:
            if src in cell.seqs:
                cell.seqs = {dst}
            else:
                cell.clear()
        self.heads[there], self.src[there] = self.heads[here], self.src[here]
        return True

    def add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        if delta == 0 or max(p0, 0) == p1:
            return
        s, freed = self.of(seq), []
        for i, cell in enumerate(self.streams[s]):
            if seq in cell.seqs and in_range(cell.pos, p0, p1):
                cell.pos, cell.shift = cell.pos + delta, cell.shift + delta
                if cell.pos < 0:
                    cell.clear()
                    freed.append(i)
        self.heads[s] = freed[0] if freed else 0

    def div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        for cell in self.streams[self.of(seq)]:
            if divisor > 1 and seq in cell.seqs and in_range(cell.pos, p0, p1):
                new = cell.pos // divisor
                cell.shift, cell.pos = cell.shift + cell.pos - new, new

    def clear(self) -> None:
        self.__init__(self.config)

    def cells(self) -> Cells:
        """The same cache as arrays."""
        cells = Cells.empty(self.config)
        for s, stream in enumerate(self.streams):
            for i, cell in enumerate(stream):
                cells.pos[s, i], cells.k_pos[s, i], cells.shift[s, i] = cell.pos, cell.k_pos, cell.shift
                for seq in cell.seqs:
                    cells.seq[s, i, seq // 32] |= np.uint32(1) << np.uint32(seq % 32)
        cells.head[:], cells.src[:] = self.heads, self.src
        return cells


def in_range(pos: int, p0: int, p1: int) -> bool:
    """Whether a position lies in [p0, p1) with the bounds' conventions; an empty cell's (-1) never does."""
    return pos >= max(p0, 0) and (p1 < 0 or pos < p1)
