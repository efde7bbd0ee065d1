"""The persistent cache is where the user's caches are, only when asked for, and never over the user's own setting."""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from ubjax import compilation_cache, count_compilations
from ubjax.compilation_cache import default_folder, use_compilation_cache

NAMES = ("jax_compilation_cache_dir", *compilation_cache.OPTIONS)
AFTER_IMPORT = {name: jax.config.values[name] for name in NAMES}


@pytest.fixture(autouse=True)
def restored():
    """No cache before a test, jax's configuration as it was after it."""
    before = {name: jax.config.values[name] for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


def test_importing_configures_nothing():
    assert os.environ.get("JAX_COMPILATION_CACHE_DIR") == AFTER_IMPORT[NAMES[0]]
    assert all(AFTER_IMPORT[name] != ours for name, ours in compilation_cache.OPTIONS.items())


def test_programs_come_back_from_the_folder(tmp_path):
    @jax.jit
    def kept(x):
        return x * 11 + 3

    folder, x = tmp_path / "a" / "b", jnp.ones(7)
    with count_compilations() as before:
        jax.jit(lambda x: x - 13)(x)  # jax has compiled something without a cache by then
    assert use_compilation_cache(folder) == folder and before.cached == 0
    with count_compilations() as cold:
        kept(x)
    jax.clear_caches()
    with count_compilations() as warm:
        kept(x)
    assert (cold.cached, warm.functions["kept"].cached, warm.functions["kept"].compiled) == (0, 1, 0)
    assert any(path.name.startswith("jit_kept") for path in folder.iterdir())


def test_the_users_own_setting_wins(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    seconds = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    assert use_compilation_cache(tmp_path / "other") == tmp_path / "mine"
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "mine")
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == seconds
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("system", "set_to", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg"),
        ("linux", {"XDG_CACHE_HOME": "not/absolute"}, "/home/a/.cache"),
        ("linux", {}, "/home/a/.cache"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/a/Library/Caches"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local"),
        ("win32", {}, "/home/a/AppData/Local"),
    ],
)
def test_the_folder_is_the_systems_own(monkeypatch, system, set_to, expected):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/a"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    assert default_folder().parent == Path(expected) / "ubjax"


def test_another_jaxlib_or_processor_has_another_folder(monkeypatch):
    here = default_folder()
    assert here == default_folder()
    monkeypatch.setattr(compilation_cache.metadata, "version", lambda name: f"{name} 9.9")
    assert default_folder().name.startswith("jaxlib-jaxlib 9.9-")
    monkeypatch.undo()
    monkeypatch.setattr(compilation_cache.platform, "processor", lambda: "another one")
    assert default_folder() != here and default_folder().parent == here.parent
