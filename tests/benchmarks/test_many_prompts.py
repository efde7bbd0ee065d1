"""`benchmarks/many_prompts.py`, small: it sees an output that differs, and ends with JSON."""

import dataclasses
import json
import sys

import pytest

from benchmarks import many_prompts
from tests.cli.tiny_model import write_tiny_model
from tests.generate.engines import prompts, shared


def test_what_differs_is_seen_as_far_as_the_margin_goes():
    alone = shared().generate(prompts(2, 9), max_tokens=4, logprobs=2)
    equal = many_prompts.compare(alone, alone)
    assert (equal["equal"], equal["differ"], equal["difference"]) == (2, [], 0.0)
    assert equal["compared_tokens"] == equal["lone_tokens"] == 8
    other = dataclasses.replace(alone[1], tokens=[*alone[1].tokens[:3], 0])
    assert many_prompts.compare([alone[0], other], alone)["differ"] == [1]
    ended = dataclasses.replace(alone[1], finish_reason="stop")
    assert many_prompts.compare([alone[0], ended], alone)["differ"] == [1]
    last = alone[1].logprobs[3]
    tie = dataclasses.replace(last, top=((1, last.logprob), (2, last.logprob)))
    unclear = dataclasses.replace(alone[1], logprobs=[*alone[1].logprobs[:3], tie])
    found = many_prompts.compare([alone[0], other], [alone[0], unclear])
    assert (found["differ"], found["compared_tokens"]) == ([], 7)


@pytest.mark.slow
def test_the_command_ends_with_json(tmp_path, monkeypatch, capsys):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    sizes = [
        "--prompts",
        3,
        "--longest",
        9,
        "--max-tokens",
        2,
        "--sequences",
        2,
        "--n-ctx",
        32,
        "--n-ubatch",
        8,
    ]
    monkeypatch.setattr(sys, "argv", ["many_prompts.py", "--model", str(path), *map(str, sizes)])
    with pytest.raises(SystemExit) as ended:
        many_prompts.main()
    out, err = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert ended.value.code == 0
    assert [(row["cache"], row["equal"]) for row in result["rows"]] == [("unified", 3), ("streams", 3)]
    assert all(row["first"]["compilations"] > 0 for row in result["rows"])
    assert "streams, n_ubatch 8, second run: 3 of 3" in err
