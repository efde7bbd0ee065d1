"""Call signatures: what of a call's arguments selects a program of a jitted function, and how two of them differ."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

Kind: TypeAlias = Literal[
    "shape",
    "dtype",
    "weak type",
    "sharding",
    "transformation",
    "pytree structure",
    "None or not",
    "given or not",
    "place or keyword",
    "static value",
    "new function object",
    "unknown",
]
_JITTED = type(jax.jit(lambda: 0))
_SPEAK_FOR_THEMSELVES = ("None or not", "given or not", "place or keyword")


@dataclasses.dataclass(frozen=True)
class Cause:
    """One difference between two calls: the argument (with its path inside), the kind, both states as text."""

    argument: str
    kind: Kind
    before: str
    after: str

    def __str__(self) -> str:
        kind = "" if self.kind in _SPEAK_FOR_THEMSELVES else f"{self.kind} "
        return f"{self.argument}: {kind}{self.before} -> {self.after}"


@dataclasses.dataclass(frozen=True)
class _Array:
    """What jit looks at in an array or number; `value` of a Python number, which counts if the argument is static."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    sharding: str
    transformation: str  # the kind of tracer inside one of jax's transformations
    value: Any = None


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """An argument, or a part of one: an array, or an object that can only be static."""

    array: _Array | None
    value: Any


@dataclasses.dataclass(frozen=True)
class Signature:
    """Leaves by path, the structure of each argument, and those by keyword that have a place."""

    leaves: dict[str, _Leaf]
    structures: dict[str, Any]
    by_keyword: frozenset[str]
    defaults: dict[str, str]  # of the parameters that have one, as text

    def of(self, name: str) -> dict[str, _Leaf]:
        """The leaves of one argument."""
        return {path: leaf for path, leaf in self.leaves.items() if _belongs(path, name)}


def signature_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The signature of a call; arguments that were donated by it may be gone already."""
    parameters = _parameters(function)
    places = _places(parameters)
    leaves, structures = {}, {}
    for name, value in (_by_place(places, args) | kwargs).items():
        found, structures[name] = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is None)
        for path, leaf in found:
            leaves[name + jax.tree_util.keystr(path)] = _leaf(leaf)
    defaults = {p.name: _short(repr(p.default)) for p in parameters if p.default is not p.empty}
    return Signature(leaves, structures, frozenset(kwargs) & frozenset(places), defaults)


def quick_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same for calls of one signature; also for other objects at one place in memory, so only a first look."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    return structure, tuple(_quick(leaf) for leaf in leaves)


def _quick(leaf: Any) -> Any:
    if isinstance(leaf, Tracer):
        return type(leaf), leaf.aval
    if isinstance(leaf, jax.Array):
        return leaf.aval, leaf.sharding if leaf.committed else None
    if isinstance(leaf, np.ndarray | np.generic):
        return type(leaf), leaf.shape, leaf.dtype
    return type(leaf), leaf if isinstance(leaf, int | float | complex | str) else id(leaf)


def statics_of(
    function: jax.stages.Wrapped, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, bool]:
    """Which arguments of a call just made are static, by name; without those that can't be told apart.

    jax says how many arguments by place are not static: arrays are among them, and of the numbers all or none.
    Nothing is known of other wrappers than jax.jit's own.
    """
    if not isinstance(function, _JITTED):
        return {}
    dynamic_args, dynamic_kwargs = function.trace(*args, **kwargs).args_info
    static = {name: name not in dynamic_kwargs for name in kwargs}
    numbers = []
    n_dynamic = len(dynamic_args)
    for name, value in _by_place(_places(_parameters(function)), args).items():
        leaves = jax.tree.leaves(value)
        if any(_leaf(leaf).array is None for leaf in leaves):
            static[name] = True
        elif any(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
            static[name] = False
            n_dynamic -= 1
        else:
            numbers.append(name)
    if n_dynamic in (0, len(numbers)):
        static |= dict.fromkeys(numbers, n_dynamic == 0)
    return static


def differences(old: Signature, new: Signature, static: Mapping[str, bool] | None = None) -> list[Cause]:
    """What changed from one call to another, argument by argument; `static` says which are, as far as is known.

    The value of a Python number selects a program only where the argument is static. Where that is not known it is
    named when nothing else has changed.
    """
    static = static or {}
    causes, values = [], []
    for name in {**old.structures, **new.structures}:
        if (name in old.structures) != (name in new.structures):
            states = [_argument_text(s, name) for s in (old, new)]
            causes.append(Cause(name, "given or not", *states))
            continue
        if (name in old.by_keyword) != (name in new.by_keyword):
            ways = ["by keyword" if name in s.by_keyword else "by place" for s in (old, new)]
            causes.append(Cause(name, "place or keyword", *ways))
        before, after = old.of(name), new.of(name)
        if before.keys() != after.keys():
            causes.append(Cause(name, "pytree structure", *(_argument_text(s, name) for s in (old, new))))
            continue
        compare = _of_static if static.get(name) else _of_leaf
        of_leaves = [cause for path in before for cause in compare(path, before[path], after[path])]
        causes += of_leaves
        if not of_leaves and old.structures[name] != new.structures[name]:
            causes.append(Cause(name, "pytree structure", *(_argument_text(s, name) for s in (old, new))))
        if name not in static:
            values += [cause for path in before for cause in _of_value(path, before[path], after[path])]
    return causes or values


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature
        return []


def _places(parameters: list[inspect.Parameter]) -> list[str]:
    """The names of the parameters that can be given by place, in order."""
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _by_place(places: list[str], args: tuple[Any, ...]) -> dict[str, Any]:
    return {places[i] if i < len(places) else f"args[{i}]": value for i, value in enumerate(args)}


def _belongs(path: str, name: str) -> bool:
    return path == name or (path.startswith(name) and path[len(name)] in ".[")


def _leaf(value: Any) -> _Leaf:
    is_number = type(value) in (bool, int, float, complex)
    if not is_number and not isinstance(value, jax.Array | np.ndarray | np.generic):
        return _Leaf(None, value)
    aval: Any = jax.typeof(
        type(value)(0) if is_number else value
    )  # a static number may be larger than any dtype
    sharding, tracer = "any device", "none"
    if isinstance(value, Tracer):
        tracer = type(value).__name__
    elif isinstance(value, jax.Array) and value.committed:
        sharding = str(value.sharding)
    number = value if is_number else None
    return _Leaf(_Array(aval.shape, str(aval.dtype), bool(aval.weak_type), sharding, tracer, number), None)


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
            return [Cause(path, "new function object", _object_text(old.value), _object_text(new.value))]
        kind = "None or not" if (old.value is None) != (new.value is None) else "static value"
        return [Cause(path, kind, _leaf_text(old), _leaf_text(new))]
    kinds: dict[Kind, tuple[Any, Any]] = {
        "shape": (old.array.shape, new.array.shape),
        "dtype": (old.array.dtype, new.array.dtype),
        "weak type": (old.array.weak_type, new.array.weak_type),
        "sharding": (old.array.sharding, new.array.sharding),
        "transformation": (old.array.transformation, new.array.transformation),
    }
    return [Cause(path, kind, str(a), str(b)) for kind, (a, b) in kinds.items() if a != b]


def _of_value(path: str, old: _Leaf, new: _Leaf) -> list[Cause]:
    """The value of a Python number."""
    if old.array is None or new.array is None or old.array.value == new.array.value:
        return []
    return [Cause(path, "static value", str(old.array.value), str(new.array.value))]


def _of_static(path: str, old: _Leaf, new: _Leaf) -> list[Cause]:
    """A part of a static argument: a number by type and value, else as any leaf."""
    if old.array is None and new.array is None:
        return _of_leaf(path, old, new)
    a, b = (leaf.value if leaf.array is None else leaf.array.value for leaf in (old, new))
    return [] if _equal(a, b) else [Cause(path, "static value", _object_text(a), _object_text(b))]


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def code_of(function: Callable[..., Any]) -> Any:
    """The code object behind a function, a partial, or a jitted one; None where there is none."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            return getattr(function, "__code__", None)
        function = inner


def name_of(function: Any) -> str:
    """A function's name; that of a lambda with the file and line that it stands in."""
    code = code_of(function)
    name = getattr(function, "__name__", None) or getattr(code, "co_name", None) or type(function).__name__
    if code is None or code.co_name != "<lambda>":
        return name
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _object_text(value: Any) -> str:
    """A static object, as short as people need it."""
    return name_of(value) if callable(value) and code_of(value) is not None else _short(repr(value))


def _leaf_text(leaf: _Leaf) -> str:
    if leaf.array is None:
        return _object_text(leaf.value)
    return f"{leaf.array.dtype}{list(leaf.array.shape)}"


def _argument_text(signature: Signature, name: str) -> str:
    """An argument as a whole: an array, or its structure with `array` for each leaf."""
    if name not in signature.structures:
        default = signature.defaults.get(name)
        return "not given" if default is None else f"not given (default {default})"
    leaves = signature.of(name)
    if leaves.keys() == {name}:
        return "array" if leaves[name].array is not None else _leaf_text(leaves[name])
    text = str(signature.structures[name]).removeprefix("PyTreeDef(").removesuffix(")").replace("*", "array")
    kind = {"{": "dict ", "[": "list ", "(": "tuple "}.get(text[0], "")
    return kind + _short(text)


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."
