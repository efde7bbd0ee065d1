"""Boxes: one for each token, cell or row of padding, on a grid of PITCH_X by PITCH_Y px.

A box is filled with the colours of its sequences, at most BANDS of them side by side; small in its corner stands the
sequence, large the position. Padding is hatched, a free cell an outline.
"""

from collections.abc import Iterable, Sequence

from ubjax.pictures.sheet import DARK, TEXT_SIZE, Point, Sheet, escape, text_width
from ubjax.typing import Number

# Paul Tol's "light" scheme (https://sronpersonalpages.nl/~pault): backgrounds for black text that stay apart for
# colour-blind readers. A sequence keeps its colour; from the ninth on they come again.
PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#44bb99", "#bbcc33", "#99ddff", "#aaaa00")
NEUTRAL = "#dddddd"
BANDS = 4
WIDTH, HEIGHT = 32, 30
PITCH_X, PITCH_Y = 34, 32
_HATCH = 8  # px between lines


def colour_of(seq: int) -> str:
    """The fill of a sequence."""
    return PALETTE[seq % len(PALETTE)]


def fills(width: Number, height: Number, sequences: Sequence[int], rx: int = 4) -> str:
    """A rectangle at the origin in the colours of some sequences; in a neutral one without."""
    colours = [colour_of(seq) for seq in sequences[:BANDS]] or [NEUTRAL]
    if len(colours) == 1:
        return f'<rect width="{width:g}" height="{height:g}" rx="{rx}" fill="{colours[0]}"/>'
    band = width / len(colours)
    return "".join(
        f'<rect x="{i * band:.4g}" width="{band:.4g}" height="{height:g}" fill="{colour}"/>'
        for i, colour in enumerate(colours)
    )


def short_ids(sequences: Sequence[int]) -> str:
    """The sequences of a box as its corner shows them."""
    if len(sequences) > 2:
        return f"{sequences[0]}+{len(sequences) - 1}"
    return ",".join(map(str, sequences))


def draw_box(
    sheet: Sheet,
    x: Number,
    y: Number,
    figure: str,
    title: str,
    sequences: Sequence[int] = (),
    *,
    dot: bool = False,
    line: bool = False,
    badge: str = "",
) -> None:
    """A filled box at (x, y): `dot` in its corner for an output, a `line` under it, a `badge` in the dot's place."""
    size = next(s for s in (12, 10.5, 9, 7.5, 6) if s == 6 or text_width(figure, s) <= WIDTH - 2)
    small = "" if size == TEXT_SIZE else f' font-size="{size:g}"'
    corner = short_ids(sequences)
    inner = fills(WIDTH, HEIGHT, sequences)
    if corner:
        inner += f'<text x="3" y="9.5" font-size="8" text-anchor="start">{corner}</text>'
    inner += f'<text x="16" y="{24 if corner else 19.5}"{small}>{escape(figure, 12)}</text>'
    if badge:
        look = 'font-size="8" font-weight="700" text-anchor="end"'
        inner += f'<text x="{WIDTH - 2}" y="9.5" {look}>{escape(badge, 8)}</text>'
    elif dot:
        inner += f'<circle cx="{WIDTH - 6}" cy="6.5" r="3"/>'
    if line:
        inner += f'<rect x="5" y="26" width="{WIDTH - 10}" height="2"/>'
    sheet.add(
        f'<g transform="translate({x:g} {y:g})" fill="{DARK}" text-anchor="middle"><title>{escape(title, 300)}</title>'
        f"{inner}</g>",
        x + WIDTH,
        y + HEIGHT,
    )


def draw_padding(
    sheet: Sheet, corners: Iterable[Point], width: Number = WIDTH, height: Number = HEIGHT
) -> None:
    """Hatched boxes with their corners at these points."""
    corners = list(corners)
    if not corners:
        return
    outline = "".join(f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z" for x, y in corners)
    lines = "".join(_hatch(x, y, width, height) for x, y in corners)
    sheet.add(
        "<g><title>padding</title>"
        f'<path d="{outline}" fill-opacity=".06" stroke="currentColor" stroke-opacity=".45"/>'
        f'<path d="{lines}" stroke="currentColor" stroke-opacity=".45"/></g>',
        max(x for x, _ in corners) + width,
        max(y for _, y in corners) + height,
    )


def _hatch(x: Number, y: Number, width: Number, height: Number) -> str:
    """Diagonals, cut at the edges of a rectangle."""
    lines = []
    for at in range(_HATCH, int(width + height), _HATCH):
        across = min(at, width) - max(at - height, 0)
        lines.append(f"M{x + max(at - height, 0):g} {y + min(at, height):g}l{across:g} {-across:g}")
    return "".join(lines)


def draw_free(sheet: Sheet, corners: Iterable[Point], width: Number = WIDTH, height: Number = HEIGHT) -> None:
    """Outlines of free cells with their corners at these points."""
    corners = list(corners)
    if not corners:
        return
    outline = "".join(
        f"M{x + 0.5:g} {y + 0.5:g}h{width - 1:g}v{height - 1:g}h{1 - width:g}z" for x, y in corners
    )
    sheet.add(
        "<g><title>free</title>"
        f'<path d="{outline}" fill-opacity="0" stroke="currentColor" stroke-opacity=".4" stroke-dasharray="3 2"/></g>',
        max(x for x, _ in corners) + width,
        max(y for _, y in corners) + height,
    )
