"""A pytest plugin: compile counts, causes of retraces and a ban on compilations as fixtures, for any jitted function.

Not loaded by itself, since it imports jax: put `pytest_plugins = ["ubjax.testing"]` into the top conftest.py, or run
`pytest -p ubjax.testing`. (The first is imported after that conftest's own lines, so that they can still configure
jax.)

    def test_steady_state(watch, forbid_compilations):
        step = watch(my_jitted_step)
        step(x)
        with forbid_compilations():
            step(2 * x)
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

try:
    import pytest
except ImportError as error:
    raise ImportError("ubjax.testing is a plugin for pytest: pip install pytest") from error

from ubjax.analysis import compiles
from ubjax.analysis.retraces import Watched
from ubjax.analysis.retraces import watch as watch_function


@pytest.fixture(name="count_compilations")
def count_compilations_fixture() -> Callable[[], AbstractContextManager[compiles.CompileCount]]:
    """`with count_compilations() as count:` counts the programs that the block compiles."""
    return compiles.count_compilations


@pytest.fixture(name="forbid_compilations")
def forbid_compilations_fixture() -> Callable[[], AbstractContextManager[None]]:
    """`with forbid_compilations():` fails the test at the call that compiles, and names the function."""
    return compiles.forbid_compilations


@pytest.fixture(name="watch")
def watch_fixture(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[Callable[..., Any]], Watched[..., Any]]]:
    """`watch(fn)` names the causes of new programs; when the test fails its report lists them."""
    watched: list[Watched[..., Any]] = []

    def watch(function: Callable[..., Any]) -> Watched[..., Any]:
        watched.append(watch_function(function))
        return watched[-1]

    yield watch
    for function in watched:
        request.node.add_report_section("teardown", "programs", str(function))
