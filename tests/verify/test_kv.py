"""The replay of golden cache operations: all of them equal, and a wrong answer is noticed."""

import copy

import pytest

from tests.helpers import golden
from ubjax.verify.kv import replay_kv


@pytest.mark.slow
def test_every_operation_is_equal():
    report = replay_kv(golden("kv.jsonl.gz"), "kv.jsonl.gz")
    assert report.equal, str(report)
    assert report.rows == 5278


def small_cases():
    return [c for c in golden("kv.jsonl.gz") if c["kv_size"] == 8 and c["unified"] and c["swa_type"] < 2]


def test_cases_of_one_size_are_equal():
    cases = small_cases()
    report = replay_kv(cases, "kv")
    assert report.equal, str(report)
    assert report.rows == sum("expect" in op for case in cases for op in case["ops"]) == 484


@pytest.mark.parametrize("key", ["status", "slots", "streams", "seq_pos"])
def test_a_wrong_answer_is_found(key):
    case = copy.deepcopy(small_cases()[0])
    i, op = next((i, op) for i, op in enumerate(case["ops"]) if "slots" in op.get("expect", {}))
    wrong = {"status": "no_slot", "slots": [], "streams": op["expect"]["streams"] * 2, "seq_pos": [[0, 0]]}
    op["expect"][key] = wrong[key]
    report = replay_kv([case], "kv")
    assert report.different == 1 and report.first[key].startswith(f"case 0 op {i} (decode): {key} is ")
