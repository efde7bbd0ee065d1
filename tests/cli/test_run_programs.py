"""`ubjax run` with a ladder, a warm-up and the persistent cache."""

import json

import pytest

from tests.cli.tiny_model import write_tiny_model
from ubjax.cli import main, run

SMALL = ["--raw", "-c", "256", "-n", "3", "--n-batch", "2", "--n-ubatch", "2"]


@pytest.mark.slow
def test_after_the_warm_up_nothing_compiles_and_the_ladder_is_used(tmp_path, capfd, monkeypatch):
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    monkeypatch.setattr(run, "use_compilation_cache", lambda: tmp_path / "kept")
    options = ["--ladder", "2", "--warmup", "--compilation-cache", "--json"]
    assert main(["run", model, "cab", *SMALL, *options]) == 0
    out, err = capfd.readouterr()
    summary = json.loads(out.splitlines()[-1])
    assert summary["compilations"] == 0 and len(summary["outputs"][0]["tokens"]) == 3
    assert all(name.startswith("1x2|kv 256|") for name in summary["buckets"])
    assert f"compiled programs are kept in {tmp_path / 'kept'}\n" in err
    assert "compiling ...\n" in err and " of temporary memory\n" in err and "0 compilations in 0.0 s" in err


@pytest.mark.parametrize(
    ("ladder", "sentence"),
    [
        ("opt:8", "the ladder opt:8 is fitted to traffic: a histogram of shapes is needed"),
        ("pow3", "'pow3' is no ladder: pow2"),
        ("1x0", "'1x0' has a shape without rows: sizes of at least 1 are needed"),
    ],
)
def test_other_ladders_are_refused_before_the_model_is_loaded(ladder, sentence, capfd):
    assert main(["run", "no-such-model", "cab", *SMALL, "--ladder", ladder]) == 2
    assert capfd.readouterr().err.startswith(f"ubjax run: {sentence}")
