"""Every test leaves the shared engines empty."""

import pytest

from tests.generate.engines import shared, streams


@pytest.fixture(autouse=True)
def the_engines_are_left_empty():
    yield
    for engine in (shared(), streams()):
        assert engine.n_free_cells() == engine.memory.n_cells * engine.memory.n_streams
