"""The one dataclass decorator of the house: frozen, keyword-only, registered with key paths.

Fields are array leaves (or further pytrees) unless declared with `static()`, which makes them part of
the tree structure: they select a program and must be hashable. Unflattening skips `__init__`, so that jax may
put anything (tracers, shape structs, sentinels) into the leaves without a type check striking.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

T = TypeVar("T", bound=type)


def static(**kwargs: Any) -> Any:
    """A dataclass field that belongs to the tree structure instead of the leaves (hashable)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static,))
def pytree(cls: T) -> T:
    """Turn a class with annotations into a frozen, keyword-only dataclass that is a jax pytree.

    Instances compare by identity (a tuple-wise `==` of arrays would be neither a bool nor cheap). They have
    `.replace(**changes)` through `dataclasses.replace`.
    """
    cls = dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
    fields = dataclasses.fields(cls)
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in leaves)
    # Called for every node of every argument and result of a program: a loop over names takes three times as long.
    leaves_of, statics_of = _getter(leaves), _getter(statics)

    def flatten(obj: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return leaves_of(obj), statics_of(obj)

    def flatten_with_keys(obj: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, aux = flatten(obj)
        return tuple(zip(keys, children, strict=True)), aux

    def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
        obj = object.__new__(cls)
        fields = vars(obj)
        fields.update(zip(leaves, children, strict=True))
        fields.update(zip(statics, aux, strict=True))
        return obj

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the attributes of these names as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda obj: tuple(getattr(obj, name) for name in names)


def at_hand(tree: Any) -> bool:
    """Whether the values of all leaves can be read now: arrays, no tracers, none deleted or on another host."""

    def readable(leaf: Any) -> bool:
        if isinstance(leaf, jax.core.Tracer):
            return False
        if isinstance(leaf, jax.Array):
            return leaf.is_fully_addressable and not leaf.is_deleted()
        return isinstance(leaf, np.ndarray | np.generic)

    return all(map(readable, jax.tree.leaves(tree)))


def pack(tree: Any) -> jax.Array:
    """All integer and bool leaves of a tree as one int32 vector, to be fetched by the host at once.

    Fetching an array costs ten microseconds and more whatever its size, so a dozen small ones are better packed.
    """
    return jnp.concatenate([jnp.ravel(jnp.asarray(x)).astype(jnp.int32) for x in jax.tree.leaves(tree)])


class Layout:
    """Where `pack` puts the leaves of a tree; `like` gives its structure, shapes and dtypes (not read).

    Made once for a program's results: asking a dozen device arrays for their shapes takes longer than the rest.
    """

    def __init__(self, like: Any):
        leaves, self._structure = jax.tree.flatten(like)
        ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves]).tolist()
        self._parts = [
            (start, end, tuple(leaf.shape), None if leaf.dtype == np.int32 else np.dtype(leaf.dtype))
            for start, end, leaf in zip([0, *ends], ends, leaves, strict=False)
        ]

    def unpack(self, vector: np.ndarray) -> Any:
        """The tree that was packed, as views of the vector."""
        parts = []
        for start, end, shape, dtype in self._parts:
            part = vector[start:end].reshape(shape) if shape else vector[start]
            parts.append(part if dtype is None else part.astype(dtype))
        return jax.tree.unflatten(self._structure, parts)
