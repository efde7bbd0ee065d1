"""Seconds of a ubatch by its rows: from a model's sizes and a machine's peaks, or from timings at a few sizes."""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from ubjax.analysis.padding import ModelSizes
from ubjax.typing import Number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """The larger of two times: the FLOPs at `flops` [1/s], or reading weights and K/V once at `bandwidth` [bytes/s].

    A ubatch of R rows reads every weight once (`weight_bytes` each), and each row attends `n_kv` cells, read once for
    all rows (`kv_bytes` for a value); logits are left out. Few rows are bound by the reading, many by the FLOPs.
    """

    sizes: ModelSizes
    flops: Number
    bandwidth: Number
    weight_bytes: Number = 4
    kv_bytes: Number = 4
    n_kv: int = 0

    def __post_init__(self) -> None:
        if not self.flops > 0 or not self.bandwidth > 0:
            raise ValueError(f"{self.flops} FLOP/s and {self.bandwidth} bytes/s: positive numbers are needed")

    def __call__(self, rows: int) -> float:
        """Seconds of a ubatch of so many rows."""
        s = self.sizes
        weights = s.row_flops // 2  # a weight is one product and one sum
        kv_values = 2 * s.n_layers * s.n_kv_heads * s.head_dim * self.n_kv
        read = weights * self.weight_bytes + kv_values * self.kv_bytes
        return max(rows * (s.row_flops + self.n_kv * s.cell_flops) / self.flops, read / self.bandwidth)


@dataclasses.dataclass(frozen=True)
class TimedCost:
    """Seconds by rows, linear between the sizes that were timed and on from the last two; errors at others.

    `timed` is ascending (rows, seconds); `errors` are (rows, predicted / measured - 1) of sizes that were held out.
    """

    timed: tuple[tuple[int, float], ...]
    errors: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, timings: Mapping[int, float], held_out: Mapping[int, float] | None = None) -> "TimedCost":
        """From {rows: seconds}, at least two sizes; `held_out` are further ones that only judge the result."""
        if len(timings) < 2 or not all(rows > 0 and seconds > 0 for rows, seconds in timings.items()):
            raise ValueError(f"timings at {sorted(timings)} rows: two positive sizes and times are needed")
        cost = cls(tuple(sorted(timings.items())))
        judged = sorted((held_out or {}).items())
        return cls(cost.timed, tuple((rows, cost(rows) / seconds - 1) for rows, seconds in judged))

    @property
    def worst_error(self) -> float:
        """The largest relative error at a held-out size, 0 if there is none."""
        return max((abs(error) for _, error in self.errors), default=0.0)

    def __call__(self, rows: int) -> float:
        """Seconds of a ubatch of so many rows."""
        sizes, seconds = zip(*self.timed, strict=True)
        if rows <= sizes[-1]:
            return float(np.interp(rows, sizes, seconds))
        (r0, s0), (r1, s1) = self.timed[-2:]
        return s1 + max(s1 - s0, 0.0) / (r1 - r0) * (rows - r1)

    def never_falling(self) -> "TimedCost":
        """The same with every time at least that of fewer rows: what a search for shapes of several sets needs."""
        sizes, seconds = zip(*self.timed, strict=True)
        return TimedCost(tuple(zip(sizes, itertools.accumulate(seconds, max), strict=True)), self.errors)
