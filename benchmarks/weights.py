"""What storing a model's weights in each dtype costs and saves: bytes, speed, and what the logits lose.

    python benchmarks/weights.py [--model smollm2|FILE] [--rounds 5]

    MiB         of all weights
    peak        the most MiB that a process had resident which loads the model and generates 32 tokens (Linux)
    same, KL    of 768 tokens of the licence's text, how many have the same most likely next token as with float32 (%),
                and the mean divergence of the next token's distribution from float32's (nats)
    decode R    ms a step of the decode loop, R sequences in one cache    prefill 512    ms for a prompt of 512 tokens

Speeds by turns, the round before the first not counted, medians (least to most); see benchmarks/peers.py. `stored` is
the file's own blocks. Lines appear as they are measured, in all some ten minutes; the last one is JSON.
"""

import json
import multiprocessing
import statistics
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from benchmarks.load import resident
from benchmarks.peers import WORKS, Ours, Work, arguments, gguf_file
from ubjax import Engine, EngineConfig
from ubjax.config import WEIGHT_DTYPES
from ubjax.loaders import load_decoder
from ubjax.models.decoder import Decoder

N_TOKENS = 768
TIMED = tuple(work for work in WORKS if not work.streams and (work.rows or work.n_ubatch == 512))


def log_probabilities(model: Decoder, ids: np.ndarray) -> np.ndarray:
    """Log p of every next token [T, V], float64."""
    sizes = EngineConfig(n_ctx=len(ids), n_seq_max=1, n_batch=len(ids), n_ubatch=min(512, len(ids)))
    engine = Engine(model, None, sizes)
    outputs = engine.decode(engine.batch(ids, output=np.ones(len(ids), bool)))
    logits = np.asarray([outputs.logits(i) for i in range(len(ids))], np.float64)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def lost(log_p: np.ndarray, of_float32: np.ndarray) -> tuple[float, float]:
    """The share of tokens with the same most likely next one, and the mean divergence from float32's distribution."""
    same = np.mean(log_p.argmax(axis=1) == of_float32.argmax(axis=1))
    return float(same), float(np.mean(np.sum(np.exp(of_float32) * (of_float32 - log_p), axis=1)))


def n_bytes(model: Decoder) -> int:
    """Bytes of all weights."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))


def peak(source: Path, dtype: str) -> int:
    """Bytes that a process of its own has at most."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_generate, (source, dtype))


def _generate(source: Path, dtype: str) -> int:
    engine = Engine(*load_decoder(source, dtype=dtype), EngineConfig(n_ctx=512))
    engine.generate("The capital of France is", max_tokens=32)
    return resident("VmHWM")


def by_turns(sides: Mapping[str, Ours], work: Work, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each dtype."""
    times: dict[str, list[float]] = {dtype: [] for dtype in sides}
    for k in range(rounds + 1):
        for dtype, side in sides.items():
            seconds, _ = side.run(work)
            times[dtype] += [1e3 * seconds] if k else []
    return times


def measured(source: Path, rounds: int) -> list[dict[str, Any]]:
    """A row for each dtype, printed on the way."""
    rows: list[dict[str, Any]] = []
    sides: dict[str, Ours] = {}
    ids, of_float32 = np.zeros(0, np.int32), np.zeros(0)
    print(f"{'dtype':12}{'MiB':>6}{'peak':>6}{'same':>8}{'KL':>10}")
    for dtype in WEIGHT_DTYPES:
        most = peak(source, dtype)
        model, tokenizer = load_decoder(source, dtype=dtype)
        if dtype == "float32":
            text = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
            ids = np.asarray(tokenizer.encode(text)[:N_TOKENS])
        log_p = log_probabilities(model, ids)
        of_float32 = log_p if dtype == "float32" else of_float32
        same, divergence = lost(log_p, of_float32)
        row = {"dtype": dtype, "bytes": n_bytes(model), "peak_bytes": most, "same": same, "kl": divergence}
        rows.append({**row, "ms": {}})
        sides[dtype] = Ours(model)
        sizes = f"{n_bytes(model) / 2**20:6.0f}{most / 2**20:6.0f}"
        print(f"{dtype:12}{sizes}{100 * same:7.1f}%{divergence:10.5f}", flush=True)
    print(f"\n{'ms':12}" + "".join(f"{dtype:>26}" for dtype in WEIGHT_DTYPES))
    for work in TIMED:
        times = by_turns(sides, work, rounds)
        for row in rows:
            row["ms"][work.name] = times[row["dtype"]]
        spread = (f"{statistics.median(ms):.1f} ({min(ms):.1f} to {max(ms):.1f})" for ms in times.values())
        print(f"{work.name:12}" + "".join(f"{cell:>26}" for cell in spread), flush=True)
    return rows


def main() -> None:
    """Print the tables and the JSON line."""
    args = arguments(__doc__, other=False)
    rows = measured(gguf_file(args.model), args.rounds)
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy")}
    print(json.dumps({"benchmark": "weights", "model": args.model, **versions, "rows": rows}))


if __name__ == "__main__":
    main()
