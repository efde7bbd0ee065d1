"""Replays golden splits: acceptance of each batch, then every split of an accepted one, ubatch by ubatch.

One JSON object a batch, as tests/golden/README.md describes it. All runs through the jitted functions, in few shapes.
"""

import collections
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from ubjax.batch import ROW_EMBD, ROW_ID, Batch, mark_all_outputs
from ubjax.buckets import Bucket
from ubjax.config import BatchConfig
from ubjax.ladders import BucketLadder
from ubjax.split.equal import split_equal
from ubjax.split.plan import SplitPlan
from ubjax.split.seq import split_seq
from ubjax.split.simple import split_simple
from ubjax.status import InvalidBatchError, Reason
from ubjax.typing import Array, Int32
from ubjax.ubatch import Ubatch, take_ubatch
from ubjax.validate import validate
from ubjax.verify.report import Report

# Few shapes of ubatches, so that one program serves many.
_LADDERS = {"n_rows": BucketLadder((16, 128, 2048)), "n_blocks": BucketLadder((1, 16, 64, 256))}
_AT_ONCE = 8  # ubatches gathered by one call

_FIELDS = (
    "n_tokens",
    "n_seqs",
    "n_seq_tokens",
    "n_seqs_unq",
    "batch_idxs",
    "pos",
    "seq_id_unq",
    "output",
    "equal_seqs",
)


def replay_split(lines: Iterable[dict[str, Any]], name: str = "split") -> Report:
    """Compare the acceptance of each batch and each of its splits with the golden answer, a row each.

    Where a golden split broke its own limit (`exceeds_n_ubatch`), the limit is checked, and that no token is missing.
    """
    lines, report = list(lines), Report(name)
    capacity = max((len(line["tokens"]) for line in lines), default=1)
    n_seq_max = max((line["n_seq_max"] for line in lines), default=1)
    for number, line in enumerate(lines):
        where = f"batch {number} ({line['kind']})"
        batch = _accepted(line, capacity, n_seq_max)
        report.check(where, {"init": batch is not None}, {"init": line["init"]})
        if batch is None:
            continue
        for split in line.get("splits", []):
            found = _answer(batch, _cut(batch, split))
            if split["exceeds_n_ubatch"]:
                found = {
                    "rows": sorted(itertools.chain(*found["batch_idxs"])),
                    "over": max(found["n_tokens"]) > split["n_ubatch"],
                }
                expected = {"rows": list(range(len(line["tokens"]))), "over": False}
            else:
                expected = {key: [ubatch[key] for ubatch in split["ubatches"]] for key in _FIELDS}
                expected |= {"n_used": split["n_used"], "out_ids": split["out_ids"]}
            asked = " ".join(
                f"{key}={split[key]}" for key in ("algo", "n_ubatch", "sequential", "n_keep_tail")
            )
            report.check(f"{where} {asked}", found, expected)
    return report


def _accepted(line: dict[str, Any], capacity: int, n_seq_max: int) -> Batch | None:
    """The batch of a golden line, None when it is refused: while it is built, or by `validate`.

    Sequence ids are checked while it is built; what follows sees the shapes of the largest batch of the file.
    """
    sizes = {key: line[key] for key in ("n_pos", "n_vocab", "n_embd")}
    config = BatchConfig(n_batch=capacity, n_seq_max=line["n_seq_max"], **sizes)
    try:
        batch = _build(line, config, capacity)
    except InvalidBatchError:
        return None
    config = dataclasses.replace(config, n_seq_max=n_seq_max)
    batch = dataclasses.replace(
        batch, seq=np.pad(batch.seq, ((0, 0), (0, config.n_words - batch.seq.shape[1])))
    )
    ranges = np.full((2, n_seq_max), -1, np.int32)
    for seq_id, ends in line["memory"].items():
        ranges[:, int(seq_id)] = ends
    status = validate(batch, ranges[0], ranges[1], config)
    return batch if int(status.code) == Reason.OK else None


def _build(line: dict[str, Any], config: BatchConfig, capacity: int) -> Batch:
    tokens = line["tokens"]
    ids = np.asarray([token["id"] for token in tokens], np.int32)
    embedded = np.asarray([token["embd"] for token in tokens])
    rows = 100 * np.arange(len(tokens))[:, None] + np.arange(config.n_embd)
    pos = np.asarray([token["pos"] for token in tokens], np.int32).T
    batch = Batch.from_arrays(
        ids,
        embd=rows,
        row_type=np.where(ids >= 0, ROW_ID, 0) | np.where(embedded, ROW_EMBD, 0),
        pos=pos[0] if len(pos) == 1 else pos,
        seq_id=[token["seq"] for token in tokens],
        output=[token["output"] for token in tokens],
        config=config,
        capacity=capacity,
    )
    if not line["output_all"]:
        return batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the golden batches leave tokens unmarked on purpose
        return mark_all_outputs(batch)


def _cut(batch: Batch, split: dict[str, Any]) -> SplitPlan:
    n_ubatch = split["n_ubatch"]
    if split["algo"] == "simple":
        return split_simple(batch, n_ubatch)
    if split["algo"] == "seq":
        return split_seq(batch, n_ubatch)
    return split_equal(batch, n_ubatch, split["n_keep_tail"], sequential=split["sequential"])


def _answer(batch: Batch, plan: SplitPlan) -> dict[str, Any]:
    """What the golden file says of a split, read from the ubatches that `take_ubatch` makes of the plan."""
    plan = jax.device_get(plan)
    equal_seqs, sizes = bool(plan.equal_seqs), np.diff(plan.offset)
    by_bucket = collections.defaultdict(list)
    for k in range(int(plan.n_ubatches)):
        n_sets = int(plan.n_seqs[k]) if equal_seqs else 1
        n_blocks, n_rows = _LADDERS["n_blocks"].pick(n_sets), _LADDERS["n_rows"].pick(int(sizes[k]) // n_sets)
        bucket = Bucket(n_blocks=n_blocks, n_block_rows=n_rows, n_outputs=n_blocks * n_rows)
        by_bucket[bucket].append(k)
    taken = {}
    for bucket, ks in by_bucket.items():
        for start in range(0, len(ks), _AT_ONCE):
            some = ks[start : start + _AT_ONCE]
            ubatches = jax.device_get(
                _take_several(batch, plan, np.resize(some, _AT_ONCE).astype(np.int32), bucket)
            )
            taken |= {k: jax.tree.map(lambda leaf, i=i: leaf[i], ubatches) for i, k in enumerate(some)}
    ubatches = [_described(taken[k], equal_seqs) for k in sorted(taken)]
    answer = {key: [ubatch[key] for ubatch in ubatches] for key in (*_FIELDS, "out_ids")}
    return answer | {"n_used": int(plan.n_used), "out_ids": list(itertools.chain(*answer["out_ids"]))}


@functools.partial(jax.jit, static_argnames="bucket")
def _take_several(batch: Batch, plan: SplitPlan, ks: Int32[Array, " K"], bucket: Bucket) -> Ubatch:
    return jax.vmap(lambda k: take_ubatch(batch, plan, k, bucket))(ks)


def _described(ubatch: Ubatch, equal_seqs: bool) -> dict[str, Any]:
    """A ubatch on the host, without its padding, in the words of the golden file."""
    n_tokens, n_seqs, n_seqs_unq = (int(n) for n in (ubatch.n_tokens, ubatch.n_seqs, ubatch.n_seqs_unq))
    valid, out_rows = np.asarray(ubatch.valid), np.asarray(ubatch.out_rows)
    return {
        "n_tokens": n_tokens,
        "n_seqs": n_seqs,
        "n_seq_tokens": n_tokens // n_seqs,
        "n_seqs_unq": n_seqs_unq,
        "batch_idxs": ubatch.batch_idx[valid].tolist(),
        "pos": ubatch.pos[:, valid].reshape(-1).tolist(),
        "seq_id_unq": ubatch.seq_id_unq[:n_seqs_unq].tolist(),
        "output": ubatch.output[valid].astype(int).tolist(),
        "equal_seqs": equal_seqs,
        "out_ids": ubatch.batch_idx[out_rows[out_rows < valid.size]].tolist(),
    }
