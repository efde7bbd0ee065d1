"""The golden files are the recorded ones, and the helper reads all of them."""

import hashlib

import pytest

from tests.helpers import GOLDEN, golden

SHA256 = {
    "e2e_gemma3.json.gz": "5b30d7ecd427d9f7cec135804c8110e873446f3aed4de74ce620f3b50fa23f9e",
    "e2e_smollm2.json.gz": "bf5de9ddeab2b515e530c3dd1a4a063df4415a90ae2ae6944fe62ecaebcdfeb0",
    "kv.jsonl.gz": "20c918bb396c0b7380023f26f8c92e6574ecef693c647f0163e876b650ac1fae",
    "minilm.json.gz": "8651af6cfb09f176447d5f86bda583e196cad59e4f9fe477bb228e42c7e45b01",
    "split.jsonl.gz": "44f26779281278d27bc035f0175d5c6bbeea5506aa19baf2db53f9c42d342ee6",
    "split_large.jsonl.gz": "0a83c998105afc2186af601247efc66a7f53e1e36e9612a5e3ac7f7bbab15584",
}


def test_every_golden_file_is_recorded():
    assert sorted(path.name for path in GOLDEN.glob("*.gz")) == sorted(SHA256)


@pytest.mark.parametrize("name", SHA256)
def test_golden_file_is_unedited(name):
    assert hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() == SHA256[name]


@pytest.mark.parametrize(("name", "batches", "splits"), [("split", 1200, 5280), ("split_large", 120, 515)])
def test_split_file_is_read_whole(name, batches, splits):
    lines = golden(f"{name}.jsonl.gz")
    assert len(lines) == batches
    assert sum(len(batch.get("splits", [])) for batch in lines) == splits


def test_kv_file_is_read_whole():
    lines = golden("kv.jsonl.gz")
    assert len(lines) == 600
    assert sum("expect" in op for line in lines for op in line["ops"]) == 5278


def test_single_object_files_hold_one_value():
    assert [len(golden(name)) for name in SHA256 if name.endswith(".json.gz")] == [1, 1, 1]
