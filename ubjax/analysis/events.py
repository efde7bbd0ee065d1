"""jax's monitoring events as one stream: a function traced, its program compiled or taken from the persistent cache.

The names of the events are plain strings that jax does not promise to keep, so they are tried once, on first use.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import jax

TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"
LOWER_EVENT = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"

Stage: TypeAlias = Literal["traced", "lowered", "compiled", "cached"]
Report: TypeAlias = Callable[[str, Stage, float], None]  # name of the function, stage, seconds

_PROBE = "ubjax_cache_probe"

_STAGES: dict[str, Stage] = {TRACE_EVENT: "traced", LOWER_EVENT: "lowered", COMPILE_EVENT: "compiled"}


@contextlib.contextmanager
def program_events(report: Report) -> Iterator[None]:
    """Call `report` for every stage of every program inside the block, in the thread that the program is built in.

    What `report` raises is raised from the call that needed the program. Raises RuntimeError on the first use in a
    process if this jax does not name its events as expected.
    """
    _try_events()

    def of_others(name: str, stage: Stage, seconds: float) -> None:
        if name != _PROBE:
            report(name, stage, seconds)

    with _listening(of_others):
        yield


def cache_generation() -> int:
    """A number that grows when jax has lost what it traced: its caches were cleared or its configuration changed.

    Seen by a function of its own that is traced (not compiled) again then, so ask before and after.
    """
    seen: list[Stage] = []
    with _listening(lambda name, stage, _: seen.append(stage) if name == _PROBE else None):
        _cache_probe().trace()
    _generation[0] += bool(seen)
    return _generation[0]


_generation = [0]


@functools.cache
def _cache_probe() -> Any:
    def probe() -> int:
        return 0

    probe.__name__ = _PROBE
    return jax.jit(probe)


@contextlib.contextmanager
def _listening(report: Report) -> Iterator[None]:
    state = threading.local()  # a hit is announced without a name, shortly before the end of its compilation

    def on_event(event: str, **kwargs: str | int) -> None:
        if event == CACHE_HIT_EVENT:
            state.hit = True

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        stage = _STAGES.get(event)
        if stage is None:
            return
        if stage == "compiled" and getattr(state, "hit", False):
            stage, state.hit = "cached", False
        report(_function_name(str(kwargs.get("fun_name", "?"))), stage, duration_secs)

    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_duration)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_listener(on_event)
        jax.monitoring.unregister_event_duration_listener(on_duration)


def _function_name(name: str) -> str:
    """The later stages call the program of `step` jit(step)."""
    return name[4:-1] if name.startswith("jit(") and name.endswith(")") else name


@functools.cache
def _try_events() -> None:
    """Compile a program and see that jax says so."""
    seen: list[tuple[str, Stage]] = []

    def ubjax_event_trial() -> int:
        return 0

    with _listening(lambda name, stage, _: seen.append((name, stage))):
        jax.jit(ubjax_event_trial)()
    stages = [stage for name, stage in seen if name == "ubjax_event_trial"]
    if stages not in (["traced", "lowered", "compiled"], ["traced", "lowered", "cached"]):
        raise RuntimeError(
            f"jax {jax.__version__} reported {', '.join(stages) or 'nothing'} for a new program; traced, lowered and "
            "compiled are needed to count compilations"
        )
