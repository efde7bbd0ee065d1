"""Programs that are not compiled yet: a jitted function with the shapes of its arguments, nothing allocated.

What `program.lower().compile()` makes is the program of later calls too, when their arguments agree with these in
shape, dtype and place: jax keeps it by them. Arrays that `device_put` or a program made of such are bound to their
device, host arrays to none, and that is part of it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Program:
    """`function`: its name; `shape`: what tells it from the function's other programs, as people read it."""

    function: str
    shape: str
    lower: Callable[[], jax.stages.Lowered]


def host_shapes(tree: Tree) -> Tree:
    """The shapes of host arrays (or of anything with shape and dtype)."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def device_shapes(tree: Tree, device: Any) -> Tree:
    """The shapes of arrays that are bound to `device`."""
    place = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)
