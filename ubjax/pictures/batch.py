"""A batch as a picture: its tokens in order, then its padding."""

import numpy as np

from ubjax.pictures.boxes import draw_padding
from ubjax.pictures.grid import Limits, draw_strip, draw_token
from ubjax.pictures.sheet import BOLD, FAINT, Picture, Point, Sheet
from ubjax.pictures.tokens import TokenRows, sequences_named
from ubjax.pictures.wording import count, ids_of
from ubjax.typing import Number

KEY = "large: position, small: sequence; dot: output; hatched: padding"
_PADDING_SHOWN = 4


def batch_sheet(tokens: TokenRows, n_padding: int, limits: Limits) -> Sheet:
    """The strip alone."""
    sheet = Sheet()
    n, shown = len(tokens), min(n_padding, _PADDING_SHOWN)
    hatched: list[Point] = []

    def draw(i: int, x: Number, y: Number) -> None:
        if i < n:
            draw_token(sheet, tokens, i, x, y)
        else:
            hatched.append((x, y))
            sheet.add("", x, y)

    draw_strip(sheet, n + shown, draw, limits, "token")
    draw_padding(sheet, hatched)
    if n_padding > shown:
        sheet.text(
            4, sheet.height + 16, f"… and {count(n_padding - shown, 'more row')} of padding", look=FAINT
        )
    return sheet


def describe_batch(tokens: TokenRows, n_padding: int) -> str:
    """What a batch is, in words."""
    if not len(tokens):
        return f"no tokens, room for {n_padding:,}"
    ids = ids_of(np.bitwise_or.reduce(tokens.seq, axis=0)).tolist()
    outputs = count(int(tokens.output.sum()), "output")
    room = f", room for {len(tokens) + n_padding:,}" if n_padding else ""
    return f"{count(len(tokens), 'token')} of {sequences_named(ids)}, {outputs}{room}"


def draw_batch(tokens: TokenRows, n_padding: int) -> Picture:
    """A batch of these tokens with `n_padding` unused rows behind them."""
    sheet = Sheet()
    title = f"Batch: {describe_batch(tokens, n_padding)}"
    sheet.text(0, 14, title, look=BOLD)
    sheet.below(batch_sheet(tokens, n_padding, Limits()))
    sheet.text(0, sheet.height + 14, KEY, size=10, look=FAINT)
    return sheet.picture(title)
