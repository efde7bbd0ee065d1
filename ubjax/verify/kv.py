"""Replays cache operations: decodes (validation, split, slots) and sequence operations, cells compared.

Sequences that a case doesn't have change nothing, so all cases of one kind of cache run with the same number
of sequences: one program per cache size and kind, not one per case.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from ubjax.batch import Batch
from ubjax.config import BatchConfig, MemoryConfig, SwaType
from ubjax.memory import ops
from ubjax.memory.cells import Cells
from ubjax.memory.init_batch import Prepared, init_batch
from ubjax.status import Reason, sentence
from ubjax.validate import validate
from ubjax.verify.report import Report

_WINDOWS = {0: SwaType.NONE, 1: SwaType.STANDARD, 2: SwaType.CHUNKED}


def replay_kv(lines: Iterable[Mapping[str, Any]], name: str) -> Report:
    """Replay the cases of a file like kv.jsonl.gz; a row is one checked operation."""
    report, cases = Report(name), list(lines)
    sizes = [case["n_seq_max"] for case in cases]
    decodes = [op for case in cases for op in case["ops"] if op["op"] == "decode"]
    batch_config = BatchConfig(
        n_vocab=1, n_batch=max(len(op["tokens"]) for op in decodes), n_seq_max=max(sizes)
    )
    max_rows = max(op["n_ubatch"] for op in decodes)
    for number, case in enumerate(cases):
        cache = _Cache(case, batch_config, max_rows)
        for i, op in enumerate(case["ops"]):
            found = cache.carry_out(op)
            if "expect" in op:
                # `ret`, whether a removal was possible, has no counterpart: it always is
                expected = {key: want for key, want in op["expect"].items() if key != "ret"}
                shifts = all("shift" in stream for stream in expected["streams"])
                found |= cache.state(shifts=shifts)
                report.check(f"case {number} op {i} ({op['op']})", found, expected)
    return report


class _Cache:
    """The cells of one case, on the way through its operations."""

    def __init__(self, case: Mapping[str, Any], batch_config: BatchConfig, max_rows: int):
        self.n_seqs, self.max_rows, self.batch_config = case["n_seq_max"], max_rows, batch_config
        self.config = MemoryConfig(
            n_cells=case["kv_size"],
            n_seq_max=batch_config.n_seq_max,
            unified=case["unified"],
            n_swa=case["n_swa"],
            swa_type=_WINDOWS[case["swa_type"]],
        )
        # Operations on sequences don't look at the window: they share their programs.
        self.windowless = dataclasses.replace(self.config, n_swa=0, swa_type=SwaType.NONE)
        self.cells: Cells = jax.device_put(Cells.empty(self.config))

    def carry_out(self, op: Mapping[str, Any]) -> dict[str, Any]:
        """Do one operation; returns what a decode answers, by the keys of the golden answers."""
        if op["op"] == "decode":
            return self._decode(op)
        self.cells = _OPS[op["op"]](self.cells, op, self.windowless)
        return {}

    def _decode(self, op: Mapping[str, Any]) -> dict[str, Any]:
        batch = Batch.from_arrays(
            np.zeros(len(op["tokens"]), np.int32),
            pos=[token["pos"] for token in op["tokens"]],
            seq_id=[token["seq"] for token in op["tokens"]],
            config=self.batch_config,
            capacity=self.batch_config.n_batch,
        )
        invalid = validate(batch, *ops.seq_ranges(self.cells, self.windowless), self.batch_config)
        if int(invalid.code) != Reason.OK:
            return {"status": "invalid"}
        prepared = init_batch((self.cells,), batch, op["n_ubatch"], (self.config,), max_rows=self.max_rows)
        code = int(prepared.status.code)
        if code != Reason.OK:
            (self.cells,) = prepared.cells
            return {"status": "no_slot" if code == Reason.NO_SLOT else sentence(prepared.status)}
        self.cells = ops.settle(prepared.cells[0])
        return {"status": "ok", "slots": _slots(jax.device_get(prepared), batch, self.config)}

    def state(self, *, shifts: bool) -> dict[str, Any]:
        """Cells and positions, by the keys of the golden answers; streams beyond the case's if in use."""
        cells: Cells = jax.device_get(self.cells)
        used, top = np.asarray(ops.used(self.cells)), np.asarray(ops.used_max_p1(self.cells))
        low, high = (np.asarray(x) for x in ops.seq_ranges(self.cells, self.windowless))
        streams = [
            {
                "head": int(cells.head[s]),
                "pos": cells.pos[s].tolist(),
                "seq": [_ids(words) for words in cells.seq[s].tolist()],
                "used": int(used[s]),
                "used_max_p1": int(top[s]),
            }
            | ({"shift": cells.shift[s].tolist()} if shifts else {})
            for s in range(self.config.n_streams)
            if self.config.unified or s < self.n_seqs or used[s] or cells.head[s]
        ]
        pairs = np.stack([low, high], axis=-1)[: self.n_seqs].tolist()
        return {"streams": streams, "seq_pos": pairs}


_OPS: dict[str, Callable[[Cells, Mapping[str, Any], MemoryConfig], Cells]] = {
    "rm": lambda cells, op, config: ops.rm(cells, op["seq"], op["p0"], op["p1"], config),
    "cp": lambda cells, op, config: ops.cp(cells, op["src"], op["dst"], op["p0"], op["p1"], config)[0],
    "keep": lambda cells, op, config: ops.keep(cells, op["seq"], config),
    "add": lambda cells, op, config: ops.add(cells, op["seq"], op["p0"], op["p1"], op["delta"], config),
    "div": lambda cells, op, config: ops.div(cells, op["seq"], op["p0"], op["p1"], op["d"], config),
    "clear": lambda cells, op, config: ops.clear(cells),
}


@functools.cache
def _ids_of(words: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(32 * w + b for w, word in enumerate(words) for b in range(32) if word >> b & 1)


def _ids(words: list[int]) -> list[int]:
    """The sequence ids of a set."""
    return list(_ids_of(tuple(words)))


def _slots(prepared: Prepared, batch: Batch, config: MemoryConfig) -> list[dict[str, Any]]:
    """The slots of each ubatch as the golden answers write them."""
    plan, slots = prepared.plan, []
    for k in range(int(plan.n_ubatches)):
        places = slice(int(plan.offset[k]), int(plan.offset[k + 1]))
        rows, cells = plan.order[places], prepared.slot[0][places]
        n_sets = 1 if config.unified else int(plan.n_seqs[k])
        sets = np.split(rows, n_sets)
        slots.append(
            {
                "strm": [0 if config.unified else _ids(batch.seq[own[0]].tolist())[0] for own in sets],
                "idxs": [own.tolist() for own in np.split(cells, n_sets)],
                "batch_idxs": rows.tolist(),
            }
        )
    return slots
