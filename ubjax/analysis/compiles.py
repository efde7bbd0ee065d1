"""Counting compilations, and forbidding them, through jax's public monitoring events."""

import collections
import contextlib
import dataclasses
import html
from collections.abc import Iterator

from ubjax.analysis.events import Stage, program_events
from ubjax.pictures.wording import amount


@dataclasses.dataclass
class FunctionCount:
    """How often a function was traced, compiled, and its program taken from the persistent cache; seconds in all."""

    traced: int = 0
    compiled: int = 0
    cached: int = 0
    seconds: float = 0.0


@dataclasses.dataclass
class CompileCount:
    """Programs that became ready while counting, by the name of their function."""

    functions: dict[str, FunctionCount] = dataclasses.field(default_factory=dict)

    def add(self, name: str, stage: Stage, seconds: float) -> None:
        """Count one event."""
        function = self.functions.setdefault(name, FunctionCount())
        function.seconds += seconds
        if stage != "lowered":
            setattr(function, stage, getattr(function, stage) + 1)

    @property
    def by_name(self) -> collections.Counter[str]:
        """Programs by function name: compiled or taken from the persistent cache."""
        programs = {name: f.compiled + f.cached for name, f in self.functions.items()}
        return collections.Counter({name: n for name, n in programs.items() if n})

    @property
    def total(self) -> int:
        """Programs of all functions."""
        return sum(self.by_name.values())

    @property
    def cached(self) -> int:
        """Those among them that the persistent cache had."""
        return sum(function.cached for function in self.functions.values())

    @property
    def seconds(self) -> float:
        """The time that tracing, lowering and compiling took (or reading the cache)."""
        return sum((function.seconds for function in self.functions.values()), 0.0)

    def include(self, more: "CompileCount") -> None:
        """Count those as well."""
        for name, f in more.functions.items():
            mine = self.functions.setdefault(name, FunctionCount())
            mine.traced += f.traced
            mine.compiled += f.compiled
            mine.cached += f.cached
            mine.seconds += f.seconds

    def __str__(self) -> str:
        names = ", ".join(f"{name} x{n}" for name, n in sorted(self.by_name.items()))
        known = f", {self.cached} from the persistent cache" if self.cached else ""
        total = amount(self.total, "compilation")
        return f"{total} in {self.seconds:.1f} s{known}" + (f" ({names})" if names else "")

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("function", "traced", "compiled", "cached", "seconds"))
        lines = (
            f"<tr><td>{html.escape(name)}</td><td>{f.traced}</td><td>{f.compiled}</td><td>{f.cached}</td>"
            f"<td>{f.seconds:.2f}</td></tr>"
            for name, f in sorted(self.functions.items())
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


class UnexpectedCompilationError(RuntimeError):
    """A program was compiled where none was allowed. `function`: its name."""

    def __init__(self, function: str, cause: str = ""):
        super().__init__(
            f"{function} was compiled where no compilation is allowed" + (f": {cause}" if cause else "")
        )
        self.function = function


@contextlib.contextmanager
def count_compilations() -> Iterator[CompileCount]:
    """Count the programs that jax traces and compiles inside the block, in this process (all its threads).

    >>> import jax, jax.numpy as jnp
    >>> double = jax.jit(lambda x: x * 2)
    >>> x = jnp.ones(3)
    >>> with count_compilations() as count:
    ...     _ = double(x), double(x)
    >>> count.total
    1

    A program taken from the persistent compilation cache counts too, and is told apart in `count.functions`.
    """
    count = CompileCount()
    with program_events(count.add):
        yield count


@contextlib.contextmanager
def forbid_compilations() -> Iterator[None]:
    """Raise UnexpectedCompilationError from the call that needs a new program, compiled or from the persistent cache.

    The error names the function, and for one that is watched (see `watch`) the argument that changed. Operations
    outside jit compile for new shapes as well: they are named after themselves, such as "broadcast_in_dim".
    """

    def refuse(name: str, stage: Stage, seconds: float) -> None:
        if stage in ("compiled", "cached"):
            raise UnexpectedCompilationError(name)

    with program_events(refuse):
        yield
