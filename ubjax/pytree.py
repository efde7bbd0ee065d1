"""The one dataclass decorator of the house: frozen, keyword-only, registered with key paths.

Fields are array leaves (or further pytrees) unless declared with `static()`, which makes them part of
the tree structure: they select a program and must be hashable. Unflattening skips `__init__`, so that jax may
put anything (tracers, shape structs, sentinels) into the leaves without a type check striking.
"""

import dataclasses
import math
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

    def flatten(obj: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(obj, n) for n in leaves), tuple(getattr(obj, n) for n in statics)

    def flatten_with_keys(obj: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, aux = flatten(obj)
        return tuple(zip(keys, children, strict=True)), aux

    def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
        obj = object.__new__(cls)
        for name, value in zip(leaves, children, strict=True):
            object.__setattr__(obj, name, value)
        for name, value in zip(statics, aux, strict=True):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


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


def unpack(vector: np.ndarray, like: Any) -> Any:
    """The tree that was packed, as views of the vector; `like` gives its structure, shapes and dtypes (not read)."""
    leaves, structure = jax.tree.flatten(like)
    parts, start = [], 0
    for leaf in leaves:
        shape, end = leaf.shape, start + math.prod(leaf.shape)
        part = vector[start] if shape == () else vector[start:end].reshape(shape)
        parts.append(part if leaf.dtype == np.int32 else part.astype(leaf.dtype))
        start = end
    return jax.tree.unflatten(structure, parts)
