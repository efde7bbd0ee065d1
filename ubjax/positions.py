"""Positions of text and images in one sequence, as M-RoPE counts them (llama.cpp's mtmd, Qwen2-VL's get_rope_index).

A token of text has one position in all sections. The tokens of an image share their time, and y and x count its rows
and columns from there; what follows the image starts behind its longer side.

    2 tokens, an image of 2 x 3, 1 token       t   0 1 | 2 2 2 2 2 2 | 5
                                               y   0 1 | 2 2 2 3 3 3 | 5
                                               x   0 1 | 2 3 4 2 3 4 | 5
"""

from collections.abc import Iterable

import numpy as np

from ubjax.config import INT32_MAX, MAX_CELLS, as_integer
from ubjax.typing import Int32, Whole


def mrope_positions(
    parts: Iterable[Whole | tuple[Whole, Whole]], *, start: Whole = 0, n_pos: Whole = 3
) -> Int32[np.ndarray, "P T"]:
    """Positions [P, T] of the tokens of `parts`, one part behind the other, in the order of the image's rows.

    A part is a number of text tokens, or the (rows, columns) of an image after merging, as many tokens as their
    product. `start`: the first position, as `Engine.pos_next` says it. `n_pos`: P, 3 (time, y, x) or 4 (and a 0, as
    llama.cpp stores it). The position that follows is the largest plus one. Raises ValueError for a part that is
    neither, numbers below 1 (a text may be empty), more than any cache holds, and another P.

    >>> mrope_positions([2, (2, 3), 1])
    array([[0, 1, 2, 2, 2, 2, 2, 2, 5],
           [0, 1, 2, 2, 2, 3, 3, 3, 5],
           [0, 1, 2, 3, 4, 2, 3, 4, 5]], dtype=int32)
    """
    at, sections = as_integer(start, "start"), as_integer(n_pos, "n_pos")
    if at < 0:
        raise ValueError(f"start is {at}, at least 0 is needed")
    if sections not in (3, 4):
        raise ValueError(f"n_pos is {sections}, 3 or 4 is needed")
    found = [np.zeros((3, 0), np.int32)]
    for number, part in enumerate(parts):
        rows, columns = _grid(part, number)
        if rows is None:
            block = np.broadcast_to(np.arange(columns), (3, columns))
        else:
            block = np.stack([np.zeros(rows * columns, int), *np.indices((rows, columns)).reshape(2, -1)])
        found.append((at + block).astype(np.int32))
        at += max(rows or 0, columns)
        if at > INT32_MAX:
            raise ValueError(f"part {number} reaches position {at - 1}, at most {INT32_MAX - 1} is possible")
    pos = np.concatenate(found, axis=1)
    return np.concatenate([pos, np.zeros((sections - 3, pos.shape[1]), np.int32)])


def _grid(part: Whole | tuple[Whole, Whole], number: int) -> tuple[int | None, int]:
    """Rows and columns of an image, (None, tokens) of a text."""
    name = f"part {number}"
    if not isinstance(part, tuple | list):
        length = as_integer(part, name)
        if length < 0:
            raise ValueError(f"{name} has {length} tokens of text, at least 0 are needed")
        _check_size(name, length)
        return None, length
    if len(part) != 2:
        raise ValueError(f"{name} has {len(part)} numbers, (rows, columns) of an image are needed")
    rows, columns = (as_integer(n, f"a side of {name}") for n in part)
    if rows < 1 or columns < 1:
        raise ValueError(f"{name} is an image of {rows} x {columns} tokens, at least 1 x 1 is needed")
    _check_size(name, rows * columns)
    return rows, columns


def _check_size(name: str, n_tokens: int) -> None:
    """Refuse what no cache holds, before there is an array of it."""
    if n_tokens > MAX_CELLS:
        raise ValueError(f"{name} has {n_tokens} tokens, at most {MAX_CELLS} are possible")
