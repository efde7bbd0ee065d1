"""Golden splits, all of them; and a replay that tells what differs."""

import copy
import dataclasses

import jax
import numpy as np
import pytest

from tests.helpers import golden
from ubjax.verify import split
from ubjax.verify.split import replay_split

take_several = vars(split)["_take_several"]


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


def swapped(batch, plan, ks, bucket):
    """Ubatches whose positions were copied with the lengths of batch and ubatch exchanged."""
    taken = jax.device_get(take_several(batch, plan, ks, bucket))
    ubatches = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), taken) for i in range(len(ks))]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(swap_lengths(batch, one) for one in ubatches))


def swap_lengths(batch, ubatch):
    n_batch, n, rows = int(batch.n_tokens), int(ubatch.n_tokens), ubatch.batch_idx[ubatch.valid]
    old = np.asarray(batch.pos)[:, :n_batch].reshape(-1)
    new = np.zeros(len(batch.pos) * max(n, n_batch), np.int32)
    for j in range(len(batch.pos)):
        new[j * n_batch : j * n_batch + n] = old[j * n + rows]
    pos = np.array(ubatch.pos)
    pos[:, ubatch.valid] = new[: len(pos) * n].reshape(-1, n)
    return dataclasses.replace(ubatch, pos=pos)
    old = np.asarray(batch.pos)[:, :n_batch].reshape(-1)


def test_lengths_exchanged_in_the_copy_of_positions_are_noticed(monkeypatch):
    """M-RoPE, with several sections: the replay is equal, and with the wrong lengths it is not."""
    lines = [line for line in golden("split.jsonl.gz") if line["n_pos"] > 1 and line["init"]]
    assert len(lines) == 92 and {line["n_pos"] for line in lines} == {3, 4}
    assert replay_split(lines[:12]).equal
    monkeypatch.setattr(split, "_take_several", swapped)
    report = replay_split(lines[:12])
    assert report.different > 12 and set(report.first) == {"pos"}
