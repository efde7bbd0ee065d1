"""What ubjax is compared with peers in: decodes of a few rows and prompts of 512 tokens, by turns, with its own side.

    decode R             R sequences of `cached` tokens get `steps` more, greedily; ms a step; one cache for all of them
    decode R, streams    the same with a stream of cells for each sequence, which is llama.cpp's default and ours
    prefill U            one prompt of 512 tokens, the last one an output, in ubatches of U rows; ms in all

A side is what runs them. All of them run the same ids; the tokens and the last logits are compared. F32 weights and
K/V, the same number of cells attended by a row: 256, 256 and 512 for 1, 4 and 16 rows, in streams 256. `cells` counts
those of all streams.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from ubjax import Engine, EngineConfig
from ubjax.generate import NextToken, drawing_of
from ubjax.loaders import find_model
from ubjax.models.decoder import Decoder

N_PROMPT = 512
PAUSE = 0.3  # seconds before each run: threads of another side that wait for work may spin for a while


@dataclasses.dataclass(frozen=True)
class Work:
    """A decode of `rows` sequences, with or without streams; where `rows` is 0 a prompt in ubatches of `n_ubatch`."""

    rows: int = 0
    cached: int = 0
    steps: int = 1
    n_ubatch: int = N_PROMPT
    streams: bool = False

    @property
    def name(self) -> str:
        """As the tables say."""
        kind = f"decode {self.rows}" if self.rows else f"prefill {self.n_ubatch}"
        return kind + ", streams" * self.streams

    @property
    def n_cells(self) -> int:
        """Cells that are in use at the end."""
        return self.rows * (self.cached + self.steps) or N_PROMPT

    @property
    def attended(self) -> int:
        """Those that a row attends."""
        return self.cached + self.steps if self.streams else self.n_cells

    def ids(self) -> np.ndarray:
        """Token ids [rows, cached], or [1, 512]; plain words of any vocabulary."""
        shape = (self.rows, self.cached) if self.rows else (1, N_PROMPT)
        return np.random.default_rng(0).integers(300, 8000, shape).astype(np.int32)


WORKS = (
    Work(rows=1, cached=224, steps=32),
    Work(rows=4, cached=32, steps=32),
    Work(rows=16, cached=16, steps=16),
    Work(rows=4, cached=224, steps=32, streams=True),
    Work(rows=16, cached=240, steps=16, streams=True),
    *(Work(n_ubatch=n) for n in (64, 128, 256, 512)),
)


def gguf_file(model: str) -> Path:
    """The GGUF file of a model; ValueError for one that has no file of its own."""
    found = find_model(model)
    if not isinstance(found, Path) or found.suffix != ".gguf":
        raise ValueError(f"{model} is no single GGUF file, one is needed")
    return found


class Side(Protocol):
    """One of those that are compared."""

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """Seconds (of a step, or of the prompt), and the tokens [rows, steps] or the last logits [V]."""
        ...


class Ours:
    """An engine for each work, its programs compiled before."""

    def __init__(self, model: Decoder):
        self._model, self._engines = model, {}

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """As `Side.run`."""
        if work not in self._engines:
            sizes = EngineConfig(
                n_ctx=work.n_cells,
                n_seq_max=max(work.rows, 1),
                kv_unified=not work.streams,
                kv_pad=work.attended,
                n_ubatch=work.n_ubatch,
            )
            self._engines[work] = Engine(self._model, None, sizes)
        engine = self._engines[work]
        return self._decode(engine, work) if work.rows else self._prefill(engine, work)

    def _prefill(self, engine: Engine, work: Work) -> tuple[float, np.ndarray]:
        (ids,) = work.ids()
        start = time.perf_counter()
        logits = engine.decode(engine.batch(ids)).logits(-1)
        seconds = time.perf_counter() - start
        engine.rm(0)
        return seconds, logits

    def _decode(self, engine: Engine, work: Work) -> tuple[float, np.ndarray]:
        seqs = range(work.rows)
        if engine.pos_max(0) < 0:
            for s, ids in enumerate(work.ids()):
                engine.decode(engine.batch(ids, seq_id=np.full(work.cached, s)))
        drawing = jax.device_put(drawing_of(work.rows, engine.batch_config.n_vocab), engine.device)
        rows = [NextToken(seq=s, token=1, pos=work.cached, left=work.steps) for s in seqs]
        start = time.perf_counter()
        steps = engine.decode_steps(rows, work.steps, drawing)
        seconds = time.perf_counter() - start
        engine.rm(-1, work.cached)
        return seconds / work.steps, np.asarray([[token for token, _ in drawn] for drawn in steps.drawn])


def compare(sides: Mapping[str, Side], rounds: int, works: Sequence[Work] = WORKS) -> list[dict[str, Any]]:
    """Medians, least and most in ms for each work and side, by turns, the round before the first not counted.

    The first side is ours; `ratios` are theirs over ours, of each round: above 1 ours is the faster. `differs` is how
    far the last logits of another side are from ours, or how many of the tokens differ.
    """
    found = []
    for work in works:
        times: dict[str, list[float]] = {name: [] for name in sides}
        results: dict[str, np.ndarray] = {}
        for k in range(rounds + 1):
            for name, side in sides.items():
                time.sleep(PAUSE)
                seconds, results[name] = side.run(work)
                times[name] += [1e3 * seconds] if k else []
        ours, *others = sides
        row: dict[str, Any] = {"work": work.name, "cells": work.n_cells, "ms": times}
        row["ratios"] = {
            name: [t / o for t, o in zip(times[name], times[ours], strict=True)] for name in others
        }
        row["differs"] = {
            name: float(np.mean(results[name] != results[ours]))
            if work.rows
            else float(np.abs(results[name] - results[ours]).max())
            for name in others
        }
        found.append(row)
        print(line(row), flush=True)
    return found


def arguments(doc: str | None, *, other: bool = True) -> argparse.Namespace:
    """--model, --rounds and, if there is another side, --threads of the command line; `doc`: what --help says."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    if other:
        parser.add_argument("--threads", type=int, default=2, help="of the other side")
    return parser.parse_args()


def report(name: str, args: argparse.Namespace, sides: Mapping[str, Side], packages: Sequence[str]) -> None:
    """Compare, and print the table and the JSON line with the versions of jax, flax, numpy and the peers' packages."""
    print(header([*sides]))
    rows = compare(sides, args.rounds)
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy", *packages)}
    about = {"benchmark": name, "model": args.model, "threads": args.threads}
    print(json.dumps({**about, **versions, "rows": rows}))


def header(sides: Sequence[str]) -> str:
    """The columns of `line`."""
    ours, *others = sides
    return f"{'work':19}{'cells':>6}{ours + ' ms':>24}" + "".join(
        f"{name + ' ms':>26}{'ratio':>22}{'differs':>9}" for name in others
    )


def line(row: Mapping[str, Any]) -> str:
    """A row as people read it."""
    ours, *others = row["ms"]
    cells = f"{row['work']:19}{row['cells']:6}{_spread(row['ms'][ours], 1):>24}"
    for name in others:
        cells += f"{_spread(row['ms'][name], 1):>26}{_spread(row['ratios'][name], 2):>22}{row['differs'][name]:9.2g}"
    return cells


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
