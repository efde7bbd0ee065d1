"""`ubjax sweep` and `ubjax ladder` as typed: tables, files, the flag that goes back in, one line for bad input."""

import argparse
import csv
import json
import subprocess
import sys

import matplotlib.image
import pytest

from tests.cli.tiny_model import write_tiny_model
from tests.tiny import tiny_model
from ubjax import Engine, EngineConfig
from ubjax.analysis.ladder_kinds import ladder_text
from ubjax.analysis.sweep_result import COLUMNS, SweepResult
from ubjax.analysis.traces import synthetic_trace
from ubjax.calibrate import calibrate
from ubjax.cli import ladder, main, run, sweep


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    made_up = synthetic_trace(60, prompt=(40, 1, 300), output=(10, 0.7, 40), seed=2)
    path = tmp_path_factory.mktemp("trace") / "own.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival", "prompt", "output"])
        writer.writerows(zip(made_up.arrival, made_up.prompt, made_up.output, strict=True))
    return str(path)


@pytest.fixture
def ubjax(capsys):
    """Run one of the two commands with small sizes; returns its output lines, and keeps what went to stderr."""

    def run(name, *argv):
        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        for command in (sweep, ladder):
            command.add_parser(commands)
        args = parser.parse_args([name, *argv, "--slots", "4", "--n-batch", "64"])
        assert args.execute(args) == 0
        out, run.err = capsys.readouterr()
        return out.splitlines()

    return run


def test_the_table_and_the_files(ubjax, trace, tmp_path):
    names = ("--csv", "--html", "--png")
    files = [str(tmp_path / f"out{name.replace('--', '.')}") for name in names]
    options = [word for pair in zip(names, files, strict=True) for word in pair]
    out = ubjax(
        "sweep", trace, "--n-ubatch", "16,32", "--strategy", "simple,equal", "--ladder", "pow2,8,16", *options
    )
    assert out[0].startswith("60 requests in ")
    rows = json.loads(out[-1])["rows"]
    assert [(row["strategy"], row["n_ubatch"], row["ladder"]) for row in rows] == [
        (strategy, n_ubatch, kind)
        for strategy in ("simple", "equal")
        for n_ubatch in (16, 32)
        for kind in ("pow2", "8,16")
    ]
    assert len(out) == 1 + 1 + len(rows) + 1
    with open(files[0], newline="") as file:
        assert [float(row["padded_share"]) for row in csv.DictReader(file)] == [
            row["padded_share"] for row in rows
        ]
    page = (tmp_path / "out.html").read_text()
    assert "<td>8,16</td>" in page and "<h1>ubjax sweep own.csv</h1>" in page
    assert ubjax.err.splitlines() == ["serving the trace ...", *(f"wrote {path}" for path in files)]
    assert matplotlib.image.imread(files[2]).shape[:2] == (400, 1500)


def test_ladders_are_fitted_to_the_first_share(ubjax, trace):
    whole, rest = (
        json.loads(
            ubjax("sweep", trace, "--n-ubatch", "32", "--strategy", "seq", "--ladder", "opt:3", *more)[-1]
        )["rows"][0]
        for more in ([], ["--fit-share", "0.5"])
    )
    assert 0 < rest["tokens"] < whole["tokens"] and rest["compilations"] <= 3


@pytest.mark.parametrize("strategy", ["simple", "equal", "seq"])
def test_the_ladder_goes_back_into_the_sweep(ubjax, trace, strategy):
    out = ubjax("ladder", trace, "-k", "9", "--n-ubatch", "32", "--strategy", strategy)
    flag, text, *sizes = out[-1].split()
    assert flag == "--ladder" and out[1].startswith("pow2: ")
    shared = [] if strategy == "equal" else ["--kv-unified"]
    assert sizes == ["--n-ubatch", "32", "--n-seq-max", "4", *shared]
    swept = ubjax("sweep", trace, "--n-ubatch", "32", "--strategy", strategy, "--ladder", "opt:9", flag, text)
    fitted, given = json.loads(swept[-1])["rows"]
    assert given["padded_share"] == fitted["padded_share"] and given["compilations"] <= 9
    n = text.count(",") + 1
    others = f" ({given['compilations']} for this trace, {n - given['compilations']} for what else can occur)"
    assert out[2] == (
        f"this ladder: {n} shapes{others if n > given['compilations'] else ''}, "
        f"{100 * given['padded_share']:.2f}% padding"
    )


def test_the_answer_goes_into_an_engine(ubjax, trace):
    for strategy in ("simple", "equal"):
        flags = ubjax("ladder", trace, "-k", "6", "--n-ubatch", "32", "--strategy", strategy)[-1]
        parser = argparse.ArgumentParser()
        run.add_model(parser)
        args = parser.parse_args(["smollm2", *flags.split()])
        sizes = {name: getattr(args, name) for name in ("n_ubatch", "n_seq_max", "kv_unified")}
        engine = Engine(tiny_model(), None, EngineConfig(n_ctx=64, kv_pad=16, **sizes), rows=args.ladder)
        assert ladder_text(engine.buckets.rows) == args.ladder
        assert engine.buckets.rows.n_seqs == (4 if strategy == "equal" else 1)


def test_a_price_chooses_the_number(ubjax, trace, tmp_path):
    one, many = (
        ubjax(
            "ladder",
            trace,
            "--compile-price",
            price,
            "--n-ubatch",
            "32",
            "--png",
            str(tmp_path / "waste.png"),
        )[-1]
        for price in ("1e9", "0")
    )
    assert one == "--ladder 32 --n-ubatch 32 --n-seq-max 4 --kv-unified" and len(many.split(",")) > 20
    assert matplotlib.image.imread(tmp_path / "waste.png").shape[:2] == (400, 600)


def test_a_model_adds_programs_and_flops(ubjax, trace, tmp_path):
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    out = ubjax("sweep", trace, "--n-ubatch", "32", "--strategy", "simple", "--model", model)
    for row in json.loads(out[-1])["rows"]:
        assert row["programs"] >= row["compilations"] and "seconds" not in row
        assert 0 < row["matmul_padded"] < 1 and 0 < row["attention_padded"] < 1


@pytest.mark.slow
def test_a_measured_model_adds_seconds_and_says_how_far_it_is_off(ubjax, trace, tmp_path, monkeypatch):
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    wanted = {}

    def fewer(given, **sizes):
        wanted.update(sizes)
        return calibrate(given, n_ubatch=2, n_seqs=1, n_kv=(2, 3, 4), repeat=1, on_shape=sizes["on_shape"])

    monkeypatch.setattr(sweep, "calibrate", fewer)
    out = ubjax(
        "sweep", trace, "--n-ubatch", "32", "--strategy", "simple,equal", "--model", model, "--measure"
    )
    assert (wanted["n_ubatch"], wanted["n_seqs"], wanted["n_kv"]) == (32, 8, (256, 512, 2048))
    assert out[1].startswith("ms of a step by its rows: 1: ") and "at 1 other shape: " in out[3]
    found = json.loads(out[-1])
    assert all(row["seconds"] > 0 for row in found["rows"]) and list(found["errors"]) == ["1x1|kv 2|out 1"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["sweep", "TRACE", "--measure"], "--measure needs the model that is to be timed: --model smollm2"),
        (["sweep", "TRACE", "--n-ubatch", "8,x"], "--n-ubatch is '8,x', sizes of at least 1 with commas"),
        (["sweep", "TRACE", "--n-ubatch", "0"], "--n-ubatch is '0'"),
        (
            ["sweep", "TRACE", "--strategy", "fast"],
            "the strategy is 'fast', one of simple, equal, seq is needed",
        ),
        (
            ["sweep", "no.csv", "--strategy", "simple,equl"],
            "the strategy is 'equl', one of simple, equal, seq",
        ),
        (["sweep", "no.csv", "--html", "/"], "--html / is a folder, a file is needed"),
        (
            ["sweep", "no.csv", "--png", "x.txt"],
            "--png x.txt: a name that ends with one of .png, .svg, .pdf is needed",
        ),
        (["ladder", "no.csv", "-k", "4", "--png", "x.txt"], "--png x.txt: a name that ends with one of .png"),
        (["sweep", "TRACE", "--ladder", "pow3"], "'pow3' is no ladder: pow2"),
        (["sweep", "TRACE", "--fit-share", "2"], "a share of 2.0 of 60 requests"),
        (
            ["sweep", "TRACE", "--csv", "/no/where/a.csv"],
            "--csv /no/where/a.csv: there is no folder /no/where",
        ),
        (["ladder", "TRACE", "-k", "0"], "the ladder opt:0 has the number 0, at least 1 is needed"),
        (
            ["ladder", "TRACE", "-k", "4", "--n-ubatch", "0"],
            r"n_ubatch is \[0\], sizes of at least 1 are needed",
        ),
        (
            ["ladder", "TRACE", "-k", "4", "--strategy", "equal", "--png", "a.png"],
            "--png is for ladders of one dim",
        ),
        (
            ["ladder", "TRACE", "--compile-price", "-1"],
            "compile_price is -1.0, a number of at least 0 is needed",
        ),
    ],
)
def test_bad_input_is_one_sentence(ubjax, trace, argv, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        ubjax(*(trace if word == "TRACE" else word for word in argv))
    assert "\n" not in str(caught.value)


def test_a_picture_without_matplotlib(ubjax, trace, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--png needs matplotlib: pip install matplotlib"):
        ubjax("sweep", trace, "--png", "a.png")


def test_a_file_that_is_not_there(tmp_path, capsys):
    for argv in (["sweep", "none.csv"], ["ladder", "none.csv", "-k", "4"]):
        assert main(argv) == 2
        assert capsys.readouterr().err.endswith(": none.csv can't be read: No such file or directory\n")


def test_a_terminal_is_spared_the_json(ubjax, trace, monkeypatch):
    options = [trace, "--n-ubatch", "32", "--strategy", "simple", "--ladder", "1x64,8x1"]
    piped = ubjax("sweep", *options)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ubjax("sweep", *options) == piped[:-1] and len(piped) == 4
    assert ubjax("sweep", *options, "--json") == piped


def test_who_reads_no_further_hears_nothing(trace):
    done = subprocess.run(
        f"{sys.executable} -m ubjax sweep {trace} --n-ubatch 32 --strategy simple --ladder pow2 | true; "
        'exit "${PIPESTATUS[0]}"',
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 141 and done.stderr in ("", "serving the trace ...\n")


def test_the_help_explains_the_columns(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {words}" in text for name, words in COLUMNS.items())


def test_seconds_that_are_closer_than_their_error():
    rows = [
        {"strategy": name, "tokens": tokens, "seconds": seconds}
        for name, tokens, seconds in (
            ("simple", 5, 1.0),
            ("equal", 5, 1.05),
            ("equal", 5, 2.0),
            ("seq", 3, 1.0),
        )
    ]
    too_close = vars(sweep)["_too_close"]
    assert too_close(SweepResult(rows, {}), 0.1) == [
        "simple, equal: 2 of 3 rows are within 10% of the least seconds, which is how far off the seconds are: "
        "their order says nothing"
    ]
    assert too_close(SweepResult(rows, {}), 0.01) == []
