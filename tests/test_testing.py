"""The pytest plugin in a session of its own: its fixtures work on any jitted function, a failure lists the causes."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    """Processes of their own, without this session's import hook, find the package of the checkout."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


SUITE = """
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    return x + 1

def test_counts(count_compilations):
    x = jnp.ones(3)
    with count_compilations() as count:
        step(x), step(x)
    assert count.by_name == {"step": 1}

def test_forbids(watch, forbid_compilations):
    watched, two, three = watch(step), jnp.ones(2), jnp.ones(3)
    watched(two)
    with forbid_compilations():
        watched(two)
        watched(jnp.ones((2, 2)))
"""


def test_fixtures_of_the_plugin(pytester):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "ubjax.testing", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*UnexpectedCompilationError: *was compiled where no compilation is allowed*",
            "*programs*",
            "step: * calls, 1 program",
        ]
    )


def test_the_plugin_is_not_loaded_by_itself(pytester):
    pytester.makepyfile("def test_it(forbid_compilations): pass")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'forbid_compilations' not found*"])


def test_without_pytest_there_is_a_sentence():
    code = "import sys; sys.modules['pytest'] = None; import ubjax.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        done.stderr.splitlines()[-1]
        == "ImportError: ubjax.testing is a plugin for pytest: pip install pytest"
    )
