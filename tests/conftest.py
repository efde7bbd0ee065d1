"""The strict session: shapes checked at run time, ranks never promoted, several devices, reproducible laws.

Warnings are errors as well (pyproject.toml). The import hook has to come before the first import of ubjax.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

if "ubjax" in sys.modules:
    raise RuntimeError("ubjax was imported before tests/conftest.py: its annotations would go unchecked.")

install_import_hook("ubjax", "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)

# No deadline: the first example of a law compiles, the others do not.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

MAPS = Path("/proc/self/maps")
MANY = 25_000


def _let_go() -> None:
    """Drop compiled programs once there are many.

    On CPU a program takes about 30 memory mappings, and Linux gives a process 65,530: beyond, XLA crashes.
    """
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def _room_for_other_files() -> Iterator[None]:
    yield
    _let_go()


@pytest.fixture(autouse=True)
def _room_after_slow_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("slow"):
        _let_go()
