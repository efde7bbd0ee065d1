"""Seconds of a ubatch by everything its program depends on, fitted to timings at a few shapes.

F  timed shapes      X  coefficients: three, and one for each knot (number of rows that was timed)

seconds = height(rows) + a * rows * n_kv + b * n_blocks * n_kv + c * n_outputs

`height` is linear between the knots, since few rows are bound by reading the weights, and products of different
forms serve different numbers of them; a is the attention of a row, b reading the K/V of a block, c a row of logits.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from ubjax.analysis.cost import TimedCost
from ubjax.analysis.shapes import StepShape
from ubjax.pictures.wording import amount
from ubjax.typing import Float, Number


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Seconds of a step. `errors`: (shape, predicted / measured - 1) of shapes that the fit has not seen."""

    height: TimedCost
    per_row_cell: float
    per_block_cell: float
    per_output: float
    errors: tuple[tuple[StepShape, float], ...] = ()

    @classmethod
    def of(
        cls, timings: Mapping[StepShape, Number], held_out: Mapping[StepShape, Number] | None = None
    ) -> "StepCost":
        """Fitted to {shape: seconds}, relative errors least squares, no coefficient negative; `held_out` only judge.

        The knots are the rows of shapes of one block. Raises ValueError for fewer than two of them or of numbers of
        attended cells, or seconds that are not positive.
        """
        shapes, seconds = list(timings), np.asarray(list(timings.values()), np.float64)
        knots = sorted({shape.n_rows for shape in shapes if shape.n_blocks == 1})
        if len(knots) < 2 or len({shape.n_kv for shape in shapes}) < 2 or not (seconds > 0).all():
            raise ValueError(
                f"timings at {', '.join(map(str, shapes)) or 'no shapes'}: positive seconds, two numbers of rows in "
                "one block and two of attended cells are needed"
            )
        terms = np.stack([_terms(shape, knots) for shape in shapes])
        found = non_negative_least_squares(terms / seconds[:, None], np.ones(len(seconds))).tolist()
        heights = tuple(zip(knots, found[3:], strict=True))
        cost = cls(TimedCost(heights), *found[:3])
        judged = sorted((held_out or {}).items())
        errors = tuple((shape, cost(shape) / taken - 1) for shape, taken in judged)
        return dataclasses.replace(cost, errors=errors)

    def __call__(self, shape: StepShape) -> float:
        """Seconds of one step."""
        cells = self.per_row_cell * shape.n_rows + self.per_block_cell * shape.n_blocks
        return self.height(shape.n_rows) + cells * shape.n_kv + self.per_output * shape.n_outputs

    @property
    def mean_error(self) -> float:
        """The mean of the relative errors' sizes at held-out shapes, 0 if there are none."""
        return float(np.mean([abs(error) for _, error in self.errors])) if self.errors else 0.0

    @property
    def worst_error(self) -> float:
        """The largest of them."""
        return max((abs(error) for _, error in self.errors), default=0.0)

    def __str__(self) -> str:
        sizes = ", ".join(f"{rows}: {1e3 * seconds:.2f}" for rows, seconds in self.height.timed)
        judged = ", ".join(f"{shape}: {100 * error:+.0f}%" for shape, error in self.errors)
        return (
            f"ms of a step by its rows: {sizes}\n"
            f"and {1e9 * self.per_row_cell:.2f} ns for each row and cell, {1e9 * self.per_block_cell:.1f} ns for each "
            f"block and cell, {1e6 * self.per_output:.1f} us for each row of logits\n"
            f"predicted against measured at {amount(len(self.errors), 'other shape')}: {100 * self.mean_error:.0f}% "
            f"off in the mean, {100 * self.worst_error:.0f}% at worst" + (f" ({judged})" if judged else "")
        )


def _terms(shape: StepShape, knots: list[int]) -> Float[np.ndarray, " X"]:
    """What the coefficients are multiplied with: cells of rows, cells of blocks, outputs, the share of each knot."""
    shares = np.interp(shape.n_rows, knots, np.arange(len(knots)))
    hats = np.maximum(0, 1 - np.abs(shares - np.arange(len(knots))))
    cells = [shape.n_rows * shape.n_kv, shape.n_blocks * shape.n_kv]
    return np.concatenate([cells, [shape.n_outputs], hats]).astype(np.float64)


def non_negative_least_squares(
    a: Float[np.ndarray, "F X"], b: Float[np.ndarray, " F"]
) -> Float[np.ndarray, " X"]:
    """The x >= 0 that makes |a x - b| least, by Lawson and Hanson's active sets."""
    scale = np.maximum(np.linalg.norm(a, axis=0), np.finfo(np.float64).tiny)
    a = a / scale
    x, used = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    for _ in range(3 * a.shape[1]):
        gradient = np.where(used, -np.inf, a.T @ (b - a @ x))
        if gradient.max() <= 1e-12 * max(np.abs(b).max(), 1):
            break
        used[np.argmax(gradient)] = True
        while True:
            best = np.zeros_like(x)
            best[used] = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
            wrong = used & (best <= 0)
            if not wrong.any():
                break
            step = np.min(x[wrong] / (x[wrong] - best[wrong]))
            x += step * (best - x)
            used &= x > 1e-15
            x[~used] = 0
        x = best
    return x / scale
