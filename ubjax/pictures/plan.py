"""A split plan as a picture, without its batch: which rows each ubatch takes."""

import numpy as np

from ubjax.pictures.boxes import draw_box
from ubjax.pictures.grid import Limits, draw_rectangle, draw_strip
from ubjax.pictures.sheet import BOLD, FAINT, Picture, Sheet
from ubjax.pictures.wording import count, ends
from ubjax.typing import Int32, Number

ROOM = 820  # px for panels side by side
UBATCHES = 6
PANEL = Limits(across=8, lines=3, blocks=6)


def draw_plan(
    order: Int32[np.ndarray, " n_used"],
    n_seqs: Int32[np.ndarray, " K"],
    offset: Int32[np.ndarray, " K+1"],
    equal_seqs: bool,
) -> Picture:
    """A plan of K ubatches: the batch rows of each, as rectangles where they are equal."""
    K = len(n_seqs)
    sheet = Sheet()
    title = f"SplitPlan: {count(K, 'ubatch', 'ubatches')} of {count(len(order), 'token')}"
    sheet.text(0, 14, title, look=BOLD)
    first, last = ends(K, UBATCHES)
    panels = []
    for k in (*range(first), *range(K - last, K)):
        if last and k == K - last:
            panels.append(gap_panel(K - first - last))
        panels.append(_panel(k, order[offset[k] : offset[k + 1]], int(n_seqs[k]), equal_seqs))
    sheet.height += 8
    sheet.flow(panels, ROOM)
    if K:
        sheet.text(0, sheet.height + 16, "number: batch row", size=10, look=FAINT)
    return sheet.picture(title)


def gap_panel(n: int) -> Sheet:
    """A panel that stands for n ubatches."""
    sheet = Sheet()
    sheet.text(0, 12, f"… and {count(n, 'more ubatch', 'more ubatches')} …", look=FAINT)
    return sheet


def shape_named(n_tokens: int, n_seqs: int, equal_seqs: bool) -> str:
    """The tokens of a ubatch: sets x rows where they are a rectangle."""
    return f"{n_seqs} × {n_tokens // max(n_seqs, 1)}" if equal_seqs else count(n_tokens, "token")


def _panel(k: int, rows: np.ndarray, n_seqs: int, equal_seqs: bool) -> Sheet:
    sheet = Sheet()
    sheet.text(0, 12, f"ubatch {k}: {shape_named(len(rows), n_seqs, equal_seqs)}")
    sheet.height += 4

    def draw(i: int, x: Number, y: Number) -> None:
        draw_box(sheet, x, y, str(int(rows[i])), f"ubatch {k}, batch row {rows[i]}")

    if equal_seqs and n_seqs:
        draw_rectangle(sheet, n_seqs, len(rows) // n_seqs, draw, PANEL)
    else:
        draw_strip(sheet, len(rows), draw, PANEL, "row")
    return sheet
