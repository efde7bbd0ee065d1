"""An attention mask as a picture: rows of a ubatch against the cells of the stream that they read.

Sb  blocks    Lb  rows of a block    n_kv  attended cells
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from ubjax.pictures.boxes import NEUTRAL, colour_of, draw_free, draw_padding, fills
from ubjax.pictures.cells import CellRows
from ubjax.pictures.sheet import FAINT, Sheet, escape
from ubjax.pictures.tokens import TokenRows, sequences_named
from ubjax.pictures.wording import count, ends, ranges
from ubjax.typing import Bool, Int32, Number

SIDE = 13  # px of a square
CELLS = 32
ROWS = 24
BLOCKS = 4
_LABEL = 58


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MaskRows:
    """A mask with what its axes are: the tokens of the rows (-1: padding) and the stream of each block."""

    sees: Bool[np.ndarray, "Sb Lb n_kv"]
    tokens: TokenRows
    places: Int32[np.ndarray, "Sb Lb"]
    cells: CellRows
    stream: Int32[np.ndarray, " Sb"]


def mask_sheet(mask: MaskRows) -> Sheet:
    """Blocks under each other; those that read the same cells share a line of them on top."""
    sheet = Sheet()
    Sb, _, n_kv = mask.sees.shape
    upper, lower = ends(Sb, BLOCKS)
    rows = max(2, ROWS // (upper + lower))
    shown = min(n_kv, CELLS)
    over = None
    for block in (*range(upper), *range(Sb - lower, Sb)):
        if lower and block == Sb - lower:
            sheet.text(4, sheet.height + 15, f"… and {count(Sb - upper - lower, 'more block')} …", look=FAINT)
        if mask.stream[block] != over:
            over = mask.stream[block]
            sheet.below(_head(mask.cells, int(over), shown, len(mask.cells.pos) > 1), gap=4)
        sheet.below(_block(mask, block, rows, shown), gap=2)
    if shown < n_kv:
        sheet.text(_LABEL, sheet.height + 12, f"… and {count(n_kv - shown, 'more cell')}", look=FAINT)
    return sheet


def _x(cell: int) -> int:
    return _LABEL + cell * SIDE


def _head(cells: CellRows, stream: int, shown: int, several: bool) -> Sheet:
    """The cells over the columns."""
    sheet = Sheet()
    sheet.text(0, SIDE - 2, f"stream {stream}" if several else "cells", size=10, look=FAINT)
    pos, words = cells.pos[stream, :shown], cells.seq[stream, :shown]
    draw_free(sheet, [(_x(int(cell)), 0.0) for cell in np.flatnonzero(pos < 0)], SIDE - 1, SIDE - 1)
    fresh = np.any(words[1:] != words[:-1], axis=-1) | ((pos[1:] < 0) != (pos[:-1] < 0))
    for run in np.split(np.arange(shown), np.flatnonzero(fresh) + 1):
        if pos[run[0]] >= 0:
            _head_run(sheet, run, pos[run], cells.sequences(stream, int(run[0])))
    return sheet


def _head_run(sheet: Sheet, run: np.ndarray, pos: np.ndarray, sequences: list[int]) -> None:
    """Neighbours of one sequence set."""
    title = f"{_named('cell', run)}: {sequences_named(sequences)}, {_named('position', pos)}"
    boxes = (
        f'<g transform="translate({i * SIDE} 0)">{fills(SIDE - 1, SIDE - 1, sequences, rx=2)}</g>'
        for i in range(len(run))
    )
    sheet.add(
        f'<g transform="translate({_x(int(run[0]))} 0)"><title>{escape(title, 300)}</title>{"".join(boxes)}</g>',
        _x(int(run[-1]) + 1),
        SIDE,
    )


def _named(noun: str, numbers: np.ndarray) -> str:
    return f"{noun}{'' if len(numbers) == 1 else 's'} {ranges(numbers, 60).replace(' ', ', ')}"


def _block(mask: MaskRows, block: int, rows: int, shown: int) -> Sheet:
    sheet = Sheet()
    Lb = mask.places.shape[1]
    first, last = ends(Lb, rows)
    for row in (*range(first), *range(Lb - last, Lb)):
        if last and row == Lb - last:
            sheet.text(
                _LABEL, sheet.height + 12, f"… and {count(Lb - first - last, 'more row')} …", look=FAINT
            )
        y = sheet.height + 1
        place = int(mask.places[block, row])
        if place < 0:
            sheet.text(0, y + SIDE - 3, "padding", size=10, look=FAINT)
            draw_padding(sheet, [(_LABEL, y)], shown * SIDE - 1, SIDE - 1)
        else:
            _row(sheet, mask, mask.sees[block, row], place, y, shown)
    return sheet


def _row(sheet: Sheet, mask: MaskRows, sees: np.ndarray, place: int, y: Number, shown: int) -> None:
    """A token's row: the cells it sees in its colour, over faint squares for all."""
    seen = np.flatnonzero(sees)
    title = f"{mask.tokens.title(place)}: sees " + (_named("cell", seen) if seen.size else "no cell")
    sheet.text(0, y + SIDE - 3, f"token {mask.tokens.row[place]}", size=10, look=FAINT)
    ids = mask.tokens.sequences(place)
    colour = colour_of(ids[0]) if ids else NEUTRAL
    middle = y + (SIDE - 1) / 2
    squares = f'fill="none" stroke-width="{SIDE - 1}" stroke-dasharray="{SIDE - 1} 1"'
    marks = "".join(
        f"M{_x(begin)} {middle:g}h{(end - begin) * SIDE - 1}" for begin, end in _runs(seen[seen < shown])
    )
    sheet.add(
        f"<g {squares}><title>{escape(title, 300)}</title>"
        f'<path d="M{_x(0)} {middle:g}h{shown * SIDE - 1}" stroke="currentColor" stroke-opacity=".1"/>'
        f'<path d="{marks}" stroke="{colour}"/></g>',
        _x(shown),
        y + SIDE - 1,
    )


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """Neighbours among ascending numbers, as [begin, end)."""
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        if run.size:
            yield int(run[0]), int(run[-1]) + 1
