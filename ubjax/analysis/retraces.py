"""watch: a jitted function that remembers its calls' signatures and names what caused each new program."""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from ubjax.analysis.compiles import UnexpectedCompilationError
from ubjax.analysis.events import Stage, program_events
from ubjax.analysis.signature import Cause, Signature, code_of, differences, signature_of

P = ParamSpec("P")
R = TypeVar("R")

_MOST_SIGNATURES = 256  # remembered for each function; the oldest go


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


class Watched(Generic[P, R]):
    """A function that behaves as the one it wraps, and keeps a list of its retraces. Made by `watch`."""

    def __init__(self, function: Callable[P, R]):
        functools.update_wrapper(self, function)
        self._function = function
        self._signatures: list[Signature] = []
        self._earlier = _earlier_calls(function, self._signatures)
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
        if built:
            signature = signature_of(self._function, args, kwargs)
            self._note(built, signature)
            self._signatures.append(signature)
            del self._signatures[:-_MOST_SIGNATURES]
        return result

    def _note(self, built: list[str], signature: Signature) -> Retrace:
        retrace = Retrace(self.calls, tuple(built), tuple(self._causes(signature)))
        self.retraces.append(retrace)
        return retrace

    def _causes(self, signature: Signature) -> list[Cause]:
        """The differences to the most similar earlier call, the latest of equals."""
        name = getattr(self, "__name__", "the function")
        if not self._signatures:
            again = any(not differences(old, signature) for old in self._earlier)
            return [Cause(name, "new function object", "one of the same code", "this one")] if again else []
        causes = min((differences(old, signature) for old in reversed(self._signatures)), key=len)
        cleared = "the same, but jax's caches were cleared or its configuration changed"
        return causes or [Cause(name, "unknown", "these arguments", cleared)]

    def __str__(self) -> str:
        lines = [
            f"{getattr(self, '__name__', 'the function')}: {self.calls} calls, {len(self.retraces)} programs"
        ]
        return "\n  ".join([*lines, *map(str, self.retraces)])


def watch(function: Callable[P, R]) -> Watched[P, R]:
    """Wrap a jitted function (or one that calls some) so that it names the cause of every new program.

    >>> import jax, jax.numpy as jnp
    >>> double = watch(jax.jit(lambda x: 2 * x))
    >>> for x in (jnp.ones(2), jnp.ones(2), jnp.ones(3)):
    ...     _ = double(x)
    >>> for retrace in double.retraces[1:]:
    ...     print(retrace.call, *retrace.causes)
    3 x: shape (2,) -> (3,)

    Causes: an argument's shape, dtype, weak type, sharding, pytree structure (None or not, apart), static value, or a
    new function object: as a static argument, or a function of the same code that was watched before and jitted
    again.
    """
    return Watched(function)


# By code: the last function of that code that was watched, and the calls that it compiled for.
_functions: dict[Any, tuple[weakref.ref[Any], list[Signature]]] = {}


def _earlier_calls(function: Callable[..., Any], own: list[Signature]) -> list[Signature]:
    """The calls of another function of the same code, watched before; from now on `own`, those of this one."""
    code = code_of(function)
    if code is None:
        return []
    inner = getattr(function, "__wrapped__", function)
    earlier, signatures = _functions.get(code, (lambda: inner, own))
    _functions[code] = (weakref.ref(inner), own)
    return [] if earlier() is inner else signatures
