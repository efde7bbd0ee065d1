"""Boxes in lines: strips that wrap, rectangles of blocks; what is too much is left out and counted."""

import dataclasses
from collections.abc import Callable

import numpy as np

from ubjax.pictures.boxes import HEIGHT, PITCH_X, PITCH_Y, WIDTH, draw_box, draw_padding
from ubjax.pictures.sheet import FAINT, Point, Sheet
from ubjax.pictures.tokens import TokenRows
from ubjax.pictures.wording import count, ends
from ubjax.typing import Int32, Number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How many boxes are drawn: `across` in a line, at most `lines` (2 or more) of a strip and `blocks` of others."""

    across: int = 24
    lines: int = 4
    blocks: int = 12


# Draws box i with its corner at (x, y).
DrawBox = Callable[[int, Number, Number], None]


def draw_strip(sheet: Sheet, n: int, draw: DrawBox, limits: Limits, noun: str) -> None:
    """N boxes in wrapped lines under what is there; whole lines in the middle are left out and counted."""
    first, last = n, 0
    if n > limits.lines * limits.across:
        first, last = (limits.lines - 1) * limits.across, limits.across
    y = sheet.height
    for i in range(first):
        draw(i, i % limits.across * PITCH_X, y + i // limits.across * PITCH_Y)
    if not last:
        return
    sheet.text(4, sheet.height + 16, f"… and {count(n - first - last, f'more {noun}')} …", look=FAINT)
    y = sheet.height + 4
    for i in range(last):
        draw(n - last + i, i % limits.across * PITCH_X, y + i // limits.across * PITCH_Y)


def draw_rectangle(sheet: Sheet, n_blocks: int, n_rows: int, draw: DrawBox, limits: Limits) -> None:
    """n_blocks lines of n_rows boxes each (box i: line by line); lines and columns in the middle are left out."""
    left, right = ends(n_rows, limits.across)
    upper, lower = ends(n_blocks, limits.blocks)
    gap = f"… {n_rows - left - right:,} more …"
    y, gap_x = sheet.height, left * PITCH_X
    right_x = gap_x + (8 * len(gap) if right else 0)
    for line, block in enumerate((*range(upper), *range(n_blocks - lower, n_blocks))):
        if lower and line == upper:
            more = count(n_blocks - upper - lower, "more block")
            sheet.text(4, sheet.height + 16, f"… and {more} …", look=FAINT)
            y = sheet.height + 4 - line * PITCH_Y
        line_y = y + line * PITCH_Y
        for row in range(left):
            draw(block * n_rows + row, row * PITCH_X, line_y)
        if right:
            sheet.text(gap_x + 2, line_y + 20, gap, look=FAINT)
        for i in range(right):
            draw(block * n_rows + n_rows - right + i, right_x + i * PITCH_X, line_y)


def draw_tokens(sheet: Sheet, tokens: TokenRows, places: Int32[np.ndarray, "Sb Lb"], limits: Limits) -> None:
    """A rectangle of blocks; `places` says which of the tokens each row holds, -1 for padding. One block wraps."""
    flat = places.reshape(-1)
    hatched: list[Point] = []

    def draw(i: int, x: Number, y: Number) -> None:
        if flat[i] < 0:
            hatched.append((x, y))
            sheet.add("", x + WIDTH, y + HEIGHT)
        else:
            draw_token(sheet, tokens, int(flat[i]), x, y)

    n_blocks, n_rows = places.shape
    if n_blocks == 1:
        draw_strip(sheet, n_rows, draw, limits, "row")
    else:
        draw_rectangle(sheet, n_blocks, n_rows, draw, limits)
    draw_padding(sheet, hatched)


def draw_token(sheet: Sheet, tokens: TokenRows, i: int, x: Number, y: Number) -> None:
    """Token i as a box: its sequences, its position, a dot for an output."""
    draw_box(
        sheet,
        x,
        y,
        str(int(tokens.pos[0, i])),
        tokens.title(i),
        tokens.sequences(i),
        dot=bool(tokens.output[i]),
    )
