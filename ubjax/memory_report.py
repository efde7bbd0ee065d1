"""Memory report: how full the caches are, what they take, what still fits. It shows itself as a table.

Rows of a batch may lie in scattered cells, so no free cell is lost to fragmentation. What scattering costs is the
cells that are attended although they are empty (`gaps`): attention reads up to the last used cell of a stream.
"""

import dataclasses
import html
from collections.abc import Sequence

import numpy as np

from ubjax.config import MemoryConfig
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.cells import Cells
from ubjax.memory.slots import usable_cells
from ubjax.memory.window import any_size
from ubjax.pictures.wording import amount

NAMES = ("full", "window")
SHOWN = 16  # sequences in a table
_CACHES = (
    "cache",
    "cells",
    "used",
    "free",
    "kept",
    "reusable",
    "shared",
    "longest free",
    "gaps",
    "K/V now",
    "K/V full",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheReport:
    """One cache, over all its streams; all numbers are cells, but for the bytes of K and V.

    used, free: hold something, or nothing. kept: used ones that only finished sequences hold, which a decode gives up
    when it needs cells. reusable: used ones that a decode may overwrite, as the window has passed them. shared: used
    ones of several sequences. longest_free: neighbours that are free. gaps: empty cells before the last used one of
    their stream. n_by_sequence [S]: of each sequence, shared ones included. n_bytes: what K and V take now;
    n_bytes_full: what they take once every cell has been used.
    """

    name: str
    n_cells: int
    used: int
    kept: int
    reusable: int
    shared: int
    longest_free: int
    gaps: int
    n_by_sequence: tuple[int, ...]
    n_bytes: int
    n_bytes_full: int

    @property
    def free(self) -> int:
        """Cells that hold nothing."""
        return self.n_cells - self.used


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """The caches of an engine: the full one, and for sliding windows a second one.

    `room` [S]: tokens of each sequence that fit into one batch now, for certain; a unified cache has them for all
    sequences together. (More may fit with windows, whose cells are used again between the ubatches of a batch; a batch
    has n_batch tokens at most.)
    """

    caches: tuple[CacheReport, ...]
    unified: bool
    room: tuple[int, ...]

    @property
    def fits(self) -> int:
        """Tokens of the largest batch that fits now for certain, however its sequences are chosen."""
        return max(self.room) if self.unified else sum(self.room)

    @property
    def used(self) -> int:
        """Used cells of the full cache."""
        return self.caches[0].used

    @property
    def free(self) -> int:
        """Free cells of the full cache."""
        return self.caches[0].free

    @property
    def shared(self) -> int:
        """Cells of the full cache that several sequences hold."""
        return self.caches[0].shared

    @property
    def n_by_sequence(self) -> tuple[int, ...]:
        """Cells of each sequence in the full cache [S]."""
        return self.caches[0].n_by_sequence

    @property
    def n_bytes(self) -> int:
        """Bytes of K and V now."""
        return sum(cache.n_bytes for cache in self.caches)

    @property
    def n_bytes_full(self) -> int:
        """Bytes of K and V once every cell has been used."""
        return sum(cache.n_bytes_full for cache in self.caches)

    @property
    def summary(self) -> str:
        """One line."""
        whose = "shared" if self.unified else "of streams"
        n = len(self.room)
        return (
            f"{self.used} of {self.caches[0].n_cells} cells ({whose}, {amount(n, 'sequence')}) used; "
            f"{amount(self.fits, 'more token fits', 'more tokens fit')} now"
        )

    def _tables(self) -> list[list[Sequence[str]]]:
        """The caches, then the sequences that hold cells; a header each."""
        rows = [_row_of(cache) for cache in self.caches]
        held = [s for s, n in enumerate(self.n_by_sequence) if n]
        lines = [
            [str(s), *(str(cache.n_by_sequence[s]) for cache in self.caches), str(self.room[s])]
            for s in held[:SHOWN]
        ]
        if len(held) > SHOWN:
            lines.append([f"{len(held) - SHOWN} more", *[""] * (len(self.caches) + 1)])
        header = ["sequence", *(f"{cache.name} cells" for cache in self.caches), "more fit"]
        return [[_CACHES, *rows], *([[header, *lines]] if lines else [])]

    def __str__(self) -> str:
        return "\n\n".join([self.summary, *("\n".join(_aligned(table)) for table in self._tables())])

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.summary)}</p>" + "".join(map(_as_html, self._tables()))


def memory_report(
    cells: AllCells, needed: AllCells, caches: Caches, n_bytes: Sequence[int], n_bytes_of_cell: Sequence[int]
) -> MemoryReport:
    """The report on these cells, of which only the `needed` ones are not kept for later.

    n_bytes: of each cache's K and V now, n_bytes_of_cell: of one of its cells.
    """
    usable = [_usable(own, config) for own, config in zip(needed, caches, strict=True)]
    each = zip(cells, needed, caches, usable, n_bytes, n_bytes_of_cell, strict=True)
    room = np.min([np.sum(own, axis=1) for own in usable], axis=0)
    return MemoryReport(
        caches=tuple(_cache_report(NAMES[c], *of_cache) for c, of_cache in enumerate(each)),
        unified=caches[0].unified,
        room=tuple(np.broadcast_to(room, caches[0].n_seq_max).tolist()),
    )


def _usable(cells: Cells, config: MemoryConfig) -> np.ndarray:
    return np.asarray(usable_cells(cells, np.int32(config.n_swa), any_size(config)))


def _cache_report(
    name: str,
    cells: Cells,
    needed: Cells,
    config: MemoryConfig,
    usable: np.ndarray,
    n_bytes: int,
    n_bytes_of_cell: int,
) -> CacheReport:
    held, still = np.asarray(cells.pos) >= 0, np.asarray(needed.pos) >= 0
    sets = np.ascontiguousarray(np.asarray(cells.seq)[held])
    index = np.arange(1, config.n_cells + 1)
    since = index - np.maximum.accumulate(np.where(held, index, 0), axis=1)  # free neighbours up to each cell
    by_sequence = np.unpackbits(sets.view(np.uint8), axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
    return CacheReport(
        name=name,
        n_cells=held.size,
        used=int(held.sum()),
        kept=int(held.sum() - still.sum()),
        reusable=int(np.sum(usable & still)),
        shared=int(np.sum(np.bitwise_count(sets).sum(axis=1) > 1)),
        longest_free=int(since.max()),
        gaps=int(np.max(np.where(held, index, 0), axis=1).sum() - held.sum()),
        n_by_sequence=tuple(by_sequence[: config.n_seq_max].tolist()),
        n_bytes=n_bytes,
        n_bytes_full=n_bytes_of_cell * held.size,
    )


def _row_of(cache: CacheReport) -> list[str]:
    names = ("n_cells", "used", "free", "kept", "reusable", "shared", "longest_free", "gaps")
    counts = [str(getattr(cache, name)) for name in names]
    return [cache.name, *counts, _size(cache.n_bytes), _size(cache.n_bytes_full)]


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.1f} KiB"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _as_html(table: Sequence[Sequence[str]]) -> str:
    head, *rows = (
        "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in row) for tag, row in _tagged(table)
    )
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in [head, *rows]) + "</table>"


def _tagged(table: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    return [("td" if i else "th", row) for i, row in enumerate(table)]
