"""SamplingParams: how each sequence draws, as arrays [S], so that changing them compiles nothing.

Axes: S sequences (n_seq_max).
"""

from typing import Any, TypeVar

import jax
import numpy as np

from ubjax.pytree import pytree
from ubjax.typing import Array, Float, Int32, Scalar, UInt32

Tree = TypeVar("Tree")


@pytree
class SamplingParams:
    """What `sample` reads for each sequence; in brackets the value that switches a station off.

    temperature (0: greedy, the filters do not apply), top_k (0), typical_p (1), top_p (1), min_p (0),
    repeat_penalty (1), presence_penalty and frequency_penalty (0), seed.
    """

    temperature: Float[Array, " S"]
    top_k: Int32[Array, " S"]
    typical_p: Float[Array, " S"]
    top_p: Float[Array, " S"]
    min_p: Float[Array, " S"]
    repeat_penalty: Float[Array, " S"]
    presence_penalty: Float[Array, " S"]
    frequency_penalty: Float[Array, " S"]
    seed: UInt32[Array, " S"]

    @classmethod
    def of(
        cls,
        n_seq_max: int = 1,
        *,
        temperature: Any = 0.0,
        top_k: Any = 0,
        typical_p: Any = 1.0,
        top_p: Any = 1.0,
        min_p: Any = 0.0,
        repeat_penalty: Any = 1.0,
        presence_penalty: Any = 0.0,
        frequency_penalty: Any = 0.0,
        seed: Any = 0,
    ) -> "SamplingParams":
        """Checked parameters: of each argument one value for all sequences, or one for each [S].

        Ranges: temperature >= 0; top_k in [0, 2^31); typical_p, top_p and min_p in [0, 1]; repeat_penalty > 0;
        presence_penalty and frequency_penalty any finite number; seed in [0, 2^32). Raises ValueError, naming
        the parameter and the sequence.

        >>> SamplingParams.of(2, temperature=0.8, seed=[1, 2]).seed
        array([1, 2], dtype=uint32)
        >>> SamplingParams.of(2, top_p=[0.5, 1.5])
        Traceback (most recent call last):
        ...
        ValueError: top_p of sequence 1 is 1.5, a number in [0, 1] is needed
        """
        share = "a number in [0, 1]"
        above_0 = float(np.finfo(np.float32).tiny)  # anything smaller is 0 on most devices
        return cls(
            temperature=_numbers("temperature", temperature, n_seq_max, 0.0, "a finite number of at least 0"),
            top_k=_integers("top_k", top_k, n_seq_max, np.int32, "2^31"),
            typical_p=_numbers("typical_p", typical_p, n_seq_max, 0.0, share, high=1.0),
            top_p=_numbers("top_p", top_p, n_seq_max, 0.0, share, high=1.0),
            min_p=_numbers("min_p", min_p, n_seq_max, 0.0, share, high=1.0),
            repeat_penalty=_numbers(
                "repeat_penalty", repeat_penalty, n_seq_max, above_0, "a finite number above 0"
            ),
            presence_penalty=_numbers("presence_penalty", presence_penalty, n_seq_max),
            frequency_penalty=_numbers("frequency_penalty", frequency_penalty, n_seq_max),
            seed=_integers("seed", seed, n_seq_max, np.uint32, "2^32"),
        )


@jax.jit
def set_sequence(tree: Tree, seq: Scalar, one: Tree) -> Tree:
    """`tree` (a pytree of arrays [S, ...]) with the row of sequence `seq` taken from `one` (the same with S = 1).

    Works on SamplingParams, Constraints, LastTokens, or a tuple of them. A sequence outside [0, S) changes
    nothing.

    >>> params = set_sequence(SamplingParams.of(3), 1, SamplingParams.of(temperature=0.5))
    >>> params.temperature.tolist()
    [0.0, 0.5, 0.0]
    """

    def put(rows: jax.Array, row: jax.Array) -> jax.Array:
        place = jax.numpy.where(seq < 0, rows.shape[0], seq)  # a negative index would wrap around
        return jax.numpy.asarray(rows).at[place].set(row[0], mode="drop")

    return jax.tree.map(put, tree, one)


def _numbers(
    name: str,
    value: Any,
    n_seq_max: int,
    low: float = -np.inf,
    needed: str = "a finite number",
    *,
    high: float = np.inf,
) -> np.ndarray:
    """float32 [S], every entry finite (in float32 too) and in [low, high]."""
    given = np.asarray(value)
    if given.dtype.kind not in "iuf":
        raise ValueError(f"{name} is {value!r}, {needed} is needed")
    with np.errstate(over="ignore"):
        rows = given.astype(np.float32)
    inside = np.isfinite(rows) & (given >= low) & (given <= high)
    return _rows(name, given, rows, np.asarray(inside), n_seq_max, needed)


def _integers(name: str, value: Any, n_seq_max: int, dtype: type, end: str) -> np.ndarray:
    """Integers [S] of `dtype`, none negative."""
    given, needed = np.asarray(value), f"an integer in [0, {end})"
    if given.dtype.kind not in "iu":
        raise ValueError(f"{name} is {value!r}, {needed} is needed")
    inside = (given >= 0) & (given <= np.iinfo(dtype).max)
    return _rows(name, given, given.astype(dtype), np.asarray(inside), n_seq_max, needed)


def _rows(
    name: str, given: np.ndarray, rows: np.ndarray, inside: np.ndarray, n_seq_max: int, needed: str
) -> np.ndarray:
    """One entry for each sequence; the first one that is not `inside` is refused."""
    if given.shape not in ((), (n_seq_max,)):
        raise ValueError(f"{name} has shape {given.shape}, one value or shape {(n_seq_max,)} is needed")
    if not inside.all():
        bad = int(np.argmin(inside))
        whose = f" of sequence {bad}" if given.ndim else ""
        raise ValueError(f"{name}{whose} is {given.reshape(-1)[bad].item()}, {needed} is needed")
    return np.array(np.broadcast_to(rows, (n_seq_max,)))
