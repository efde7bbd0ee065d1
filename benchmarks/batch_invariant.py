"""What does `batch_invariant=True` cost?

    python benchmarks/batch_invariant.py [--model smollm2|tiny|FILE] [--rounds 5] [--calls 5] [--rows 4x4 4x16]
        [--sequences 4] [--cells 512] [--prompt 256]

Engines of `--sequences` sequences with `--cells` cells each: the plain one with streams, and an invariant one for each
shape of `--rows`. An invariant engine computes every row of its shape and attends all cells in every step, the plain
one as few as its buckets have.

    decode 1, decode S   one more token of one sequence, and of all S, each with 32 tokens in the cache
    prompt 1, prompt S   a prompt of `--prompt` tokens in one sequence, and one in each

Engines take turns call by call, so that a ratio compares neighbours; every call is made once before the first round.
Median ms of a call, and the median over all pairs of the invariant engine's time over the plain one's, with its
quartiles. The last line is JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import numpy as np

from benchmarks.step import model_of
from ubjax import Engine, EngineConfig
from ubjax.models.decoder import Decoder

CACHED = 32


class Setting:
    """An engine with CACHED tokens in every sequence, and the work that is timed; the cache is then as before."""

    def __init__(self, model: Decoder, n: int, cells: int, n_prompt: int, rows: str | None):
        config = EngineConfig(
            n_ctx=cells * n, n_seq_max=n, kv_pad=cells // 2, batch_invariant=rows is not None
        )
        self.name = rows or "plain"
        self.engine = Engine(model, None, config, rows=rows)
        self.works: dict[str, Callable[[], None]] = {}
        for what, n_tokens in (("decode", 1), ("prompt", n_prompt)):
            for n_seqs in dict.fromkeys((1, n)):
                self.works[f"{what} {n_seqs}"] = lambda a=n_seqs, b=n_tokens: self._decode(a, b)
        self._decode(n, CACHED, keep=True)

    def _decode(self, n_seqs: int, n_tokens: int, *, keep: bool = False) -> None:
        """Decode as many tokens of the first sequences, the last of each an output; drop them again unless `keep`."""
        ids = np.random.default_rng(n_tokens).integers(1, 100, n_seqs * n_tokens)
        last = np.tile(np.arange(n_tokens) == n_tokens - 1, n_seqs)
        seqs = np.repeat(np.arange(n_seqs), n_tokens)
        outputs = self.engine.decode(self.engine.batch(ids, seq_id=seqs, output=last))
        jax.block_until_ready([logits for logits, _ in outputs.buffers()])
        if not keep:
            self.engine.rm(-1, CACHED)

    def seconds(self, work: str) -> float:
        """Seconds of one call."""
        start = time.perf_counter()
        self.works[work]()
        return time.perf_counter() - start


def measured(settings: list[Setting], rounds: int, calls: int) -> dict[str, np.ndarray]:
    """For each work, seconds [rounds * calls, settings]."""
    works = list(settings[0].works)
    for setting in settings:
        for work in works:
            setting.seconds(work)
    found: dict[str, list[list[float]]] = {work: [] for work in works}
    for _ in range(rounds):
        for work in works:
            found[work] += [[setting.seconds(work) for setting in settings] for _ in range(calls)]
    return {work: np.asarray(values) for work, values in found.items()}


def main() -> None:
    """Measure, and print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5, help="of each kind, in each round (default 5)")
    parser.add_argument("--rows", nargs="+", help="shapes of a ubatch (default: 4 and 16 rows a sequence)")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--cells", type=int, default=512, help="a sequence's, an even number")
    parser.add_argument("--prompt", type=int, default=256)
    args = parser.parse_args()
    name, model = model_of(args.model)
    n = args.sequences
    shapes = args.rows or [f"{n}x4", f"{n}x16"]
    settings = [Setting(model, n, args.cells, args.prompt, rows) for rows in (None, *shapes)]
    load = os.getloadavg()[0]
    found = measured(settings, args.rounds, args.calls)
    print(
        f"{name} on {settings[0].engine.device}; {args.rounds} rounds of {args.calls}; load {load:.1f} before\n"
    )
    print(
        f"{'work':12}{'plain, ms':>12}"
        + "".join(f"{s.name + ', ms':>14}{'ratio':>8}{'quartiles':>14}" for s in settings[1:])
    )
    rows: list[dict[str, Any]] = []
    for work, seconds in found.items():
        ratios = seconds[:, 1:] / seconds[:, :1]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75), axis=0)
        ms = 1e3 * np.median(seconds, axis=0)
        line = f"{work:12}{ms[0]:12.2f}"
        for i, setting in enumerate(settings[1:]):
            line += f"{ms[i + 1]:14.2f}{middle[i]:8.2f}{f'{low[i]:.2f} to {high[i]:.2f}':>14}"
            rows.append(
                {"work": work, "rows": setting.name, "plain_ms": float(ms[0]), "ms": float(ms[i + 1])}
            )
            rows[-1] |= {"ratio": float(middle[i]), "quartiles": [float(low[i]), float(high[i])]}
        print(line)
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy")}
    sizes = {
        "sequences": n,
        "cells": args.cells,
        "prompt": args.prompt,
        "rounds": args.rounds,
        "calls": args.calls,
    }
    print(
        json.dumps(
            {"benchmark": "batch_invariant", "model": name, **versions, **sizes, "load": load, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
