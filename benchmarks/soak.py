"""Does an engine stay right, compile nothing and keep its memory for as long as it runs?

    python benchmarks/soak.py [--minutes 30] [--model tiny|smollm2|FILE] [--seed 0] [--max-growth 64]

Random requests through two engines of four sequences, round after round, more of them than there are sequences:

    invariant   batch_invariant=True, streams, prefix cache. All kinds of sampling, stops, one or two outputs of a
                prompt, full contexts. Every output has to equal a lone run of its request, on an engine with another
                n_ubatch: tokens, reason and the bits of its log-probabilities; a cancelled one a beginning of it.
    plain       one shared stream that is too small for them, so that they wait and are put back. Greedy; half of them
                go on beyond a full context by shifts, which has to give all tokens that were asked for. The others have
                to equal a lone run as far as its two best logits differ by more than 1e-3.

On the way prompts are cancelled, streams closed, and the states of running sequences saved, as bytes or as a file, and
loaded in their place. After a warm-up (that of the engines, and the first rounds) nothing may compile, the number of
live jax arrays must not change between rounds, and the resident memory may grow by `--max-growth` MiB.

A line of progress now and then, a table, and JSON as the last line; the exit status is 1 when anything failed.
"""

import argparse
import collections
import dataclasses
import gc
import json
import os
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.many_prompts import n_clear
from benchmarks.random_requests import Letters, Traffic
from benchmarks.step import model_of
from ubjax import Engine, EngineConfig, count_compilations
from ubjax.generate import Generation, Request, Stream
from ubjax.models.decoder import Decoder
from ubjax.status import NoSlotError

S = 4
WARM_ROUNDS = 6  # of each kind
MEASURED = 5  # rounds from one look at the memory to the next


class Soak:
    """Two engines with their lone ones, what was counted, and what was found to be wrong."""

    def __init__(self, model: Decoder, codec: Any, *, cells: int, seed: int, folder: Path):
        self.rng = np.random.default_rng(seed)
        self.traffic = Traffic(self.rng, model.config.n_vocab, cells)
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        sizes: dict[str, Any] = {"n_seq_max": S, "kv_pad": cells}
        streams = sizes | {"n_ctx": cells * S, "batch_invariant": True}
        small = sizes | {"n_ctx": 2 * cells, "kv_unified": True, "n_ubatch": 16}
        self.invariant, self.alone, self.plain, self.plain_alone = self.engines = [
            Engine(model, codec, EngineConfig(**each))
            for each in (streams | {"prefix_cache": True}, streams | {"n_ubatch": 3}, small, small)
        ]
        self._path = folder / "state.safetensors"

    def warm_up(self) -> None:
        """Compile what there is; the warm-up of an engine leaves out states, and why there is no room for one."""
        for engine in self.engines:
            engine.warmup()
        for engine in (self.invariant, self.plain):
            self._warm_up_states(engine)
        engine = self.plain
        engine.decode(engine.batch([1] * (engine.memory.n_cells // 2 + 1)))
        try:
            engine.set_state(engine.get_state(0), 1)
        except NoSlotError:
            engine.clear()
        for _ in range(WARM_ROUNDS):
            self.round(self.invariant)
            self.round(self.plain)

    def _warm_up_states(self, engine: Engine) -> None:
        """Save and load as many rows as each size of their programs is for, in K/V of each size."""
        sizes = [n for (n,) in engine.buckets.kv_sizes()]
        for n_kv in sizes:
            engine.clear()
            engine.decode(engine.batch([1] * n_kv))
            for n_rows in sorted((n for n in sizes if n <= n_kv), reverse=True):
                engine.rm(0, n_rows)
                engine.set_state(engine.get_state(0), 0)
        engine.clear()

    def round(self, engine: Engine) -> None:
        """Random requests through one engine, each compared with its lone run."""
        requests = [
            self.traffic.request(greedy=engine is self.plain) for _ in range(self.rng.integers(2, 3 * S))
        ]
        most = None if self.rng.random() < 0.5 else int(self.rng.integers(1, 9))
        closes = self.rng.random() < 0.1
        with Stream(engine, requests, max_prompt_tokens_per_batch=most) as stream:
            for _ in stream:
                chance = self.rng.random()
                if chance < 0.01:
                    stream.cancel(int(self.rng.integers(len(requests))))
                elif chance < 0.03:
                    self._save_and_load(engine)
                elif closes and chance > 0.98:
                    break
        self.counts["put back"] += stream.report.n_preempted
        self.counts["requests"] += len(requests)
        for k, request in enumerate(requests):
            for i in range(request.n):
                self._compare(engine, request, i, stream.generation(k, i))

    def _save_and_load(self, engine: Engine) -> None:
        """The state of a running sequence, out and in again; the same bytes come out once more."""
        running = [s for s in range(S) if engine.pos_max(s) >= 0 and s not in engine.kept()]
        if not running:
            return
        seq = int(self.rng.choice(running))
        tokens = self.traffic.rng.integers(0, 100, 3).tolist()
        data = engine.get_state(seq, tokens)
        self.counts["states"] += 1
        try:
            if self.rng.random() < 0.5:
                engine.save_state(self._path, seq, tokens)
                found = engine.load_state(self._path, seq)
            else:
                found = engine.set_state(data, seq)
        except NoSlotError:  # it shared cells with another sequence, and there are none for a copy
            self.counts["states without room"] += 1
            return
        if found != tokens or engine.get_state(seq, tokens) != data:
            self.wrong.append(f"the state of sequence {seq} is another one after it was loaded")

    def _lone(self, engine: Engine, request: Request, i: int, logprobs: int) -> Generation:
        """The run of one output of a request alone."""
        sampling = dataclasses.replace(request.sampling, seed=request.sampling.seed + i)
        own = dataclasses.replace(request, n=1, sampling=sampling, logprobs=logprobs)
        with Stream(engine, [own]) as stream:
            collections.deque(stream, maxlen=0)
        return stream.generation(0)

    def _compare(self, engine: Engine, request: Request, i: int, found: Generation) -> None:
        self.counts[found.finish_reason] += 1
        self.counts["tokens"] += len(found.tokens)
        if engine is self.plain and request.context_shift:
            short = found.finish_reason == "length" and len(found.tokens) != request.max_tokens
            self.counts["beyond a full context"] += (
                len(request.ids) + len(found.tokens) > engine.memory.n_cells + 1
            )
            if short or found.finish_reason not in ("length", "stop", "cancelled", "context"):
                self.wrong.append(
                    f"an output with shifts ended with {found.finish_reason}, {len(found.tokens)} tokens"
                )
            return
        exact = engine is self.invariant
        lone = self._lone(self.alone if exact else self.plain_alone, request, i, 0 if exact else 2)
        n = len(found.tokens) if exact else min(n_clear(lone), len(found.tokens))
        equal = found.tokens[:n] == lone.tokens[:n]
        if exact:
            mine, theirs = ([t.logprob for t in g.logprobs or ()][:n] for g in (found, lone))
            equal &= mine == theirs
        if found.finish_reason != "cancelled" and (exact or n_clear(lone) == len(lone.tokens)):
            equal &= (len(found.tokens), found.finish_reason) == (len(lone.tokens), lone.finish_reason)
        self.counts["compared"] += 1
        if not equal:
            name = "invariant" if exact else "plain"
            self.wrong.append(f"{name}: output {i} of {request}: {found.tokens}, alone {lone.tokens}")

    def memory(self) -> tuple[float, int]:
        """Resident MiB and live jax arrays, all caches empty."""
        for engine in self.engines:
            engine.clear()
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        return resident, len(jax.live_arrays())


def soaked(soak: Soak, seconds: float) -> tuple[int, list[tuple[float, int]], Any]:
    """Rounds for so long: how many, the memory on the way, and what was compiled."""
    start = told = time.perf_counter()
    memory, rounds = [soak.memory()], 0
    with count_compilations() as compiled:
        while time.perf_counter() - start < seconds:
            soak.round(soak.plain if rounds % 3 == 2 else soak.invariant)
            rounds += 1
            if rounds % MEASURED == 0:
                memory.append(soak.memory())
            if time.perf_counter() - told > min(60, seconds / 4):
                told = time.perf_counter()
                c, (resident, arrays) = soak.counts, memory[-1]
                print(
                    f"{told - start:6.0f} s: {rounds} rounds, {c['tokens']} tokens, {c['compared']} outputs compared, "
                    f"{len(soak.wrong)} wrong, {compiled.total} compilations, {resident:.0f} MiB, {arrays} arrays",
                    flush=True,
                )
    memory.append(soak.memory())
    return rounds, memory, compiled


def main() -> None:
    """Warm up, soak, print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--max-growth", type=float, default=64, help="of the resident memory, MiB (default 64)"
    )
    args = parser.parse_args()
    name, model = model_of(args.model)
    with tempfile.TemporaryDirectory() as folder:
        sizes: dict[str, Any] = {
            "cells": 64 if name == "tiny" else 256,
            "seed": args.seed,
            "folder": Path(folder),
        }
        soak = Soak(model, Letters(), **sizes)
        soak.warm_up()
        warm = dict(soak.counts)
        soak.counts.clear()
        start, load = time.perf_counter(), os.getloadavg()[0]
        rounds, memory, compiled = soaked(soak, 60 * args.minutes)
    minutes = (time.perf_counter() - start) / 60
    growth, arrays = memory[-1][0] - memory[0][0], sorted({n for _, n in memory})
    faults = [*soak.wrong, *([str(compiled)] if compiled.total else [])]
    faults += [f"{arrays} live arrays between rounds"] if len(arrays) > 1 else []
    faults += [f"the resident memory grew by {growth:.0f} MiB"] if growth > args.max_growth else []
    print(f"\n{name}: {rounds} rounds in {minutes:.1f} minutes, load {load:.1f} before; warm-up {warm}\n")
    for what, n in sorted(soak.counts.items()):
        print(f"{what:24}{n:10}")
    print(f"{'compilations':24}{compiled.total:10}\n{'live arrays':24}{arrays!s:>10}")
    print(
        f"{'resident MiB':24}{memory[0][0]:10.0f} to {memory[-1][0]:.0f}, most {max(m for m, _ in memory):.0f}"
    )
    print("\n".join(faults) or "nothing was wrong")
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy")}
    result = {
        "benchmark": "soak",
        "model": name,
        **versions,
        "minutes": minutes,
        "rounds": rounds,
        "seed": args.seed,
    }
    result |= {
        "counts": dict(soak.counts),
        "compilations": compiled.total,
        "arrays": arrays,
        "growth_mib": growth,
    }
    print(json.dumps(result | {"faults": faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
