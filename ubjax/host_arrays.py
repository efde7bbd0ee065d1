"""What a caller gave as host arrays, or one sentence that says what is wrong with it."""

import contextlib
import reprlib
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def from_host() -> AbstractContextManager[None]:
    """Arrays on the host may be arguments of programs here, whatever `jax.transfer_guard` says.

    For batches and numbers that programs on the CPU device take: they are in its memory, and `device_put` costs many
    times what the call does. What goes from one device to another stays guarded.
    """
    return jax.transfer_guard_host_to_device("allow")


def as_finite(values: Any, name: str) -> np.ndarray:
    """Real numbers as float32; refuses NaN and infinities, which would spread to every row that meets them."""
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:  # rows of several lengths among them
        raise ValueError(f"{name} can't be read: {error}") from None
    if given.dtype.kind not in "fiu" and given.dtype != jnp.bfloat16:
        raise ValueError(f"{name} have dtype {given.dtype}, real numbers are needed")
    with np.errstate(over="ignore"):
        array = given.astype(np.float32)
    if not np.isfinite(array).all():
        at = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
        raise ValueError(
            f"{name} hold {array[at]} at {[int(i) for i in at]}, finite float32 numbers are needed"
        )
    return array


def as_items(values: Any, name: str, needed: str) -> list[Any]:
    """What a list, an array or any other series holds; ValueError "{name} {values}, {needed}" for what is none.

    That is what can't be iterated over, what has no order, and text or bytes, whose parts are not meant.
    """
    values = np.asarray(values) if isinstance(values, jax.Array) else values
    if not isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set):
        with contextlib.suppress(TypeError):
            return list(values)
    raise ValueError(f"{name} {reprlib.repr(values)}, {needed}")


def length_of(values: Any, name: str) -> int:
    """How many entries an array or a sequence has."""
    try:
        return len(values)
    except TypeError:
        raise ValueError(f"{name} is {values!r}, an array or a list is needed") from None


def as_int32(values: Any, name: str) -> np.ndarray:
    """Integers as an int32 array; refuses fractions and what does not fit, naming the first such entry."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} can't be read as integers: {error}") from None
    if array.dtype == np.int32:
        return array
    if array.size == 0:
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {array.dtype}, integers are needed")
    wrong = (array > 2**31 - 1) | (array < -(2**31))
    if wrong.any():
        at = int(np.argmax(wrong.reshape(-1)))
        raise ValueError(f"{name} entry {at} is {array.reshape(-1)[at]}, a 32-bit integer is needed")
    return array.astype(np.int32)


def as_flags(values: Any) -> np.ndarray:
    """Booleans, or integers 0 and 1."""
    array = np.asarray(values)
    if array.dtype == bool or array.size == 0:
        return array.astype(bool)
    if array.dtype.kind not in "iu" or not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"output holds {array.reshape(-1)[:4].tolist()}, flags (True and False, or 1 and 0) are needed"
        )
    return array.astype(bool)


def sized(array: np.ndarray, n: int, name: str) -> np.ndarray:
    """The array, if it is one of n entries."""
    if array.shape != (n,):
        raise ValueError(f"{name} has shape {list(array.shape)}, [{n}] is needed")
    return array
