"""The sizes a split is given: checked where they are plain numbers, data otherwise."""

import jax
import numpy as np

from ubjax.typing import Array, Scalar

_INT32_MAX = 2**31 - 1
ALL_ROWS = _INT32_MAX  # no limit of its own for the rows of a set


def as_size(name: str, value: Scalar, least: int) -> Array:
    """A size as an int32 scalar; a host number outside [least, 2^31) is a ValueError.

    A device array or a tracer passes unread: the splits make an empty plan of one that is too small.
    """
    if isinstance(value, jax.Array):
        return value
    number = int(value)
    if not least <= number <= _INT32_MAX:
        raise ValueError(f"{name} is {number}, a size in [{least}, {_INT32_MAX}] is needed")
    return np.asarray(number, np.int32)
