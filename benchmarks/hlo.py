"""What do the programs of a decode copy: is K/V really updated in place, in one step and in a loop of steps?

    python benchmarks/hlo.py [--model smollm2|tiny|FILE] [--sequences 4] [--context 512] [--rows 1,4]

Compiles from shapes alone, for every bucket of one token a row and every size of K/V, unified and with streams (and
with the window cache of a model that has one), the step and `decode_loop`, and reads the compiled programs:

    kept      bytes of K/V that the program writes where they lie (its results alias its arguments)
    of        bytes of K/V in all: equal, or the donation is lost
    whole     copies of a whole K or V array of a layer, as it is or turned round: at one row there must be none
    copied    bytes of K or V that are copied, parts (some of the streams) included
    temp      bytes of temporary memory

A loop's body stands once in its program, so that a copy in it is made in every step. The last line is JSON.
"""

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.step import model_of
from ubjax import Engine, EngineConfig
from ubjax.buckets import Bucket, shape_name
from ubjax.memory.kv import AllKV
from ubjax.models.decoder import Decoder
from ubjax.step import Step, zeros
from ubjax.warmup import EnginePrograms

BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


@dataclasses.dataclass(frozen=True)
class Look:
    """What one compiled program does with K/V; `rows` a step computes, the rest in bytes but for `whole`, a number."""

    cache: str
    program: str
    shape: str
    rows: int
    kept: int
    of: int
    whole: int
    copied: int
    temp: int


def copies_of(text: str, kv: AllKV) -> tuple[int, int]:
    """Copies of a whole K or V array in the text of a compiled program, and bytes of K and V copied in all.

    As they are or turned round. A copy is one of K or V when it has the heads, cells and width of a layer, of some
    streams or all; so have scores that are turned round, if their rows are as many as a head is wide.
    """
    layers = {x.shape for x in jax.tree.leaves(kv)}
    n_whole = n_bytes = 0
    for dtype, dims in re.findall(r"= (\w+)\[([\d,]*)\]\S* (?:copy|transpose)\(", text):
        found = sorted(int(n) for n in dims.split(",") if n)
        n = math.prod(found)
        for streams, *rest in layers:
            part = n // math.prod(rest)
            if 1 <= part <= streams and _longer_than_1(found) == _longer_than_1([part, *rest]):
                n_whole += part == streams
                n_bytes += n * BYTES.get(dtype, 4)
                break
    return n_whole, n_bytes


def _longer_than_1(dims: list[int]) -> list[int]:
    return sorted(n for n in dims if n > 1)


def decode_buckets(engine: Engine) -> list[Bucket]:
    """The buckets of one token for each of 1, 2, ... sequences."""
    equal = not engine.memory.unified
    counts = range(1, min(engine.memory.n_seq_max, engine.n_ubatch) + 1)
    picked = [engine.buckets.ubatch(n_tokens=n, n_seqs=n, n_outputs=n, equal_seqs=equal) for n in counts]
    return sorted(set(picked), key=lambda bucket: (bucket.n_rows, bucket.n_outputs))


def looks(model: Decoder, config: EngineConfig, **ladders: Any) -> Iterator[Look]:
    """The step and the loop in every decode bucket and size of K/V of such an engine, the fewest rows first."""
    engine = Engine(model, None, config, **ladders)
    step, buckets = Step(model, engine.caches), engine.buckets
    sizes = {"n_ubatch": engine.n_ubatch, "kv_dtype": config.kv_dtype, "widths": ((0, 0),), "hidden": False}
    programs = EnginePrograms(step, buckets, engine.batch_config, engine.caches, **sizes, control=step.device)
    of = {(program.function, program.shape): program for program in programs}
    cache = ("unified" if engine.memory.unified else "streams") + ", windows" * (len(engine.caches) > 1)
    n_seqs = min(engine.memory.n_seq_max, engine.n_ubatch)
    for bucket in decode_buckets(engine):
        for n_kv in buckets.kv_sizes():
            kv = zeros.eval_shape(step.config, engine.caches, n_kv, jnp.dtype(config.kv_dtype))
            names = {"cache": cache, "shape": shape_name(bucket, n_kv), "rows": bucket.n_rows}
            for kind in ("step", "decode_steps") if bucket in buckets.loops(n_seqs) else ("step",):
                compiled = of[kind, names["shape"]].lower().compile()
                yield _look(compiled, kv, **names, program=kind)


def _look(compiled: jax.stages.Compiled, kv: AllKV, **names: Any) -> Look:
    text, used = compiled.as_text(), compiled.memory_analysis()
    if text is None or used is None:
        raise ValueError("this backend does not show its programs, one that does is needed")
    whole, copied = copies_of(text, kv)
    of = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kv))
    numbers = {"kept": used.alias_size_in_bytes, "of": of, "temp": used.temp_size_in_bytes}
    return Look(**names, whole=whole, copied=copied, **numbers)


def faults(look: Look) -> list[str]:
    """What is wrong with a program, in sentences."""
    at = f"{look.cache}, {look.program} {look.shape}"
    lost = [f"{at}: {look.kept} of {look.of} bytes of K/V stay where they are"] * (look.kept < look.of)
    return lost + [f"{at}: {look.whole} arrays of K/V are copied whole"] * (look.rows == 1 and look.whole > 0)


def main() -> None:
    """Print the table, what is wrong, and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--context", type=int, default=512, help="cells a sequence (default 512)")
    parser.add_argument("--rows", help="ladder of rows, as 1,4")
    args = parser.parse_args()
    name, model = model_of(args.model)
    columns = ("rows", "kept", "of", "whole", "copied", "temp")
    print(f"{name}\n{'cache':18}{'program':14}{'shape':28}" + "".join(f"{c:>12}" for c in columns))
    found = []
    for unified in (True, False):
        sizes = {"n_ctx": args.context * args.sequences, "n_seq_max": args.sequences, "kv_unified": unified}
        for look in looks(model, EngineConfig(**sizes), rows=args.rows):
            found.append(look)
            numbers = "".join(f"{getattr(look, c):12}" for c in columns)
            print(f"{look.cache:18}{look.program:14}{look.shape:28}{numbers}", flush=True)
    wrong = [fault for look in found for fault in faults(look)]
    print("\n".join(wrong) or f"{len(found)} programs: K/V stays where it is, no copy of it at one row")
    rows = [dataclasses.asdict(look) for look in found]
    print(
        json.dumps(
            {
                "benchmark": "hlo",
                "model": name,
                "jax": metadata.version("jax"),
                "faults": len(wrong),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
