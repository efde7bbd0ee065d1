"""What do a shared prefix and a window cache save?

    python benchmarks/prefix.py [--prefix 1000] [--context 4096] [--rounds 5] [--model smollm2] [--windowed gemma3]

Prefix: seconds from a prompt (prefix and 16 tokens of its own) to its first token, with the prefix kept from an
earlier prompt and without, in alternating rounds. Window: an engine with a window cache against one whose window cache
is as large as the full one (`swa_full`), with `context` tokens in it: bytes of K/V, and tokens per second of single
tokens in alternating rounds. Programs are compiled before anything is timed; medians and ranges.

The last line is JSON.
"""

import argparse
import json
import statistics
import time
from importlib import metadata
from typing import Any

import numpy as np

from ubjax import Engine, EngineConfig
from ubjax.loaders import load_decoder
from ubjax.models.decoder import Decoder

OWN = 16  # tokens of a prompt behind the prefix
DECODES = 16  # single tokens of a round


def summary(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def first_token(engine: Engine, prompt: list[int]) -> float:
    """Seconds to the first token of a prompt."""
    found = engine.generate(prompt, max_tokens=1).first_token_seconds
    if found is None:
        raise RuntimeError("the prompt gave no token")
    return found


def time_prefix(model: Decoder, n_prefix: int, rounds: int) -> dict[str, Any]:
    """First tokens with a kept prefix and without, prompts that differ in each round."""
    rng = np.random.default_rng(0)

    def ids(n: int) -> list[int]:
        return rng.integers(5, 1000, n).tolist()

    prefix = ids(n_prefix)
    sizes = {"n_ctx": 4 * (n_prefix + 256), "n_seq_max": 4, "kv_unified": True}
    engines = {
        name: Engine(model, None, EngineConfig(**sizes, prefix_cache=name == "with"))
        for name in ("with", "without")
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for k in range(rounds + 2):
        prompt = [*prefix, *ids(OWN)]
        for name, engine in engines.items():
            taken = first_token(engine, prompt)
            if k >= 2:  # the first prompts compile, and leave the prefix behind
                seconds[name].append(taken)
    ratio = statistics.median(a / b for a, b in zip(seconds["without"], seconds["with"], strict=True))
    return {"prefix": n_prefix, **{name: summary(s) for name, s in seconds.items()}, "speedup": ratio}


def filled(model: Decoder, n_context: int, swa_full: bool) -> tuple[Engine, float]:
    """An engine with n_context tokens of one sequence, and the seconds that they took (programs compiled before)."""
    room = n_context + 256
    engine = Engine(model, None, EngineConfig(n_ctx=room, n_batch=room, n_ubatch=512, swa_full=swa_full))
    tokens = np.arange(n_context) % 1000 + 5
    for _ in range(2):
        engine.clear()
        start = time.perf_counter()
        np.asarray(engine.decode(engine.batch(tokens)).logits(-1))
        seconds = time.perf_counter() - start
    return engine, seconds


def decode_rate(engine: Engine) -> float:
    """Tokens per second of single tokens; the cache is then as before, but for cells that a window gave up."""
    start = time.perf_counter()
    for _ in range(DECODES):
        np.asarray(engine.decode(engine.batch([7])).logits(-1))
    return DECODES / (time.perf_counter() - start)


def time_window(model: Decoder, n_context: int, rounds: int) -> dict[str, Any]:
    """Bytes and rates of a window cache and of one as large as the full cache."""
    rows: dict[str, dict[str, Any]] = {}
    engines = {}
    for name, swa_full in (("window", False), ("full", True)):
        engine, prompt = filled(model, n_context, swa_full)
        engines[name] = engine
        rows[name] = {
            "cells": [cache.n_cells for cache in engine.caches],
            "kv_bytes": sum(cache.n_bytes for cache in engine.memory_report().caches),
            "prompt_tokens_per_second": n_context / prompt,
        }
        decode_rate(engine)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            rates[name].append(decode_rate(engine))
    for name, found in rates.items():
        rows[name]["decode_tokens_per_second"] = summary(found)
    ratio = statistics.median(a / b for a, b in zip(rates["window"], rates["full"], strict=True))
    return {"context": n_context, **rows, "decode_ratio": ratio}


def main() -> None:
    """Measure both and print a few lines and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windowed", default="gemma3")
    args = parser.parse_args()
    prefix = time_prefix(load_decoder(args.model)[0], args.prefix, args.rounds)
    with_it, without = prefix["with"]["median"], prefix["without"]["median"]
    print(
        f"first token, {args.prefix} tokens shared: {with_it:.3f} s against {without:.3f} s ({prefix['speedup']:.1f}x)"
    )
    window = time_window(load_decoder(args.windowed)[0], args.context, args.rounds)
    for name in ("window", "full"):
        row = window[name]
        print(
            f"{name:7}{row['cells']} cells, {row['kv_bytes'] / 2**20:.0f} MiB, prompt "
            f"{row['prompt_tokens_per_second']:.0f} tokens/s, decode "
            f"{row['decode_tokens_per_second']['median']:.1f} tokens/s"
        )
    versions = {name: metadata.version(name) for name in ("jax", "numpy")}
    sizes = {"model": args.model, "windowed": args.windowed, "rounds": args.rounds}
    print(json.dumps({"benchmark": "prefix", **versions, **sizes, "prefix": prefix, "window": window}))


if __name__ == "__main__":
    main()
