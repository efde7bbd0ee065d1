"""What does the decode loop cost over the model's own step, and what do single steps cost beside it?

    python benchmarks/decode_loop.py [--model smollm2|gemma3-270m|tiny|FILE] [--rounds 5] [--steps 32] [--rows 1 4 16]

Every sequence has `--cached` tokens and gets `--steps` more, greedily, in one cache with K/V of one size. Three ways,
by turns in each round, in ms a step:

    minimal   a loop written by hand, one program: the model's step and the largest logit, cells by arithmetic
    loop      `Engine.decode_steps`: room, slots, masks, sampling chain, stops, tokens on the host
    single    `Engine.decode` and the sampler, step by step, as a generation did without the loop

    loop/minimal, single/loop   medians over the rounds of the ratio in each round, least and most

The cells are dropped again after each; their tokens are compared. The last line is JSON.
"""

import argparse
import dataclasses
import json
import time
from functools import partial
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.step import model_of
from ubjax import Engine, EngineConfig
from ubjax.decode_loop import loop_bucket, staged_rows
from ubjax.generate import MAX_STEPS, NextToken, drawing_of
from ubjax.generate.sampler import Sampler
from ubjax.loops import no_rows
from ubjax.models.attention import CellAccess
from ubjax.models.decoder import Decoder

WAYS = ("minimal", "loop", "single")


class Setting:
    """An engine of n sequences with `cached` tokens each in one stream, about to get more."""

    def __init__(self, model: Decoder, n: int, cached: int, steps: int):
        n_cells = n * (cached + steps)
        sizes = EngineConfig(n_ctx=n_cells, n_seq_max=n, kv_unified=True, kv_pad=n_cells, n_batch=n * cached)
        self.n, self.cached, self.steps = n, cached, steps
        self.engine = engine = Engine(model, None, sizes)
        ids = np.arange(n * cached) % 100 + 5
        ends = np.arange(1, n + 1) * cached - 1
        outputs = engine.decode(
            engine.batch(
                ids, seq_id=np.repeat(np.arange(n), cached), output=np.isin(np.arange(n * cached), ends)
            )
        )
        self.first = np.asarray([int(np.argmax(outputs.logits(int(i)))) for i in ends], np.int32)
        self.drawing = jax.device_put(drawing_of(n, engine.batch_config.n_vocab), engine.device)
        self.sampler = Sampler(
            n_seq_max=n, n_vocab=engine.batch_config.n_vocab, n_bias=16, n_top=0, device=engine.device
        )
        self._staged_once()
        self.kv = vars(engine)["_step"].new_kv(tuple(kv.n_cells for kv in vars(engine)["_kv"]))
        self.program = jax.jit(
            partial(minimal, vars(engine)["_step"].structure, n_steps=steps), donate_argnums=1
        )

    def _staged_once(self) -> None:
        """The rows of a step as the minimal loop has them: only tokens and positions change."""
        engine = self.engine
        rows = no_rows(engine.buckets.loop(self.n), engine.memory)
        rows = dataclasses.replace(
            rows, **{f.name: np.array(getattr(rows, f.name)[: self.n]) for f in dataclasses.fields(rows)}
        )
        rows.seqs[:], rows.token[:], rows.pos[:], rows.active[:] = (
            np.arange(self.n),
            self.first,
            self.cached,
            True,
        )
        slot = tuple(np.zeros(self.n, np.int32) for _ in engine.caches)
        cells = vars(engine)["_cells"]
        self.ubatch = staged_rows(cells, slot, rows, engine.caches, loop_bucket(rows, engine.caches)).ubatch
        prompt = np.repeat(np.arange(self.n), self.cached)
        self.owner = np.concatenate([prompt, np.tile(np.arange(self.n), self.steps)]).astype(np.int32)

    def run_minimal(self) -> np.ndarray:
        """The tokens [n, steps] of the loop written by hand; K/V is donated and comes back."""
        leaves = vars(self.engine)["_step"].leaves
        tokens, self.kv = self.program(leaves, self.kv, self.ubatch, self.owner, np.int32(self.cached))
        return np.asarray(tokens).T

    def run_loop(self) -> np.ndarray:
        """The same by `decode_steps`; the cells are those of before again."""
        rows = [
            NextToken(seq=s, token=int(self.first[s]), pos=self.cached, left=self.steps + 1)
            for s in range(self.n)
        ]
        steps = self.engine.decode_steps(rows, self.steps, self.drawing)
        return np.asarray([[token for token, _ in drawn] for drawn in steps.drawn])

    def run_single(self) -> np.ndarray:
        """The same step by step."""
        engine, token, tokens = self.engine, self.first, []
        for i in range(self.steps):
            outputs = engine.decode(
                engine.batch(token, seq_id=np.arange(self.n), output=np.ones(self.n, bool))
            )
            chosen = self.sampler.take(outputs, {s: (s, self.cached + i + 1) for s in range(self.n)})
            token = np.asarray([chosen[s].token for s in range(self.n)], np.int32)  # pyright: ignore[reportOptionalMemberAccess]
            tokens.append(token)
        return np.asarray(tokens).T

    def timed(self, way: str) -> tuple[float, np.ndarray]:
        """Milliseconds a step, and the tokens."""
        start = time.perf_counter()
        tokens = getattr(self, f"run_{way}")()
        seconds = time.perf_counter() - start
        if way != "minimal":
            self.engine.rm(-1, self.cached)
        return 1e3 * seconds / self.steps, tokens


def minimal(
    structure: Any, leaves: Any, kv: Any, ubatch: Any, owner: Any, cached: Any, *, n_steps: int
) -> tuple[jax.Array, Any]:
    """n_steps greedy tokens of all rows [n_steps, R]: the model's step and nothing else."""
    graphdef, treedef = structure
    model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
    n = ubatch.token.shape[0]
    cell, row = jnp.arange(kv[0].n_cells), jnp.arange(n, dtype=jnp.int32)
    own = owner[None, :] == row[:, None]

    def step(carry: Any, i: Any) -> Any:
        token, kv = carry
        slot = n * cached + n * i + row
        seen = cell < n * cached + n * (i + 1)
        zero = jnp.zeros(n, jnp.int32)
        access = CellAccess(
            slot=slot, stream=zero, first_stream=zero[0], mask=(own & seen[None])[None], valid=seen[None]
        )
        now = dataclasses.replace(ubatch, token=token, pos=jnp.broadcast_to(cached + i, (1, n)))
        logits, kv = model(now, kv, tuple(access for _ in kv))
        token = jnp.argmax(logits, axis=1).astype(jnp.int32)
        return (token, kv), token

    (_, kv), tokens = jax.lax.scan(step, (ubatch.token, kv), jnp.arange(n_steps, dtype=jnp.int32))
    return tokens, kv


def copied_kv(setting: Setting) -> None:
    """Give the minimal loop the prompt's K and V."""
    setting.kv = jax.tree.map(jnp.copy, vars(setting.engine)["_kv"])


def measure(setting: Setting, rounds: int) -> dict[str, Any]:
    """Medians in ms a step and ratios over the rounds, the round before the first one not counted."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    same = True
    copied_kv(setting)
    for k in range(rounds + 1):
        tokens = {}
        for way in WAYS:
            ms, tokens[way] = setting.timed(way)
            times[way] += [ms] if k else []
        same = same and all(np.array_equal(tokens[way], tokens["loop"]) for way in WAYS)
    ms = {way: np.asarray(values) for way, values in times.items()}
    ratios = {"loop/minimal": ms["loop"] / ms["minimal"], "single/loop": ms["single"] / ms["loop"]}
    return {
        "rows": setting.n,
        "n_kv": setting.engine.memory.n_cells,
        **{way: float(np.median(values)) for way, values in ms.items()},
        **{f"{way} spread": [float(values.min()), float(values.max())] for way, values in ms.items()},
        **{name: [float(np.median(r)), float(r.min()), float(r.max())] for name, r in ratios.items()},
        "same_tokens": same,
    }


def main() -> None:
    """Measure every number of rows and print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=MAX_STEPS, help=f"up to {MAX_STEPS}")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--cached", type=int, default=32, help="tokens a sequence")
    args = parser.parse_args()
    _, model = model_of(args.model)
    found = []
    for n in args.rows:
        setting = Setting(model, n, args.cached, args.steps)
        found.append(measure(setting, args.rounds))
        row = found[-1]
        if len(found) == 1:
            print(
                f"{args.model} on {setting.engine.device}, {args.steps} steps, {args.rounds} rounds; ms a step\n"
            )
            print(
                f"{'rows':>5}{'n_kv':>6}"
                + "".join(f"{way:>10}" for way in WAYS)
                + "  loop/minimal          single/loop           same"
            )
        ratios = "".join(
            "  {:.3f} ({:.3f} to {:.3f})".format(*row[name]) for name in ("loop/minimal", "single/loop")
        )
        print(
            f"{row['rows']:5}{row['n_kv']:6}"
            + "".join(f"{row[way]:10.3f}" for way in WAYS)
            + ratios
            + f"  {row['same_tokens']}",
            flush=True,
        )
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy")}
    print(
        json.dumps(
            {
                "benchmark": "decode_loop",
                "model": args.model,
                **versions,
                "steps": args.steps,
                "rounds": args.rounds,
                "rows": found,
            }
        )
    )


if __name__ == "__main__":
    main()
