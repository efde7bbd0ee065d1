"""A ubatch as a picture: the rectangle that a step computes, its padding hatched."""

import numpy as np

from ubjax.pictures.batch import KEY
from ubjax.pictures.grid import Limits, draw_tokens
from ubjax.pictures.sheet import BOLD, FAINT, Picture, Sheet
from ubjax.pictures.tokens import TokenRows
from ubjax.pictures.wording import count
from ubjax.typing import Int32


def describe_ubatch(n_tokens: int, n_blocks: int, n_rows: int) -> str:
    """Tokens, bucket and padding in words."""
    padding = n_blocks * n_rows - n_tokens
    shape = f"{n_blocks} × {n_rows} rows" if n_blocks > 1 else count(n_rows, "row")
    return f"{count(n_tokens, 'token')} in {shape}, " + (
        f"{padding:,} of padding" if padding else "no padding"
    )


def draw_ubatch(tokens: TokenRows, places: Int32[np.ndarray, "Sb Lb"]) -> Picture:
    """A ubatch of these tokens; `places` says which of them each row of each block holds, -1 for padding."""
    sheet = Sheet()
    title = f"Ubatch: {describe_ubatch(len(tokens), *places.shape)}"
    sheet.text(0, 14, title, look=BOLD)
    sheet.height += 8
    draw_tokens(sheet, tokens, places, Limits())
    sheet.text(0, sheet.height + 14, KEY, size=10, look=FAINT)
    return sheet.picture(title)
