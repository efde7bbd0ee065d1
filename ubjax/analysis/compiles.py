"""Counting compilations through jax's public monitoring events."""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator

import jax

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class CompileCount:
    """Compiled programs by function name, and the seconds they took."""

    by_name: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Programs compiled while counting."""
        return sum(self.by_name.values())

    def __str__(self) -> str:
        names = ", ".join(f"{name} x{n}" for name, n in sorted(self.by_name.items()))
        return f"{self.total} compilations in {self.seconds:.1f} s" + (f" ({names})" if names else "")


@contextlib.contextmanager
def count_compilations() -> Iterator[CompileCount]:
    """Count the programs that jax compiles inside the block, in this process.

    >>> import jax, jax.numpy as jnp
    >>> double = jax.jit(lambda x: x * 2)
    >>> x = jnp.ones(3)
    >>> with count_compilations() as count:
    ...     _ = double(x), double(x)
    >>> count.total
    1

    A program taken from the persistent compilation cache counts too (jax times it the same way).
    """
    count = CompileCount()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            count.by_name[str(kwargs.get("fun_name", "?"))] += 1
            count.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
