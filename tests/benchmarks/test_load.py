"""`benchmarks/load.py`, small: what it writes can be loaded, and what it measures adds up."""

import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import load
from tests.cli.tiny_model import write_tiny_model
from ubjax.loaders import open_gguf
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import load_weights
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder

SMALL = {"blocks": 2, "embd": 64, "ff": 96, "heads": 2, "kv_heads": 1, "width": 32, "vocab": 128}
N_PARAMETERS = 128 * 64 + 64 + 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64 + 2 * 64)


def test_a_synthetic_file_becomes_a_decoder(tmp_path):
    file = open_gguf(load.write_synthetic(tmp_path / "small.gguf", SMALL))
    hyper = hyperparameters(file)
    model = Decoder.from_weights(DecoderConfig.from_hyperparameters(hyper), load_weights(file, hyper))
    leaves = jax.tree.leaves(model)
    assert sum(x.size for x in leaves) == N_PARAMETERS
    assert all(np.isfinite(x).all() for x in leaves)
    assert (
        0.12 < float(np.abs(model.embedding.rows(np.arange(128, dtype=np.int32))).max()) <= 0.13
    )  # int8 times 0.001


def test_the_floor_is_the_final_weights(tmp_path):
    path = str(load.write_synthetic(tmp_path / "small.gguf", SMALL))
    row = load.measure(path, "float32")
    assert (row["what"], row["tensors"], row["floor_bytes"]) == ("load", 20, 4 * N_PARAMETERS)
    assert row["seconds"] == pytest.approx(row["open_s"] + row["tokenizer_s"] + row["weights_s"])
    vectors = 64 * 5
    assert load.measure(path, "bfloat16")["floor_bytes"] == 2 * (N_PARAMETERS - vectors) + 4 * vectors
    blocks = (N_PARAMETERS - vectors) // 32  # each a byte a value and a scale of two
    assert load.measure(path, "stored")["floor_bytes"] == 34 * blocks + 4 * vectors


def test_a_file_of_another_architecture_is_read(tmp_path):
    path = write_tiny_model(tmp_path / "other.gguf", **{"general.architecture": "mamba"})
    row = load.measure(str(path), "float32")
    sizes = [np.prod(info.shape) for info in open_gguf(path).tensors.values()]
    assert (row["what"], row["floor_bytes"]) == ("read", 4 * sum(sizes))


@pytest.mark.slow
def test_the_command_ends_with_json(tmp_path, monkeypatch, capsys):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    monkeypatch.setattr(sys, "argv", ["load.py", "--model", str(path), "--rounds", "1"])
    load.main()
    lines = capsys.readouterr().out.splitlines()
    (row,) = json.loads(lines[-1])["rows"]
    assert row["file"] == "tiny.gguf" and row["what"] == "load" and lines[1].startswith("tiny.gguf")
    assert row["peak_bytes"] > 0 and row["seconds_min"] <= row["seconds"] <= row["seconds_max"]
