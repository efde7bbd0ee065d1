"""The cells of a K/V cache as a picture: a stream after the other, what each cell holds, where the search starts.

NS  streams    C  cells a stream    W  32-bit words of a sequence set
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from ubjax.pictures.boxes import HEIGHT, PITCH_X, WIDTH, draw_box, draw_free
from ubjax.pictures.sheet import BOLD, FAINT, Picture, Point, Sheet
from ubjax.pictures.tokens import sequences_named
from ubjax.pictures.wording import count, ends, ids_of
from ubjax.typing import Int32, UInt32

ACROSS = 16  # cells of a line
LINES = 8  # of all streams
STREAMS = 8
KEY = "large: position, small: sequence; dashed: free; triangle: head, where the search for a slot starts"
_LABEL = 76  # px for the names of streams and lines
_PITCH_Y = 42
_NO_NOTES: Mapping[tuple[int, int], str] = {}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CellRows:
    """Cells as host arrays, with the meaning they have in `Cells`; `shift`: what K rows are still to be rotated by."""

    pos: Int32[np.ndarray, "NS C"]
    shift: Int32[np.ndarray, "NS C"]
    seq: UInt32[np.ndarray, "NS C W"]
    head: Int32[np.ndarray, " NS"]
    src: Int32[np.ndarray, " NS"]

    def sequences(self, stream: int, cell: int) -> list[int]:
        """The sequence ids of a cell."""
        return ids_of(self.seq[stream, cell]).tolist()

    def title(self, stream: int, cell: int) -> str:
        """A used cell in words."""
        where = f"cell {cell} of stream {stream}" if len(self.pos) > 1 else f"cell {cell}"
        parts = [
            f"{where}: {sequences_named(self.sequences(stream, cell))}",
            f"position {self.pos[stream, cell]}",
        ]
        if self.shift[stream, cell]:
            parts.append(f"pending shift {self.shift[stream, cell]:+d}")
        return ", ".join(parts)


def describe_cells(cells: CellRows) -> str:
    """Sizes and fill in words."""
    NS, C = cells.pos.shape
    used = int((cells.pos >= 0).sum())
    shape = f"{NS:,} streams of {count(C, 'cell')}" if NS > 1 else count(C, "cell")
    if not used:
        return f"{shape}, all free"
    ids = ids_of(np.bitwise_or.reduce(cells.seq.reshape(-1, cells.seq.shape[-1]), axis=0)).tolist()
    shifts = int((cells.shift != 0).sum())
    pending = f", {count(shifts, 'pending shift')}" if shifts else ""
    return f"{shape}, {used:,} used by {sequences_named(ids)}{pending}"


def cells_sheet(cells: CellRows, notes: Mapping[tuple[int, int], str] = _NO_NOTES) -> Sheet:
    """The streams alone; `notes` by (stream, cell) say more of a cell, and underline it if others have none."""
    sheet = Sheet()
    NS = len(cells.pos)
    others = cells.pos >= 0
    for at in notes:
        others[at] = False
    underline = bool(others.any())
    first, last = ends(NS, STREAMS)
    lines = max(1, LINES // (first + last))
    for stream in (*range(first), *range(NS - last, NS)):
        if last and stream == NS - last:
            sheet.text(0, sheet.height + 16, f"… and {count(NS - first - last, 'more stream')} …", look=FAINT)
        sheet.below(_stream(cells, stream, lines, notes, underline), gap=2)
    return sheet


def draw_cells(cells: CellRows) -> Picture:
    """All cells of a cache."""
    sheet = Sheet()
    title = f"Cells: {describe_cells(cells)}"
    sheet.text(0, 14, title, look=BOLD)
    sheet.below(cells_sheet(cells), gap=2)
    sheet.text(0, sheet.height + 14, KEY, size=10, look=FAINT)
    return sheet.picture(title)


def _stream(
    cells: CellRows, stream: int, lines: int, notes: Mapping[tuple[int, int], str], underline: bool
) -> Sheet:
    sheet = Sheet()
    NS, C = cells.pos.shape
    shown = min(C, lines * ACROSS)
    free = []
    for cell in range(shown):
        x, y = _corner(cell)
        if cell % ACROSS == 0:
            named = f"stream {stream}" if NS > 1 and cell == 0 else f"cells {cell}" if NS == 1 else f"{cell}"
            sheet.text(0, y + 19, named, size=11, look=FAINT)
        if cells.pos[stream, cell] < 0:
            free.append((x, y))
        else:
            note = notes.get((stream, cell), "")
            _draw_used(sheet, cells, stream, cell, note, underline and bool(note))
    draw_free(sheet, free)
    _draw_head(sheet, int(cells.head[stream]), shown)
    source = int(cells.src[stream])
    if source != stream:
        sheet.text(
            _LABEL, sheet.height + 10, f"takes over K/V of stream {source} before the next decode", size=10
        )
    if shown < C:
        used = int((cells.pos[stream, shown:] >= 0).sum())
        x, y = _corner(shown - 1)
        more = f"… and {count(C - shown, 'more cell')}, {used:,} of them used"
        sheet.text(x + PITCH_X + 4, y + 19, more, look=FAINT)
    return sheet


def _corner(cell: int) -> Point:
    return _LABEL + cell % ACROSS * PITCH_X, 10 + cell // ACROSS * _PITCH_Y


def _draw_used(sheet: Sheet, cells: CellRows, stream: int, cell: int, note: str, line: bool) -> None:
    x, y = _corner(cell)
    shift = int(cells.shift[stream, cell])
    title = cells.title(stream, cell) + (f"; {note}" if note else "")
    badge = f"{shift:+d}" if shift else ""
    figure = str(int(cells.pos[stream, cell]))
    draw_box(sheet, x, y, figure, title, cells.sequences(stream, cell), line=line, badge=badge)


def _draw_head(sheet: Sheet, head: int, shown: int) -> None:
    """A triangle over the left edge of the head's cell, over the right end of the last one for a head behind it."""
    if 0 <= head < shown:
        x, y = _corner(head)
    elif head == shown:
        x, y = _corner(head - 1)
        x += WIDTH
    else:
        return
    title = f"head: the search for a slot starts at cell {head}"
    sheet.add(f'<path d="M{x - 4:g} {y - 8:g}h8l-4 7z"><title>{title}</title></path>', x + 4, y + HEIGHT)
