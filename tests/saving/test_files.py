"""Files: readable by the safetensors package, written whole or not at all, refused with their name."""

import dataclasses
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from flax import nnx

from tests.saving.helpers import KINDS, SIZES, WINDOW, engine_of, joined, parts
from tests.saving.test_damaged import by_hand
from tests.tiny import state, unchanged
from ubjax import Engine, EngineConfig
from ubjax.models.decoder import Decoder
from ubjax.saving.files import write_whole
from ubjax.saving.state import ALL, ONE


@pytest.fixture
def engine():
    loaded = engine_of("unified")
    loaded.set_state(by_hand("unified", ALL))
    return loaded


def test_there_and_back(engine, tmp_path):
    path = tmp_path / "state.safetensors"
    engine.save_state(path, 1, [5, 6])
    assert path.read_bytes() == engine.get_state(1, [5, 6])
    assert engine.load_state(str(path), np.int64(3)) == [5, 6]
    engine.save_state(tmp_path / ("x" * 255), 1)  # as long as a name can be
    os.remove(tmp_path / ("x" * 255))
    engine.save_state(str(path))  # over the old one
    whole = state(engine)
    other = engine_of("unified")
    assert other.load_state(path) == []
    assert other.get_state() == engine.get_state()
    assert unchanged(engine, whole)
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_the_safetensors_package_reads_what_is_written(engine, tmp_path):
    path = tmp_path / "state.safetensors"
    for seq in (None, 1, 0):  # 0 is empty
        engine.save_state(path, seq, [3])
        metadata, tensors = parts(path.read_bytes())
        with safetensors.safe_open(path, "np") as file:
            assert file.metadata() == metadata
        read = safetensors.numpy.load_file(path)
        assert read.keys() == tensors.keys()
        assert all(np.array_equal(read[name], tensors[name]) for name in read)
    assert read["full.k"].shape == (2, 2, 0, 8)


def test_what_the_safetensors_package_writes_is_read(engine):
    """In another order of tensors."""
    data = by_hand("unified", ONE)
    metadata, tensors = parts(data)
    again = safetensors.numpy.save(tensors, metadata)
    with pytest.raises(ValueError, match="its data has the digest") as caught:  # of the data in that order
        engine.set_state(again, 0)
    metadata["data_blake2b"] = str(caught.value).partition("digest ")[2][:32]
    assert engine.set_state(safetensors.numpy.save(tensors, metadata), 0) == [0, 1, 2]
    assert engine.get_state(0, [0, 1, 2]) == data


def test_foreign_files(engine, tmp_path):
    before = state(engine)
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"weight": np.zeros((4, 4), np.float32)}, path)
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("What is the capital of France?" * 9)
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        (
            "model.safetensors",
            "can't be loaded: its format is missing, 'ubjax state' is needed; nothing was changed",
        ),
        ("empty", "can't be loaded: 0 bytes were found, a header of 8 or more is needed"),
        (
            "text",
            "can't be loaded: its header claims 2338328219647830103 bytes, .*: this is no safetensors file",
        ),
        ("pipe", "can't be read: it is no file"),
        ("", "can't be read: it is no file"),
        ("none", "can't be read: it is not there"),
        ("empty/none", "can't be read: it is not there"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            engine.load_state(tmp_path / name, 0)
        assert str(caught.value).startswith(str(tmp_path / name))
    for odd, words in (
        (5, "the path is 5, a text or a Path is needed"),
        ("", "the name of a file is needed"),
        ("a\0b", "the name of a file is needed"),
        ("\ud800", r"the path is '\\ud800', the name of a file is needed"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.load_state(odd, 0)
        with pytest.raises(ValueError, match=words):
            engine.save_state(odd, 0)
    assert unchanged(engine, before)


def test_a_file_that_can_not_be_written_leaves_the_old_one(engine, tmp_path):
    path = tmp_path / "state"
    engine.save_state(path, 1)
    old = path.read_bytes()

    def pieces():
        yield memoryview(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match="state can't be written: No space left on device"):
        write_whole(path, pieces())
    assert path.read_bytes() == old
    for name, words in (
        ("none/state", "No such file"),
        ("state/state", "Not a directory"),
        (".", "directory"),
    ):
        with pytest.raises(ValueError, match=rf"can't be written: .*{words}"):
            engine.save_state(tmp_path / name, 1)
    assert os.listdir(tmp_path) == ["state"]


def test_a_crash_while_writing_leaves_the_old_file(engine, tmp_path):
    """A process that is killed in the middle: no `except` and no `finally` runs in it."""
    path = tmp_path / "state"
    engine.save_state(path, 1)
    old = path.read_bytes()
    crash = f"""
import os, signal
from pathlib import Path
from ubjax.saving.files import write_whole
def pieces():
    yield memoryview(b"half" * 10**5)
    os.kill(os.getpid(), signal.SIGKILL)
write_whole(Path({str(path)!r}), pieces())
"""
    assert subprocess.run([sys.executable, "-c", crash], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == old
    engine.save_state(path, 1, [3])
    assert engine.load_state(path, 1) == [3]


def test_links_are_followed_and_what_is_no_file_is_not_replaced(engine, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "state")
    engine.save_state(tmp_path / "link", 1)
    assert (tmp_path / "link").is_symlink() and os.listdir(tmp_path / "there") == ["state"]
    assert engine.load_state(tmp_path / "link", 1) == []
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "it is no file"), ("there", "it is a directory")):
        with pytest.raises(ValueError, match=f"{name} can't be written: {words}"):
            engine.save_state(tmp_path / name, 1)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "there"] and (tmp_path / "pipe").is_fifo()


def test_a_disk_that_is_full_when_the_last_of_the_data_is_to_reach_it(engine, tmp_path, monkeypatch):
    path = tmp_path / "state"
    engine.save_state(path, 1)
    old = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="state can't be written: No space left on device"):
        engine.save_state(path, 1)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("seq", [1, None])
def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(tmp_path, seq):
    """They would reach every sequence that shares the cache."""
    engine, path = engine_of("window"), tmp_path / "state"
    engine.set_state(by_hand("window", ALL))
    engine.save_state(path, seq)
    old, kv = path.read_bytes(), vars(engine)["_kv"]
    (window,) = kv[1].v
    broken = window.at[0, 1, 3, 2].set(np.inf)
    engine._kv = (kv[0], dataclasses.replace(kv[1], v=(broken,)))
    whose = "" if seq is not None else " of sequence 1"
    fault = (
        f"layer 0 of window.v holds numbers that are not finite (position 3{whose}), finite ones are needed"
    )
    for save in (lambda: engine.get_state(seq), lambda: engine.save_state(path, seq)):
        with pytest.raises(ValueError) as caught:
            save()
        what = "the cache" if seq is None else "sequence 1"
        assert str(caught.value) == f"{what} can't be saved: {fault}"
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["state"]
    metadata, tensors = parts(old)
    tensors["window.v"][0, 1, 3, 2] = np.inf
    path.write_bytes(joined(metadata, tensors))
    before = state(engine)
    with pytest.raises(ValueError) as caught:
        engine.load_state(path, seq)
    assert str(caught.value) == f"{path} can't be loaded: {fault}; nothing was changed"
    assert unchanged(engine, before)


def test_weights_may_lie_on_another_device():
    first, second = jax.devices()[:2]
    with jax.default_device(second):
        elsewhere = Engine(
            Decoder(WINDOW, rngs=nnx.Rngs(0)), None, EngineConfig(**SIZES, **KINDS["window"][1])
        )
    for holds, seq in ((ALL, None), (ONE, 3)):
        elsewhere.set_state(by_hand("window", holds), seq)
        assert elsewhere.get_state(seq, [0, 1, 2]) == by_hand("window", holds)
    assert {x.device for x in jax.tree.leaves(vars(elsewhere)["_kv"])} == {second}
    assert {x.device for x in jax.tree.leaves(vars(elsewhere)["_cells"])} == {first}
