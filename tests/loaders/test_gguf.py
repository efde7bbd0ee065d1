import math
import os

import gguf
import numpy as np
import pytest

from tests.loaders.tiny_gguf import GGML, write_gguf
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import GGUFError, open_gguf

QUANTS = [kind for kind in gguf.GGML_QUANT_SIZES if kind.name not in ("F32", "F16")]
QUANTIZED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0")
NOT_DEQUANTIZED = {"Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32", "I64", "F64"}


def test_metadata_values_of_every_type(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for code in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{code}")(f"v.{code}", 100)
    writer.add_float32("v.f32", 0.5)
    writer.add_float64("v.f64", 0.1)
    writer.add_bool("v.bool", True)
    writer.add_string("v.text", "naïve ☃")
    writer.add_array("v.texts", ["", "a", "日本"])
    writer.add_array("v.ints", [1, -2, 3])
    writer.add_array("v.floats", [0.5, -1.5])
    writer.add_array("v.bools", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(tmp_path / "a.gguf")
    assert (file.architecture, file.version, len(file.tensors)) == ("llama", 3, 0)
    assert {name: value for name, value in file.metadata.items() if name.startswith("v.")} == {
        **{f"v.{c}": 100 for c in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")},
        "v.f32": 0.5,
        "v.f64": 0.1,
        "v.bool": True,
        "v.text": "naïve ☃",
        "v.texts": ("", "a", "日本"),
        "v.ints": (1, -2, 3),
        "v.floats": (0.5, -1.5),
        "v.bools": (True, False),
    }
    assert file.metadata["v.texts"] is file.metadata["v.texts"]
    assert file.metadata.array_length("v.texts") == 3


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("none", int, "'none' is missing, int is needed"),
        ("text", int, "'text' is the str 'abc', int is needed"),
        ("flag", int, "'flag' is the bool 'True', int is needed"),
        ("number", bool, "'number' is the int '7', bool is needed"),
        ("list", str, "'list' is an array of 2 values, str is needed"),
        ("number", tuple, "'number' is the int '7', tuple is needed"),
    ],
)
def test_metadata_of_the_wrong_type(tmp_path, name, kind, message):
    fields = {"text": "abc", "flag": True, "number": 7, "list": [1, 2]}
    metadata = open_gguf(write_gguf(tmp_path / "a.gguf", fields, {})).metadata
    with pytest.raises(GGUFError, match=f"a.gguf: the metadata key {message}$"):
        metadata.require(name, kind)
    assert metadata.require("number", float) == 7.0
    assert metadata.optional("none", int, 3) == 3


@pytest.mark.parametrize("kind", QUANTS, ids=lambda kind: kind.name)
def test_every_block_format_as_gguf_dequantizes_it(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("ubjax.loaders.gguf.SLAB", 512)  # several slabs, and rows longer than one
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    row_bytes = math.lcm(block, 768) // block * block_bytes
    blocks = np.random.default_rng(0).integers(0, 256, (2, 3, row_bytes), dtype=np.uint8)
    tensors = {"first": np.ones((1, 3), np.float32), "x": (blocks, kind)}
    file = open_gguf(write_gguf(tmp_path / "a.gguf", {}, tensors))
    shape = (2, 3, math.lcm(block, 768))
    assert (file.tensors["x"].type_name, file.tensors["x"].shape) == (kind.name, shape)
    if kind.name in NOT_DEQUANTIZED:
        with pytest.raises(GGUFError, match=f"'x' has type {kind.name}, which cannot be dequantized"):
            file.tensor("x")
        return
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, kind)
    found = file.tensor("x")
    assert found.shape == shape
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.reshape(shape))


@pytest.mark.parametrize("name", QUANTIZED)
def test_round_trip_through_a_file(tmp_path, name):
    kind = GGML[name]
    values = np.random.default_rng(1).uniform(-1, 1, (5, 256)).astype(np.float32)
    path = write_gguf(tmp_path / "a.gguf", {}, {"x": (gguf.quants.quantize(values, kind), kind)})
    found = open_gguf(path).tensor("x")
    steps = {"F32": 0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 127, "Q5_0": 1 / 15, "Q5_1": 1 / 15}
    assert np.abs(found - values).max() <= steps.get(name, 1 / 7 if name.startswith("Q4") else 1)
    assert found.flags.writeable
    assert found.flags.c_contiguous


def test_shapes_are_numpy_order_and_unknown_names_are_refused(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = open_gguf(write_gguf(tmp_path / "a.gguf", {}, {"x": values}))
    assert file.tensors["x"].shape == (2, 3)
    np.testing.assert_array_equal(file.tensor("x"), values)
    with pytest.raises(GGUFError, match=r"a.gguf: there is no tensor 'y'$"):
        file.tensor("y")


def test_alignment_of_the_file_is_respected(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("x", np.full(3, 2, np.float32))
    writer.add_tensor("y", np.full(5, 3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(tmp_path / "a.gguf")
    assert file.tensors["y"].offset - file.tensors["x"].offset == 256
    np.testing.assert_array_equal(file.tensor("y"), np.full(5, 3, np.float32))


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "missing.gguf": "there is no such file",
        ".": "is a directory, a GGUF file is needed",
        "empty.gguf": "not a GGUF file: it is empty, b'GGUF' is needed",
        "pipe": "is not a regular file, a GGUF file is needed",
        f"{'x' * 300}": "cannot be read: File name too long",
        "missing.gguf/x": "there is no such file",
    }.items():
        with pytest.raises(GGUFError, match=f"^{tmp_path / name}: {message}$"):
            open_gguf(tmp_path / name)


@pytest.mark.slow
def test_smollm2():
    file = open_gguf(find_model("smollm2"))
    assert (file.architecture, file.version, len(file.metadata), len(file.tensors)) == ("llama", 3, 33, 272)
    assert file.metadata["llama.attention.head_count_kv"] == 3
    assert file.metadata.array_length("tokenizer.ggml.tokens") == 49152
    assert file.metadata.require("tokenizer.ggml.merges", tuple)[0] == "Ġ t"
    types = [info.type_name for info in file.tensors.values()]
    assert {name: types.count(name) for name in types} == {"Q8_0": 1, "F32": 61, "Q4_1": 210}
    info = file.tensors["blk.29.attn_k.weight"]
    assert (info.shape, info.type_name, info.n_bytes) == ((192, 576), "Q4_1", 69120)
    # Q4_1: scale and minimum in half precision, then 32 values of 4 bits, the low halves first.
    raw = np.fromfile(file.path, np.uint8, info.n_bytes, offset=info.offset).reshape(-1, 20)
    scale, least = raw[:, :4].copy().view(np.float16).astype(np.float32).T
    values = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
    expected = values * scale[:, None] + least[:, None]
    np.testing.assert_array_equal(file.tensor(info.name), expected.reshape(192, 576))
