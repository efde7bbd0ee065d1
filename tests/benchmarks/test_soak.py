"""`benchmarks/soak.py`, two minutes of it: the command finds nothing wrong; and it does find what is."""

import json
import sys

import numpy as np
import pytest

from benchmarks import soak, step
from benchmarks.random_requests import Letters
from ubjax.analysis import forbid_compilations
from ubjax.generate import Request, Sampling


@pytest.mark.slow
def test_two_minutes_of_random_requests_find_nothing_wrong(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["soak.py", "--minutes", "2", "--model", "tiny", "--seed", "1"])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended.value.code == 0, result["faults"]
    assert (result["faults"], result["compilations"], len(result["arrays"])) == ([], 0, 1)
    counts = result["counts"]
    assert (
        counts["compared"] > 30
        and counts["states"] > 5
        and counts["cancelled"] > 2
        and counts["put back"] > 0
    )


@pytest.mark.slow
def test_states_of_any_size_compile_nothing_after_the_warm_up(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "WARM_ROUNDS", 0)
    _, model = step.model_of("tiny")
    warm = soak.Soak(model, Letters(), cells=64, seed=0, folder=tmp_path)
    warm.warm_up()
    for engine, n_tokens in ((warm.invariant, (5, 64)), (warm.plain, (5, 64, 65, 128))):
        for n in n_tokens:
            engine.clear()
            engine.decode(engine.batch([1] * n))
            for n_left in (n, 64, 7):
                engine.rm(0, n_left)
                with forbid_compilations():
                    engine.set_state(engine.get_state(0), 0)


@pytest.mark.slow
def test_a_wrong_output_is_found(tmp_path):
    _, model = step.model_of("tiny")
    found = soak.Soak(model, Letters(), cells=64, seed=0, folder=tmp_path)
    request = Request(ids=(5, 6, 7), max_tokens=4, logprobs=0, sampling=Sampling(temperature=1.0, seed=3))
    other = Request(ids=(5, 6, 8), max_tokens=4, logprobs=0, sampling=Sampling(temperature=1.0, seed=3))
    lone = vars(soak.Soak)["_lone"](found, found.invariant, request, 0, 0)
    compare = vars(soak.Soak)["_compare"]
    compare(found, found.invariant, request, 0, lone)
    assert found.wrong == [] and found.counts["compared"] == 1
    compare(found, found.invariant, other, 0, lone)
    assert len(found.wrong) == 1 and found.wrong[0].startswith("invariant: output 0 of Request(ids=(5, 6, 8)")
    assert np.isfinite(found.memory()[0])
