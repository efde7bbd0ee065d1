"""`ubjax verify`: equal answers give 0, a changed one 1 with its first difference, an odd file 2."""

import gzip
import json
from pathlib import Path

import pytest

from tests.helpers import GOLDEN, golden
from ubjax.cli import main, verify


def write(path, lines):
    path.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in lines).encode()))
    return str(path)


@pytest.fixture
def few(tmp_path):
    """The first rows of the split and the kv file."""
    splits = [b for b in golden("split.jsonl.gz") if b["n_seq_max"] == 4][:6]
    ops = [s for s in golden("kv.jsonl.gz") if s["unified"] and s["n_swa"] == 0][:2]
    return splits, ops, tmp_path


def test_equal_answers(few, capsys):
    splits, ops, folder = few
    files = [write(folder / "a.jsonl.gz", splits), write(folder / "b.jsonl.gz", ops)]
    assert main(["verify", *files]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("on cpu (")
    n_splits = sum(1 + len(b.get("splits", [])) for b in splits)
    n_ops = sum("expect" in op for s in ops for op in s["ops"])
    assert f"a.jsonl.gz: {n_splits} rows checked, {n_splits} equal, 0 different" in out[1]
    assert f"b.jsonl.gz: {n_ops} rows checked, {n_ops} equal, 0 different" in out[2]


def test_a_wrong_answer_is_found(few, capsys):
    splits, ops, folder = few
    batch = next(b for b in splits if b["init"])
    batch["splits"][0]["ubatches"][0]["batch_idxs"][0] += 1
    op = next(op for op in ops[0]["ops"] if "expect" in op)
    op["expect"]["streams"][0]["head"] += 1
    assert main(["verify", write(folder / "a.jsonl.gz", splits)]) == 1
    assert "1 different" in capsys.readouterr().out
    assert main(["verify", write(folder / "b.jsonl.gz", ops)]) == 1
    assert "different" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", b"{", "is no golden file"),
        ("a.json.gz", b"\x1f\x8bxx", "is no golden file"),
        ("a.jsonl", b'{"odd": 1}', "holds no golden answers"),
        ("a.jsonl", b"", "holds no golden answers"),
        ("a.json", b"5", "holds no golden answers"),
        ("a.json", b"[5]", "holds no golden answers"),
        ("a.jsonl", b"null", "holds no golden answers"),
        ("a.json", b'{"scenarios": []}', "is no golden file: KeyError 'model'"),
        (
            "a.json",
            b'{"scenarios": [], "model": "x.gguf"}',
            "the scenarios are of 'x.gguf', one of smollm2-f32.gguf",
        ),
        ("a.jsonl", b'{"splits": []}', "is no golden file: KeyError"),
        ("a.jsonl", b'{"ops": []}', "is no golden file: KeyError"),
        ("a.json", b"[" * 100_000, "is no golden file"),
    ],
)
def test_odd_files(tmp_path, name, data, words, capsys):
    (tmp_path / name).write_bytes(data)
    assert main(["verify", str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "absent.json")]) == 2
    assert "can't be read" in capsys.readouterr().err


def test_the_default_files_are_those_of_the_checkout(tmp_path, monkeypatch, capsys):
    assert verify._default_files() == [GOLDEN / name for name in verify.GOLDEN]
    monkeypatch.setattr(verify, "PACKAGE", tmp_path / "site-packages" / "ubjax")  # an installed one
    monkeypatch.chdir(GOLDEN.parents[1])
    assert verify._default_files() == [Path("tests", "golden", name) for name in verify.GOLDEN]
    monkeypatch.chdir(tmp_path)
    assert main(["verify"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "ubjax verify: there are no golden files (tests/golden) here, as they come with a checkout alone: run this in "
        "one, or name the files\n",
    )
