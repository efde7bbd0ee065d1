"""What does an engine cost for a decode, besides the model's own jitted step?

    python benchmarks/step.py [--model smollm2|tiny|FILE] [--rounds 5] [--calls 10] [--sequences 1 16 64]

Every sequence has `--cached` tokens in the cache and gets one more, all of them outputs; after each decode the
new cells are dropped again, so that every call does the same work. Times in ms, two ways:

    decode, bare   `Engine.decode` until the logits are there, and the bare `Step.program` on the same staged
                   ubatch with K/V of its own, call by call in turn; `difference` is the median of the paired
                   differences. With a large model it is as noisy as the machine.
    overhead       of one decode, less the time from the call of the program until it is known to have run: the sum of
        fit        the batch checked on the host and brought to a capacity of the ladder
        plan       the program `plan_decode`, until its result is there
        unpack     the packed plan as host arrays
        stage      the program `stage_rows`, until its result is there
        rest       the bucket, handles, Python
    meanwhile      what the engine does while the step runs (counting, `Outputs`, letting go of handles); no part of the
                   overhead, unless a step is shorter than this

Parts are waited for, which the engine itself doesn't do, so their sum is an upper bound. A large model leaves
the processor's caches cold: with `--model tiny` the same parts take about half. Rounds alternate over all
settings; spread is (upper - lower quartile) / median.

The last line is JSON.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from importlib import metadata
from typing import Any
from unittest import mock

import jax
import numpy as np
from flax import nnx

import ubjax.engine
from ubjax import Engine, EngineConfig
from ubjax.control import plan_decode, stage
from ubjax.loaders import load_decoder
from ubjax.memory.init_batch import CAUSAL
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.step import Step

PARTS = ("fit", "plan", "unpack", "stage")
CONTEXT = 64  # cells a sequence, one K/V bucket
TINY = DecoderConfig(
    n_layers=2,
    n_embd=64,
    n_ff=128,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    n_vocab=1000,
    n_ctx_train=CONTEXT,
    rope_dim=16,
    tie_embeddings=True,
)


class Clock:
    """Seconds by name, one number a call."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._begun: dict[str, tuple[float, float]] = {}

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its results waited for and its seconds kept."""

        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = jax.block_until_ready(call(*args, **kwargs))
            self.seconds[name].append(time.perf_counter() - start)
            return result

        return run

    def begins(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function that starts what is called `name`."""

        def run(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self._begun[name] = (start, time.perf_counter())
            return result

        return run

    def ends(self, name: str, call: Callable[..., Any], between: str) -> Callable[..., Any]:
        """The function that waits for it: seconds of `name` from start to end, of `between` without the two calls."""

        def run(*args: Any) -> Any:
            start, called = self._begun[name]
            self.seconds[between].append(time.perf_counter() - called)
            result = call(*args)
            self.seconds[name].append(time.perf_counter() - start)
            return result

        return run


class Setting:
    """An engine of n sequences with `cached` tokens each, and the bare program on what it stages for one more each."""

    def __init__(self, model: Decoder, n: int, unified: bool, cached: int):
        sizes = EngineConfig(n_ctx=CONTEXT * n, n_seq_max=n, kv_unified=unified, kv_pad=CONTEXT)
        self.name, self.n, self.cached = ("unified" if unified else "streams"), n, cached
        self.engine = Engine(model, None, sizes)
        ids = np.repeat(np.arange(n), cached)
        self.engine.decode(self.engine.batch(np.arange(n * cached) % 100, seq_id=ids))
        self.batch = self.engine.batch(np.arange(n), seq_id=np.arange(n), output=np.ones(n, bool))
        self.decode()
        self.step = Step(model, self.engine.caches)
        self.staged = self._staged()
        self.kv = self.step.new_kv(tuple(kv.n_cells for kv in vars(self.engine)["_kv"]))
        self.bare()
        self.clock = Clock()

    def _staged(self) -> Any:
        engine = self.engine
        bucket = engine.buckets.ubatch(
            n_tokens=self.n, n_seqs=self.n, n_outputs=self.n, equal_seqs=not engine.memory.unified
        )
        cells, batch = vars(engine)["_cells"], self.batch.with_capacity(engine.buckets.capacity.pick(self.n))
        prepared, _ = plan_decode(
            batch,
            cells,
            np.int32(engine.n_ubatch),
            CAUSAL,
            engine.batch_config,
            engine.caches,
            engine.n_ubatch,
        )
        at = (batch, prepared.plan, prepared.slot, np.int32(0))
        staged = stage(prepared.cells, *at, prepared.causal, bucket, engine.caches)
        return jax.device_put(staged, engine.device)

    def decode(self) -> float:
        """Seconds of one decode; the cache is then as before."""
        start = time.perf_counter()
        outputs = self.engine.decode(self.batch)
        jax.block_until_ready([rows for rows, _ in outputs.buffers()])
        seconds = time.perf_counter() - start
        self.engine.rm(-1, self.cached)
        return seconds

    def bare(self) -> float:
        """Seconds of the program alone; K/V is donated and comes back."""
        start = time.perf_counter()
        logits, self.kv = self.step.program(self.step.leaves, self.kv, self.staged)
        jax.block_until_ready((logits, self.kv))
        return time.perf_counter() - start

    def round(self, calls: int) -> None:
        """`calls` of each: whole decode, bare program; then decodes with a clock on every part."""
        seconds = self.clock.seconds
        for _ in range(calls):
            seconds["decode"].append(self.decode())
            seconds["bare"].append(self.bare())
        step, timed = vars(self.engine)["_step"], self.clock.timed
        finish = self.engine._finish
        with ExitStack() as patches:

            def patch(owner: Any, attribute: str, function: Callable[..., Any]) -> None:
                patches.enter_context(mock.patch.object(owner, attribute, function))

            for owner, attribute, name in (
                (ubjax.engine, "fitted", "fit"),
                (ubjax.engine, "plan_decode", "plan"),
                (ubjax.engine.Layout, "unpack", "unpack"),
                (ubjax.engine, "stage", "stage"),
            ):
                patch(owner, attribute, timed(name, getattr(owner, attribute)))
            patch(step, "program", self.clock.begins("program", step.program))
            patch(self.engine, "_finish", self.clock.ends("program", finish, "meanwhile"))
            for _ in range(calls):
                seconds["clocked"].append(self.decode())

    def row(self) -> dict[str, Any]:
        """Medians in ms."""
        s = {name: 1e3 * np.asarray(values) for name, values in self.clock.seconds.items()}
        overhead = s["clocked"] - s["program"]
        parts = {name: s[name] for name in PARTS}
        parts["rest"] = overhead - sum(parts.values())
        return {
            "sequences": self.n,
            "cache": self.name,
            **{name: float(np.median(s[name])) for name in ("decode", "bare")},
            "difference": float(np.median(s["decode"] - s["bare"])),
            "overhead": float(np.median(overhead)),
            **{name: float(np.median(values)) for name, values in parts.items()},
            "meanwhile": float(np.median(s["meanwhile"])),
            "spread_decode": spread(s["decode"]),
            "spread_bare": spread(s["bare"]),
            "spread_overhead": spread(overhead),
            "overhead_min": float(overhead.min()),
        }


def spread(values: np.ndarray) -> float:
    """(Upper - lower quartile) / median."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


def model_of(name: str | None) -> tuple[str, Decoder]:
    """The model of that name; SmolLM2 if its package is installed, else a tiny random one."""
    if name == "tiny":
        return name, Decoder(TINY, rngs=nnx.Rngs(0))
    try:
        return name or "smollm2", load_decoder(name or "smollm2")[0]
    except (ValueError, ImportError):
        if name is not None:
            raise
        return model_of("tiny")


def main() -> None:
    """Measure every setting and print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10, help="of each kind, in each round (default 10)")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--cached", type=int, default=16, help=f"tokens a sequence, below {CONTEXT}")
    args = parser.parse_args()
    name, model = model_of(args.model)
    settings = [Setting(model, n, unified, args.cached) for n in args.sequences for unified in (True, False)]
    for _ in range(args.rounds):
        for setting in settings:
            setting.round(args.calls)
    rows = [setting.row() for setting in settings]
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy")}
    print(
        f"{name} on {settings[0].engine.device}; {args.rounds} rounds of {args.calls}; medians in ms, spread\n"
    )
    timed = ("decode", "bare", "difference", "overhead", *PARTS, "rest", "meanwhile")
    print(f"{'sequences':10}{'cache':9}" + "".join(f"{c:>11}" for c in timed) + f"{'spreads':>20}")
    for row in rows:
        spreads = "/".join(f"{row[f'spread_{c}']:.0%}" for c in ("decode", "bare", "overhead"))
        cells = "".join(f"{row[c]:11.3f}" for c in timed)
        print(f"{row['sequences']:<10}{row['cache']:9}{cells}{spreads:>20}")
    print(
        json.dumps(
            {
                "benchmark": "step",
                "model": name,
                **versions,
                "rounds": args.rounds,
                "calls": args.calls,
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
