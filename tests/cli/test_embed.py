"""`ubjax embed`: vectors to a file or to stdout, costs on stderr, one line for whatever can't be."""

import io
import json

import numpy as np
import pytest

from tests.cli.tiny_model import write_tiny_model
from tests.tiny import Letters, tiny_encoder
from ubjax import Engine, EngineConfig, load_model
from ubjax.cli import embed, main
from ubjax.cli.texts import read_texts
from ubjax.models.encoder import Encoder

SIZES = ["--n-batch", "64", "--n-ubatch", "16", "--n-seq-max", "8"]


@pytest.fixture
def encoder(monkeypatch):
    """A model name that stands for the tiny encoder."""
    monkeypatch.setattr(embed, "load_model", lambda *args, **options: (tiny_encoder(), Letters()))
    config = EngineConfig(n_batch=64, n_ubatch=16, n_seq_max=8)
    return Engine(tiny_encoder(), Letters(), config)


def test_formats(encoder, tmp_path, capfd):
    texts = ["abc", "de f", "gh"]
    (tmp_path / "texts.txt").write_text("abc\nde f\ngh\n", "utf-8")
    (tmp_path / "texts.jsonl").write_text('"abc"\n{"text": "de f"}\n"gh"\n', "utf-8")
    want = encoder.embed(texts)
    assert main(["embed", "tiny", str(tmp_path / "texts.txt"), *SIZES, "--json"]) == 0
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    np.testing.assert_array_equal(np.array(lines[:3], np.float32), want)
    summary = lines[3]
    assert {k: summary[k] for k in ("texts", "width", "pooling", "normalized", "tokens", "ubatches")} == {
        "texts": 3,
        "width": 16,
        "pooling": "mean",
        "normalized": False,
        "tokens": 9,
        "ubatches": 1,
    }
    assert (
        "3 texts in " in err
        and "9 tokens in 1 decode, 1 ubatch, 1 bucket (" in err
        and "embedding ..." in err
    )
    for name, read in (
        ("out.npy", np.load),
        ("out.csv", lambda path: np.loadtxt(path, delimiter=",", dtype=np.float32)),
        (
            "out.jsonl",
            lambda path: np.array([json.loads(x) for x in path.read_text().splitlines()], np.float32),
        ),
    ):
        path = tmp_path / name
        assert main(["embed", "tiny", str(tmp_path / "texts.jsonl"), *SIZES, "-o", str(path)]) == 0
        np.testing.assert_array_equal(read(path), want)
    assert capfd.readouterr().out == ""


def test_standard_input_and_options(encoder, monkeypatch, capfd):
    monkeypatch.setattr("sys.stdin", io.StringIO('"abc"\n"de"\n'))
    assert main(["embed", "tiny", "-", "--jsonl", *SIZES, "--pooling", "cls", "--normalize"]) == 0
    out, _ = capfd.readouterr()
    found = np.array([json.loads(line) for line in out.splitlines()], np.float32)
    np.testing.assert_array_equal(found, encoder.embed(["abc", "de"], pooling="cls", normalize=True))


def test_a_decoder_embeds_too(tmp_path, capfd):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    (tmp_path / "texts.txt").write_text("cab\nb\n", "utf-8")
    sizes = ["--n-batch", "16", "--n-seq-max", "2", "--n-ubatch", "16", "-c", "256"]
    assert main(["embed", str(path), str(tmp_path / "texts.txt"), *sizes]) == 0
    found = np.array([json.loads(line) for line in capfd.readouterr().out.splitlines()], np.float32)
    config = EngineConfig(n_batch=16, n_seq_max=2, n_ubatch=16, n_ctx=256, kv_unified=True)
    engine = Engine(*load_model(path), config)
    np.testing.assert_array_equal(found, engine.embed(["cab", "b"], pooling="last"))


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("", [], "texts.txt holds 0 texts, at least 1 is needed"),
        ("abc\n" + "a" * 17, [], "text 1 has 17 tokens, 1 to 16 (n_ubatch) are possible"),
        ("abc", ["-o", "x.bin"], "the output is x.bin, a name that ends in .npy, .jsonl, .csv is needed"),
        ("abc", ["-o", "/none/x.npy"], "--output /none/x.npy: there is no folder /none"),
        ("abc\n5", ["--jsonl"], "texts.txt line 1 is no JSON"),
        ("5", ["--jsonl"], "texts.txt line 1 has the text 5, a text is needed"),
        ("abc", ["--n-ubatch", "0"], "n_ubatch is 0, at least 1 is needed"),
        ("abc\n\nde", [], "text 1 has 0 tokens, 1 to 16 (n_ubatch) are possible"),
        ("abc", ["-c", "0"], "n_ctx is 0, at least 1 is needed"),
        (
            "abc",
            ["--prompt-name", "query"],
            "the model's files have no prompts, the prompt 'query' was asked",
        ),
        ("9" * 5000, ["--jsonl"], "texts.txt line 1 is no JSON: Exceeds the limit"),
        ("[" * 100_000, ["--jsonl"], "texts.txt line 1 is no JSON: "),
        ('"abc"\n\n{}', ["--jsonl"], "texts.txt line 3 has no entry text, found: none"),
        ('["abc"]', ["--jsonl"], "texts.txt line 1 has the text ['abc'], a text is needed"),
        ("null", ["--jsonl"], "texts.txt line 1 has the text None, a text is needed"),
        ("NaN", ["--jsonl"], "texts.txt line 1 has the text nan, a text is needed"),
        ("abc", ["-o", "x\0.npy"], "the path is 'x\\x00.npy', the name of a file is needed"),
        ("abc", ["-o", "x" * 300 + ".npy"], "xxx.npy can't be opened: File name too long"),
    ],
)
def test_what_is_refused(encoder, tmp_path, capfd, content, options, words):
    path = tmp_path / "texts.txt"
    path.write_text(content, "utf-8")
    assert main(["embed", "tiny", str(path), *SIZES, *options]) == 2
    out, err = capfd.readouterr()
    assert err.splitlines()[-1].startswith("ubjax embed: ") and words in err and out == ""


def test_what_can_not_be_written_is_refused_before_any_work(encoder, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(embed, "load_model", lambda *args, **options: pytest.fail("the model was loaded"))
    (tmp_path / "texts.txt").write_text("a", "utf-8")
    (tmp_path / "to.npy").symlink_to(tmp_path / "none" / "x.npy")
    (tmp_path / "folder.npy").mkdir()
    for name, words in (
        ("to.npy", "to.npy can't be written: No such file or directory"),
        ("folder.npy", "folder.npy is a folder, a file is needed"),
        ("texts.txt", "a name that ends in .npy, .jsonl, .csv is needed"),
    ):
        assert main(["embed", "tiny", str(tmp_path / "texts.txt"), "-o", str(tmp_path / name)]) == 2
        assert words in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npy", "texts.txt", "to.npy"]


def test_ids_go_with_their_vectors(encoder, tmp_path, capfd):
    path, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    path.write_text(
        '{"text": "abc", "id": "\\ud800 é"}\n"de f"\n{"id": 7, "text": "gh"}\n{"id": [1], "text": "i"}',
        "utf-8",
    )
    want = encoder.embed(["abc", "de f", "gh", "i"])
    assert main(["embed", "tiny", str(path), *SIZES]) == 0
    printed = capfd.readouterr().out
    rows = list(map(json.loads, printed.splitlines()))
    np.testing.assert_array_equal(np.array([row.pop("embedding") for row in rows], np.float32), want)
    assert rows == [{"id": "\ud800 é"}, {}, {"id": 7}, {}]
    assert main(["embed", "tiny", str(path), *SIZES, "-o", str(out)]) == 0
    assert out.read_text("utf-8") == printed
    assert main(["embed", "tiny", str(path), *SIZES, "-o", str(tmp_path / "out.csv")]) == 0
    found = np.loadtxt(tmp_path / "out.csv", delimiter=",", dtype=np.float32)
    np.testing.assert_array_equal(found, want)  # numbers alone


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ('"a"', {"id": "a"}),
        ('""', {"id": ""}),
        ("0", {"id": 0}),
        ("1.5", {"id": 1.5}),
        ("9" * 400, {"id": int("9" * 400)}),
        ("null", {}),
        ("true", {}),
        ("NaN", {}),
        ("1e999", {}),
        ("{}", {}),
    ],
)
def test_an_id_is_a_text_or_a_number(tmp_path, given, found):
    (tmp_path / "texts.jsonl").write_text(f'{{"text": "b", "id": {given}}}')
    (line,) = read_texts(tmp_path / "texts.jsonl", "text")
    assert (line.text, line.named) == ("b", found)


def texts_of(*arguments, **options):
    return [line.text for line in read_texts(*arguments, **options)]


def test_lines_end_where_those_of_a_file_end(tmp_path):
    """Unicode's own line ends are part of a text, and JSON may hold them as they are; a byte order mark is not."""
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeffa\u2028b\r\nc\x0bd\x85e\n\n \nf".encode())
    assert texts_of(path, "text") == ["a\u2028b", "c\x0bd\x85e", "f"]
    assert texts_of(path, "text", blank=True) == ["a\u2028b", "c\x0bd\x85e", "", " ", "f"]
    path.write_bytes(b"a\n\n")
    assert texts_of(path, "text", blank=True) == ["a", ""]
    path.write_bytes(b"")
    assert texts_of(path, "text", blank=True) == []
    path.write_bytes('\ufeff"a\u2028b"\n{"text": "c\u2029"}'.encode())
    assert texts_of(path, "text", jsonl=True) == ["a\u2028b", "c\u2029"]


def test_what_is_not_there(encoder, tmp_path, monkeypatch, capfd):
    assert main(["embed", "tiny", str(tmp_path / "none.txt"), *SIZES]) == 2
    assert "none.txt can't be read as text" in capfd.readouterr().err
    monkeypatch.undo()
    (tmp_path / "texts.txt").write_text("a", "utf-8")
    assert main(["embed", str(tmp_path / "none"), str(tmp_path / "texts.txt")]) == 2
    assert "there is no model file" in capfd.readouterr().err


def test_an_encoder_generates_nothing(monkeypatch, capfd):
    from ubjax.loaders import load

    monkeypatch.setattr(load, "load_model", lambda *args, **options: (tiny_encoder(), Letters()))
    assert isinstance(tiny_encoder(), Encoder)
    assert main(["run", "tiny", "abc"]) == 2
    assert "tiny is an encoder, which generates no text: a decoder is needed" in capfd.readouterr().err
