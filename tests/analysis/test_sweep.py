"""A sweep counts what its parts say; a fitted ladder pads less on requests it has not seen; the table shows itself."""

import csv
import io
import sys
import types

import matplotlib.pyplot as plt
import numpy as np
import pytest

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.ladder_kinds import parse_ladder
from ubjax.analysis.padding import ModelSizes, account_padding
from ubjax.analysis.shapes import StepShape, count_shapes, count_ubatches, steps_of
from ubjax.analysis.step_cost import StepCost
from ubjax.analysis.sweep import measure, sweep
from ubjax.analysis.sweep_result import COLUMNS, SweepResult
from ubjax.analysis.traces import synthetic_trace
from ubjax.buckets import Buckets

TRACE = synthetic_trace(120, prompt=(60, 1, 500), output=(12, 0.7, 60), seed=7)


@pytest.fixture(scope="module")
def result():
    return sweep(
        TRACE, [16, 64], ladder=["pow2", "opt", "linear:4"], slots=6, n_batch=128, cost=lambda rows: 2 + rows
    )


def test_every_combination_has_a_row(result):
    keys = [(row["strategy"], row["n_ubatch"], row["ladder"]) for row in result.rows]
    assert len(result) == len(set(keys)) == 3 * 2 * 3 and set(result.ladders) == set(keys)
    assert result.columns == [
        *("strategy", "n_ubatch", "ladder", "decodes", "ubatches", "tokens", "shapes", "compilations"),
        *("padded_share", "fill", "rows_mean", "rows_p95", "seconds"),
    ]


def test_rows_say_what_their_ladders_do(result):
    traffic = drive(TRACE, slots=6, n_batch=128)
    counts = count_shapes(traffic, [64], "equal")[64]
    rows = [(result.ladders["equal", 64, "pow2"].pick(*shape), count) for shape, count in counts.items()]
    total = sum(s * t * count for (s, t), count in rows)
    [row] = result.select(strategy="equal", n_ubatch=64, ladder="pow2").rows
    assert row["decodes"] == len(traffic) and row["tokens"] == traffic.tokens
    assert row["ubatches"] == sum(counts.values()) and row["shapes"] == len(counts)
    assert row["compilations"] == len({bucket for bucket, _ in rows})
    assert row["padded_share"] == pytest.approx(1 - traffic.tokens / total)
    assert row["rows_mean"] == pytest.approx(total / row["ubatches"])
    assert row["fill"] == pytest.approx(traffic.tokens / 64 / row["ubatches"])
    assert row["seconds"] == total + 2 * row["ubatches"]
    expanded = sorted(s * t for (s, t), count in rows for _ in range(count))
    assert row["rows_p95"] == expanded[-(-len(expanded) * 95 // 100) - 1]


def test_a_fitted_ladder_pads_less_with_no_more_programs(result):
    for strategy in ("simple", "equal", "seq"):
        for n_ubatch in (16, 64):
            pow2, opt = (
                result.select(strategy=strategy, n_ubatch=n_ubatch, ladder=kind).rows[0]
                for kind in ("pow2", "opt")
            )
            assert opt["padded_share"] < pow2["padded_share"]
            assert opt["compilations"] <= pow2["compilations"]


def test_on_the_other_half_as_well():
    trace = synthetic_trace(400, prompt=(60, 1, 500), output=(12, 0.7, 60), seed=8)
    split = sweep(trace, [64, 128], slots=6, n_batch=128, fit_share=0.5)
    second = drive(trace[200:], slots=6, n_batch=128)
    for row in split.select(strategy="simple").rows:
        assert row["tokens"] == second.tokens and row["decodes"] == len(second)
    first = count_shapes(drive(trace[:200], slots=6, n_batch=128), [64], "equal")[64]
    assert split.ladders["equal", 64, "opt"] == parse_ladder("opt").build(64, 6, first)
    for strategy in ("simple", "equal", "seq"):
        for n_ubatch in (64, 128):
            pow2, opt = (
                split.select(strategy=strategy, n_ubatch=n_ubatch, ladder=k).rows[0] for k in ("pow2", "opt")
            )
            assert opt["padded_share"] < pow2["padded_share"]


def test_one_bucket_by_hand():
    found = measure({(1, 3): 3, (1, 8): 1}, parse_ladder("4").build(8))
    assert found == {
        **{"ubatches": 4, "tokens": 17, "shapes": 2, "compilations": 2},
        **{"padded_share": pytest.approx(0.15), "fill": 17 / 32, "rows_mean": 5.0, "rows_p95": 8},
    }


def test_a_model_adds_programs_seconds_and_flops():
    timed = {
        StepShape(1, rows, 1, n_kv): 1e-3 * (1 + rows) + 1e-6 * n_kv
        for rows in (1, 64)
        for n_kv in (256, 512)
    }
    cost = StepCost.of(timed)
    model = ModelSizes(n_layers=2, n_embd=8, n_ff=16, n_heads=2, n_kv_heads=1, head_dim=4, n_vocab=50)
    found = sweep(TRACE, [64], ladder=["pow2"], slots=6, n_batch=128, cost=cost, sizes=model)
    assert found.columns[-4:] == ["programs", "matmul_padded", "attention_padded", "seconds"]
    for row in found.rows:
        strategy, ladder = row["strategy"], found.ladders[row["strategy"], 64, "pow2"]
        traffic = (pack_prompts if strategy == "seq" else drive)(TRACE, slots=6, n_batch=128)
        needed = int(traffic.needed_cells(strategy == "simple")[1].max())
        sizes = {
            "n_batch": 64,
            "n_ubatch": 64,
            "n_streams": 1,
            "n_cells": (-(-needed // 256) * 256,),
            "kv_pad": 256,
        }
        buckets = Buckets.default(**sizes)
        report = account_padding(traffic, strategy, ladder, n_kv=buckets.n_kv[0], n_outputs=buckets.n_outputs)
        assert row["programs"] == report.programs >= row["compilations"]
        shares = report.flops_share(model)
        assert (row["matmul_padded"], row["attention_padded"]) == (shares["matmul"], shares["attention"])
        steps = steps_of(
            count_ubatches(traffic, [64], strategy, buckets.n_kv[0])[64], ladder, buckets.n_outputs
        )
        assert row["seconds"] == pytest.approx(sum(cost(step) * count for step, count in steps.items()))
        assert sum(steps.values()) == row["ubatches"]


def test_best_and_select(result):
    best = result.best("padded_share", n_ubatch=64)
    assert best["padded_share"] == min(row["padded_share"] for row in result.rows if row["n_ubatch"] == 64)
    assert result.best()["seconds"] == min(row["seconds"] for row in result.rows)
    assert result.best("compilations", strategy="simple")["compilations"] == 4
    for call in (lambda: result.best("speed"), lambda: result.select(speed=1), lambda: result.plot("speed")):
        with pytest.raises(ValueError, match="there is no column 'speed', one of strategy, n_ubatch"):
            call()
    with pytest.raises(ValueError, match=r"no row has {'n_ubatch': 5}"):
        result.best(n_ubatch=5)
    with pytest.raises(
        ValueError, match=r"no row has {'strategy': 'simple', 'n_ubatch': 5}: at least one is needed"
    ):
        result.select(strategy="simple").select(n_ubatch=5).best("seconds")
    with pytest.raises(ValueError, match="there are no rows: at least one is needed"):
        SweepResult([], {}).best()


def test_the_table_as_text_html_and_csv(result, tmp_path):
    lines = str(result).splitlines()
    assert repr(result) == str(result)
    assert len(lines) == 1 + len(result) and len({len(line) for line in lines}) == 1
    assert lines[0].split() == result.columns and f"{100 * result.rows[0]['padded_share']:.2f}%" in lines[1]
    table = result._repr_html_()
    assert table.count("<tr>") == 1 + len(result) and table.count("<th>") == len(result.columns)
    rows = list(csv.DictReader(io.StringIO(result.to_csv(tmp_path / "s.csv"))))
    assert (tmp_path / "s.csv").read_text() == result.to_csv()
    assert [float(row["padded_share"]) for row in rows] == [row["padded_share"] for row in result.rows]
    result.to_html(tmp_path / "s.html", "my <trace>.csv")
    page = (tmp_path / "s.html").read_text()
    assert table in page and "<h1>my &lt;trace&gt;.csv</h1>" in page and str(TRACE) in page
    assert page.count("<svg") == 1 and "<?xml" not in page
    assert all(f"<dt>{name}</dt><dd>{COLUMNS[name]}</dd>" in page for name in result.columns)


def test_the_page_without_matplotlib(result, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result.to_html(tmp_path / "s.html")
    page = (tmp_path / "s.html").read_text()
    assert "<svg" not in page and "<h1>ubjax sweep</h1>" in page and result._repr_html_() in page


def test_every_column_is_explained(result):
    known = {*result.columns, "programs", "matmul_padded", "attention_padded"}
    assert known == set(COLUMNS) and "whole prompts" in COLUMNS["strategy"]


def test_pandas_gets_the_rows(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=tuple))
    assert result.to_pandas() == tuple(result.rows)


def test_the_plot_has_a_line_for_every_strategy_and_ladder(result):
    figure = result.plot()
    raw, left, right, seconds = figure.axes
    assert [ax.get_ylabel() for ax in figure.axes] == ["shapes", "compilations", "padded_share, %", "seconds"]
    assert len(left.get_lines()) == len(right.get_lines()) == len(seconds.get_lines()) == 9
    simple = result.select(strategy="simple", ladder="pow2").rows
    assert left.get_lines()[0].get_ydata().tolist() == [row["compilations"] for row in simple]
    assert left.get_legend().get_texts()[0].get_text() == "simple, pow2"
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in left.get_lines()}
    assert len(looks) == 9 and len({line.get_marker() for line in left.get_lines()}) == 3
    assert [line.get_label() for line in raw.get_lines()] == [
        "simple",
        "equal",
        "seq",
    ]  # no matter which ladder
    assert raw.get_lines()[0].get_ydata().tolist() == [row["shapes"] for row in simple]
    assert figure.get_suptitle() == str(TRACE)
    plt.close(figure)


def test_single_values_are_a_list_of_one():
    heard = []
    one = sweep(TRACE, 64, "simple", "pow2", slots=6, n_batch=128, on_row=lambda i, n: heard.append((i, n)))
    several = sweep(TRACE, [64], ["simple"], [parse_ladder("pow2")], slots=6, n_batch=128)
    assert one.rows == several.rows and len(one) == 1 and heard == [(1, 1)]
    assert sweep(TRACE, np.int64(64), "simple", parse_ladder("pow2"), slots=6, n_batch=128).rows == one.rows


def test_shares_and_names_are_checked():
    with pytest.raises(ValueError, match="the strategy is 'equl', one of simple, equal, seq is needed"):
        sweep(TRACE[:0], 64, ("simple", "equl"))  # before any work
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"a share of {share} of 120 requests"):
            sweep(TRACE, fit_share=share)
    with pytest.raises(ValueError, match="'pow3' is no ladder"):
        sweep(TRACE, ladder=["pow3"])
    assert str(SweepResult([], {})) == "" and len(SweepResult([], {})) == 0
