"""`benchmarks/peers.py` and `benchmarks/decode_loop.py`: sides by turns, ratios the right way round, equal tokens."""

import json
import sys

import numpy as np
import pytest

from benchmarks import decode_loop, peers


class Side:
    """One that takes so many seconds and gives these tokens or logits."""

    def __init__(self, seconds, result):
        self.seconds, self.result, self.calls = seconds, np.asarray(result), 0

    def run(self, work):
        self.calls += 1
        return self.seconds, self.result


def test_ratios_are_theirs_over_ours_and_differences_are_told(monkeypatch, capsys):
    monkeypatch.setattr(peers, "PAUSE", 0)
    ours, theirs = Side(0.1, [[1, 2, 3, 4]]), Side(0.25, [[1, 2, 3, 5]])
    works = [peers.Work(rows=1, cached=2, steps=4), peers.Work(n_ubatch=64)]
    decode, prefill = peers.compare({"ubjax": ours, "other": theirs}, 3, works)
    assert decode["ms"] == {"ubjax": [100.0] * 3, "other": [250.0] * 3}
    assert decode["ratios"]["other"] == [2.5] * 3
    assert (decode["work"], decode["cells"], decode["differs"]) == ("decode 1", 6, {"other": 0.25})
    assert (prefill["work"], prefill["cells"], prefill["differs"]) == ("prefill 64", 512, {"other": 1.0})
    assert ours.calls == theirs.calls == 2 * (3 + 1)
    assert "2.50 (2.50-2.50)" in capsys.readouterr().out


def test_a_row_attends_all_cells_or_those_of_its_stream():
    shared, own = (peers.Work(rows=4, cached=10, steps=6, streams=streams) for streams in (False, True))
    assert [(work.name, work.n_cells, work.attended) for work in (shared, own)] == [
        ("decode 4", 64, 64),
        ("decode 4, streams", 64, 16),
    ]


def test_a_model_without_a_file_of_its_own_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is no single GGUF file, one is needed"):
        peers.gguf_file(str(tmp_path))


@pytest.mark.slow
def test_the_minimal_loop_the_loop_and_single_steps_give_the_same_tokens(monkeypatch, capsys):
    sizes = ["--steps", "4", "--cached", "4", "--rounds", "1", "--rows", "1", "2"]
    monkeypatch.setattr(sys, "argv", ["decode_loop.py", "--model", "tiny", *sizes])
    decode_loop.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["rows"] for row in result["rows"]] == [1, 2]
    assert all(row["same_tokens"] for row in result["rows"])
