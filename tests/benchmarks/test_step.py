"""`benchmarks/step.py`, small: the parts add up to the overhead, and measuring leaves the engine as it was."""

import json
import sys

import numpy as np
import pytest

import ubjax.engine
from benchmarks import step
from tests.tiny import state


@pytest.mark.parametrize("unified", [True, False])
def test_the_bare_program_does_what_the_engine_does(unified):
    _, model = step.model_of("tiny")
    setting = step.Setting(model, 2, unified, cached=3)
    plan, before = ubjax.engine.plan_decode, state(setting.engine)[:3]
    setting.round(calls=2)
    assert ubjax.engine.plan_decode is plan
    for a, b in zip(state(setting.engine)[:3], before, strict=True):
        np.testing.assert_array_equal(a, b)
    bare, _ = setting.step.program(setting.step.leaves, setting.kv, setting.staged)
    assert bare.shape == (2, step.TINY.n_vocab)
    row = setting.row()
    assert row["overhead"] > 0 and row["decode"] > 0 and row["sequences"] == 2
    counts = {name: len(values) for name, values in setting.clock.seconds.items()}
    assert counts == dict.fromkeys(
        ("decode", "bare", "clocked", "program", "fit", "plan", "unpack", "stage", "meanwhile"), 2
    )


def test_the_command_ends_with_json(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["step.py", "--model", "tiny", "--rounds", "1", "--calls", "1", "--sequences", "2"]
    )
    step.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["cache"] for row in result["rows"]] == ["unified", "streams"]
    for row in result["rows"]:
        parts = sum(row[name] for name in (*step.PARTS, "rest"))
        assert parts == pytest.approx(row["overhead"])  # one call: medians are the values
