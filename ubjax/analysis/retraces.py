"""watch: a jitted function that remembers its calls' signatures and names what caused each new program."""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax

from ubjax.analysis.compiles import UnexpectedCompilationError
from ubjax.analysis.events import Stage, cache_generation, program_events
from ubjax.analysis.signature import (
    Cause,
    Signature,
    code_of,
    differences,
    name_of,
    quick_key,
    signature_of,
    statics_of,
)
from ubjax.pictures.wording import amount

P = ParamSpec("P")
R = TypeVar("R")

# What is no function is refused by a sentence of `Watched`, not by checks of types at run time.
if TYPE_CHECKING:
    Function = Callable
else:

    class Function:
        """Any value, whatever stands in the brackets."""

        def __class_getitem__(cls, _: Any) -> Any:
            return Any


_MOST_SIGNATURES = 256  # remembered for each function; the oldest go
_MOST_KEYS = 4096  # of calls that need no second look


@dataclasses.dataclass(frozen=True)
class Retrace:
    """A call that needed a new program: the number of the call (from 1), what was built, and why.

    `causes` are the differences to the earlier call that was most alike; none for the first one.
    """

    call: int
    built: tuple[str, ...]
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        why = "; ".join(map(str, self.causes)) if self.causes else "first call"
        return f"call {self.call}: {', '.join(self.built)}: {why}"


_OPERATIONS = {*dir(jax.numpy), *dir(jax.lax)}  # which are jitted once, with the module


class Watched(Generic[P, R]):
    """A function that behaves as the one it wraps, and keeps a list of its retraces. Made by `watch`."""

    def __init__(self, function: Function[P, R]):
        if not callable(function):
            raise ValueError(
                f"watch was given {function!r}: a function, jitted or one that calls some, is needed"
            )
        functools.update_wrapper(self, function)
        self._function = function
        self._signatures, self._earlier = _earlier_calls(function)
        self._keys: set[Any] = set()
        self._static: dict[str, bool] = {}
        self._generation = cache_generation()
        self.calls = 0
        self.retraces: list[Retrace] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function. A call that needs a new program is noted, and an UnexpectedCompilationError tells why."""
        self.calls += 1
        built: list[str] = []
        here = threading.get_ident()

        def note(name: str, stage: Stage, seconds: float) -> None:
            if threading.get_ident() == here and stage != "lowered":
                built.append(f"{name} {stage}")

        try:
            with program_events(note):
                result = self._function(*args, **kwargs)
        except UnexpectedCompilationError as error:
            retrace = self._note(built, signature_of(self._function, args, kwargs))
            raise UnexpectedCompilationError(error.function, str(retrace)) from None
        key = quick_key(args, kwargs)
        if not built and key in self._keys:
            return result
        if len(self._keys) >= _MOST_KEYS:
            self._keys.clear()
        self._keys.add(key)
        signature = signature_of(self._function, args, kwargs)
        if built:
            if isinstance(self._function, jax.stages.Wrapped):
                self._static |= statics_of(self._function, args, kwargs)
            self._note(built, signature)
        if signature not in self._signatures:
            self._signatures.append(signature)
            del self._signatures[:-_MOST_SIGNATURES]
        return result

    def _note(self, built: list[str], signature: Signature) -> Retrace:
        generation, before = cache_generation(), self._generation
        causes = self._causes(signature) or self._unseen(built, generation != before)
        by_value = len(causes) == 1 and causes[0].kind == "static value"  # alone: now it is known
        if by_value and isinstance(self._function, jax.stages.Wrapped):
            self._static.setdefault(causes[0].argument, True)
        self._generation = generation
        retrace = Retrace(self.calls, tuple(built), tuple(causes))
        self.retraces.append(retrace)
        return retrace

    def _causes(self, signature: Signature) -> list[Cause]:
        """The differences to the most similar earlier call, the latest of equals."""
        if not self._signatures:
            again = any(not differences(old, signature) for old in self._earlier)
            new = Cause(name_of(self._function), "new function object", "one of the same code", "this one")
            return [new] if again else []
        found = (differences(old, signature, self._static) for old in reversed(self._signatures))
        return min(found, key=len)

    def _unseen(self, built: list[str], lost: bool) -> list[Cause]:
        """What caused a program for arguments that an earlier call had; none for the first call."""
        if not self._signatures:
            return []
        if lost or isinstance(self._function, jax.stages.Wrapped):
            cleared = "the same, but jax's caches were cleared or its configuration changed"
            return [Cause(name_of(self._function), "unknown", "these arguments", cleared)]
        ready = [stage for stage in built if not stage.endswith(" traced")] or built
        names = dict.fromkeys(stage.rpartition(" ")[0] for stage in ready)
        own = [name for name in names if name.lstrip("_").replace("-", "_") not in _OPERATIONS]
        anew = "one jitted anew in each call (or given other shapes inside)"
        if own:
            return [Cause(name, "new function object", "one that had these arguments", anew) for name in own]
        few = ", ".join([*names][:3]) + (" ..." if len(names) > 3 else "")
        return [Cause(few, "shape", "those of earlier calls", "other ones, which depend on values")]

    def __str__(self) -> str:
        calls, n = amount(self.calls, "call"), len(self.retraces)
        lines = [f"{name_of(self._function)}: {calls}, {amount(n, 'program')}"]
        return "\n  ".join([*lines, *map(str, self.retraces)])

    __repr__ = __str__


def watch(function: Function[P, R]) -> Watched[P, R]:
    """Wrap a jitted function (or one that calls some) so that it names the cause of every new program.

    >>> import jax, jax.numpy as jnp
    >>> double = watch(jax.jit(lambda x: 2 * x))
    >>> for x in (jnp.ones(2), jnp.ones(2), jnp.ones(3)):
    ...     _ = double(x)
    >>> for retrace in double.retraces[1:]:
    ...     print(retrace.call, *retrace.causes)
    3 x: shape (2,) -> (3,)

    Causes: an argument's shape, dtype, weak type, sharding, pytree structure (None or not, apart), static value,
    place or keyword, or a new function object: as a static argument, one that is jitted anew inside each call, or a
    function of the same code that was watched before and jitted again. Calls that compiled nothing are remembered
    too, and those of an earlier watch of the same function.

    Raises ValueError for what can't be called.
    """
    return Watched(function)


@dataclasses.dataclass
class _Seen:
    """The last function of a code that was watched, what it wraps, and its calls."""

    function: weakref.ref[Any]
    inner: weakref.ref[Any]
    signatures: list[Signature]


_functions: dict[Any, _Seen] = {}  # by code


def _earlier_calls(function: Callable[..., Any]) -> tuple[list[Signature], list[Signature]]:
    """The calls of this function that were seen before, to be continued; those of another one of the same code."""
    code = code_of(function)
    if code is None:
        return [], []
    inner = getattr(function, "__wrapped__", function)
    seen = _functions.get(code)
    if seen is not None and seen.function() is function:
        return seen.signatures, []
    own: list[Signature] = []
    _functions[code] = _Seen(weakref.ref(function), weakref.ref(inner), own)
    return own, [] if seen is None or seen.inner() is inner else seen.signatures
