"""Wording that texts and pictures share: runs of whole numbers, numbers with their nouns, what is left out."""

from collections.abc import Sequence

import numpy as np


def ranges(numbers: np.ndarray | Sequence[int], room: int) -> str:
    """Whole numbers in their order, runs as `3-7`; what does not fit into `room` columns is left out before the last.

    >>> ranges([0, 1, 2, 7, 10, 11], 20)
    '0-2 7 10-11'
    >>> ranges([0, 5, 10, 15, 20, 25], 14)
    '0 5 10 .. 25'
    >>> ranges([100, 101, 102, 0, 200, 201], 12)
    '100 .. 201'
    """
    numbers = np.asarray(numbers)
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    first, last = np.append(numbers[:1], numbers[breaks + 1]), np.append(numbers[breaks], numbers[-1:])
    runs = list(map(_range, first, last))
    whole = " ".join(runs)
    if len(whole) <= room:
        return whole
    text, end = "", runs[-1]
    for run in runs[:-1]:
        if len(f"{text}{run} .. {end}") > room:
            break
        text += f"{run} "
    return f"{text}.. {end}" if text else f"{first[0]} .. {last[-1]}"


def _range(first: np.integer, last: np.integer) -> str:
    return str(first) if first == last else f"{first}-{last}"


def ends(n: int, shown: int) -> tuple[int, int]:
    """How many of n things to show before and behind a gap, `shown` in all (at least 2): (n, 0) when all are shown.

    >>> ends(8, 8), ends(100, 8)
    ((8, 0), (6, 2))
    """
    if n <= shown:
        return n, 0
    last = max(1, shown // 4)
    return shown - last, last


def ids_of(words: np.ndarray) -> np.ndarray:
    """The sequence ids, ascending, in a set of W 32-bit words."""
    bits = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).astype(np.int32)


def count(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun, for a picture; where the number may be read by programs too, `amount`.

    >>> count(1, "token"), count(4096, "token"), count(2, "ubatch", "ubatches")
    ('1 token', '4,096 tokens', '2 ubatches')
    """
    return f"{n:,} {noun(n, one, many)}"


def amount(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun, without commas.

    >>> amount(1, "token"), amount(4096, "token"), amount(2, "ubatch", "ubatches")
    ('1 token', '4096 tokens', '2 ubatches')
    """
    return f"{n} {noun(n, one, many)}"


def noun(n: int, one: str, many: str | None = None) -> str:
    """The noun, or the verb, of n things.

    >>> noun(1, "token"), noun(0, "token"), noun(2, "is", "are")
    ('token', 'tokens', 'are')
    """
    return one if n == 1 else many or one + "s"
