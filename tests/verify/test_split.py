"""Golden splits, all of them; and a replay that tells what differs."""

import copy

import pytest

from tests.helpers import golden
from ubjax.verify.split import replay_split


@pytest.mark.parametrize(
    ("name", "batches", "splits", "flagged"),
    [("split.jsonl.gz", 1_200, 5_280, 325), ("split_large.jsonl.gz", 120, 515, 7)],
)
def test_every_golden_split(name, batches, splits, flagged):
    lines = golden(name)
    asked = [split for line in lines for split in line.get("splits", [])]
    assert (len(lines), len(asked)) == (batches, splits)
    assert sum(split["exceeds_n_ubatch"] for split in asked) == flagged
    report = replay_split(lines, name)
    assert str(report) == f"{name}: {batches + splits} rows checked, {batches + splits} equal, 0 different"
    assert report.equal


def test_what_differs_is_told():
    lines = copy.deepcopy(golden("split.jsonl.gz")[:2])
    lines[0]["splits"][0]["ubatches"][0]["seq_id_unq"] = [1]
    lines[1]["splits"][1]["out_ids"].reverse()
    lines[1]["init"] = False
    report = replay_split(lines, "changed")
    assert (report.rows, report.different) == (12, 3)
    assert report.first["seq_id_unq"] == (
        "batch 0 (decode) algo=simple n_ubatch=8 sequential=False n_keep_tail=0: seq_id_unq is [[3]], expected [[1]]"
    )
    assert set(report.first) == {"seq_id_unq", "out_ids", "init"}
