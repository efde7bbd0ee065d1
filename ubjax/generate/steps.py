"""Steps: how generation asks for many steps of a decode loop at once, and how many of them."""

import dataclasses
from collections.abc import Collection
from typing import TypeAlias

from ubjax.config import as_integer
from ubjax.sampling import Constraints, LastTokens, SamplingParams

MAX_STEPS = 32  # that one dispatch has room for: a program with more results would not be faster
N_STOP = 16  # room for stop tokens of a sequence; it selects a program, so it grows in powers of two
WATCHED_SECONDS = 0.1  # a dispatch whose pieces somebody waits for

Drawing: TypeAlias = tuple[SamplingParams, Constraints, LastTokens]  # of S sequences


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextToken:
    """A sequence that goes on: its chosen token that is not cached yet, and the position that this one takes.

    left: tokens that may still be drawn. stop: tokens that end it. dropped: tokens that a shift took out of it.
    """

    seq: int
    token: int
    pos: int
    left: int
    stop: Collection[int] = ()
    dropped: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """What a loop drew for each row, in order: (token, log-probability), a token V where nothing was left to choose.

    A stop token that was drawn is the last of its row. last: the last tokens, for the penalties, after all of them.
    """

    drawn: list[list[tuple[int, float]]]
    last: LastTokens


def stop_room(stops: Collection[Collection[int]]) -> int:
    """Room that the stop tokens of all sequences need: 16 or the next power of two."""
    return max(N_STOP, 1 << max(max(map(len, stops), default=0) - 1, 0).bit_length())


class Pace:
    """How many steps the next dispatch runs: what is asked for, else as many as take a tenth of a second.

    Raises ValueError for steps outside [1, 32].
    """

    def __init__(self, steps: int | None):
        if steps is not None and not 1 <= as_integer(steps, "steps_per_dispatch") <= MAX_STEPS:
            raise ValueError(f"steps_per_dispatch is {steps}, a number in [1, {MAX_STEPS}] is needed")
        self._fixed = steps
        self._seconds = WATCHED_SECONDS  # of a step, unknown before the first

    @property
    def steps(self) -> int:
        """At least 1."""
        fitting = int(WATCHED_SECONDS / max(self._seconds, 1e-9))
        return self._fixed or max(1, min(fitting, MAX_STEPS))

    def took(self, seconds: float, steps: int) -> None:
        """Told what a dispatch took."""
        self._seconds = seconds / max(steps, 1)
