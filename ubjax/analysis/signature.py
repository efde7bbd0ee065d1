"""Call signatures: what of a call's arguments selects a program of a jitted function, and how two of them differ."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

Kind: TypeAlias = Literal[
    "shape",
    "dtype",
    "weak type",
    "sharding",
    "pytree structure",
    "None or not",
    "static value",
    "new function object",
    "unknown",
]


@dataclasses.dataclass(frozen=True)
class Cause:
    """One difference between two calls: the argument (with its path inside), the kind, both states as text."""

    argument: str
    kind: Kind
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.argument}: {self.kind} {self.before} -> {self.after}"


@dataclasses.dataclass(frozen=True)
class _Array:
    """What jit looks at in an array or number; `value` of a Python number, which counts if the argument is static."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    sharding: str
    value: Any = None


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """An argument, or a part of one: an array, or an object that can only be static."""

    array: _Array | None
    value: Any


@dataclasses.dataclass(frozen=True)
class Signature:
    """Leaves by path, and the structure of each argument."""

    leaves: dict[str, _Leaf]
    structures: dict[str, Any]


def signature_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The signature of a call; arguments that were donated by it may be gone already."""
    arguments = _named(function, args, kwargs)
    leaves, structures = {}, {}
    for name, value in arguments.items():
        found, structures[name] = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is None)
        for path, leaf in found:
            leaves[name + jax.tree_util.keystr(path)] = _leaf(leaf)
    return Signature(leaves, structures)


def differences(old: Signature, new: Signature) -> list[Cause]:
    """What changed from one call to another, argument by argument.

    The value of a Python number selects a program only where the argument is static, which can't be seen from
    outside: it is named when nothing else has changed.
    """
    causes, values = [], []
    for name in {**old.structures, **new.structures}:
        before, after = (
            {path: leaf for path, leaf in s.leaves.items() if _belongs(path, name)} for s in (old, new)
        )
        if before.keys() != after.keys():
            kind_of = [_structure_text(s.structures.get(name)) for s in (old, new)]
            causes.append(Cause(name, "pytree structure", *kind_of))
            continue
        of_leaves = [cause for path in before for cause in _of_leaf(path, before[path], after[path])]
        causes += of_leaves
        if not of_leaves and old.structures[name] != new.structures[name]:
            kind_of = [_structure_text(s.structures[name]) for s in (old, new)]
            causes.append(Cause(name, "pytree structure", *kind_of))
        values += [cause for path in before for cause in _of_value(path, before[path], after[path])]
    return causes or values


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name; what is given by keyword although it has a place is jit's another argument."""
    try:
        names = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature
        names = []
    positional = [p.name for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found = {positional[i] if i < len(positional) else f"args[{i}]": value for i, value in enumerate(args)}
    return found | {f"{n} (by keyword)" if n in positional else n: value for n, value in kwargs.items()}


def _belongs(path: str, name: str) -> bool:
    return path == name or (path.startswith(name) and path[len(name)] in ".[")


def _leaf(value: Any) -> _Leaf:
    is_number = type(value) in (bool, int, float, complex)
    if not is_number and not isinstance(value, jax.Array | np.ndarray | np.generic):
        return _Leaf(None, value)
    aval: Any = jax.typeof(
        type(value)(0) if is_number else value
    )  # a static number may be larger than any dtype
    sharding = "any device"
    if isinstance(value, jax.Array) and value.committed:
        sharding = str(value.sharding)
    array = _Array(aval.shape, str(aval.dtype), bool(aval.weak_type), sharding, value if is_number else None)
    return _Leaf(array, None)


def _of_leaf(path: str, old: _Leaf, new: _Leaf) -> list[Cause]:
    if (old.array is None) != (new.array is None):
        kind = "None or not" if old.value is None and new.value is None else "static value"
        return [Cause(path, kind, _leaf_text(old), _leaf_text(new))]
    if old.array is None or new.array is None:
        if old.value is new.value or _equal(old.value, new.value):
            return []
        if (
            callable(old.value)
            and callable(new.value)
            and code_of(old.value) is code_of(new.value) is not None
        ):
            return [Cause(path, "new function object", repr(old.value), repr(new.value))]
        kind = "None or not" if (old.value is None) != (new.value is None) else "static value"
        return [Cause(path, kind, _leaf_text(old), _leaf_text(new))]
    kinds: dict[Kind, tuple[Any, Any]] = {
        "shape": (old.array.shape, new.array.shape),
        "dtype": (old.array.dtype, new.array.dtype),
        "weak type": (old.array.weak_type, new.array.weak_type),
        "sharding": (old.array.sharding, new.array.sharding),
    }
    return [Cause(path, kind, str(a), str(b)) for kind, (a, b) in kinds.items() if a != b]


def _of_value(path: str, old: _Leaf, new: _Leaf) -> list[Cause]:
    """The value of a Python number."""
    if old.array is None or new.array is None or old.array.value == new.array.value:
        return []
    return [Cause(path, "static value", str(old.array.value), str(new.array.value))]


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def code_of(function: Callable[..., Any]) -> Any:
    """The code object behind a function, a partial, or a jitted one; None where there is none."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            return getattr(function, "__code__", None)
        function = inner


def _leaf_text(leaf: _Leaf) -> str:
    if leaf.array is None:
        return _short(repr(leaf.value))
    return f"{leaf.array.dtype}{list(leaf.array.shape)}"


def _structure_text(structure: Any) -> str:
    return "not given" if structure is None else _short(str(structure).removeprefix("PyTreeDef"))


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."
