"""How long does it take to plan a batch? From raw flat host arrays to a split plan and a status on the host.

    python benchmarks/plan.py [--repeat 200] [--inline]

Times are the best of `--repeat` runs, in microseconds and in u: one u is the best time of
`np.argsort(x, kind="stable")` of 65,536 random int32 in the same run, so that machines can be compared.
Columns: build (`Batch.from_arrays`), validate, split, both (validate and split as one program), clock
(build, then both, results on the host), prepare (slots of all ubatches, beside the clock). The last columns
compare `both` and `clock` with the C++ library's batch allocator (init and all ubatches), whose times were
recorded in the same unit elsewhere: a ratio of two machines' ratios, good to about a third.

--inline turns jax's asynchronous dispatch on CPU off (`jax_cpu_enable_async_dispatch`): a program runs in the
calling thread, without the 10 to 60 us that waking another one takes. It is the caller's global setting.

The last line is JSON.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ubjax import Batch, BatchConfig, MemoryConfig, split_equal, split_seq, split_simple
from ubjax.memory.cells import Cells
from ubjax.memory.prepare import prepare
from ubjax.pytree import Layout, pack
from ubjax.validate import validate

N_UBATCH = 512
SPLITS: dict[str, Callable[..., Any]] = {
    "simple": split_simple,
    "equal, sequential": partial(split_equal, sequential=True),
    "equal": partial(split_equal, sequential=False),
    "seq": split_seq,
}
# Microseconds of llama.cpp's allocator (init and all ubatches, one thread), middle of three runs' range, on a
# machine whose u was 4,770 us.
RECORDED_U = 4770
RECORDED: dict[str, tuple[float, float, float, float]] = {
    "one token each, 32 / 32": (11.5, 16, 14, 32),
    "one token each, 256 / 256": (131, 211, 208, 493),
    "one prompt, 512 / 1": (64, 85, 87, 68),
    "31 decode rows + a prompt, 512 / 32": (67, 114, 114, 146),
    "ragged 1..32, 555 / 32": (71, 265, 339, 137),
    "ragged 1..64 interleaved, 2052 / 64": (306, 1576, 2557, 880),
    "one prompt, 2048 / 1": (285, 418, 425, 303),
    "32 each, 8192 / 256": (1275, 19200, 18850, 7050),
}


def ragged(n_seqs: int, top: int, total: int) -> np.ndarray:
    """Lengths of 1..top that add up to `total`."""
    lengths = np.random.default_rng(0).integers(1, top + 1, n_seqs)
    while lengths.sum() != total:
        step = 1 if lengths.sum() < total else -1
        free = (lengths < top) if step > 0 else (lengths > 1)
        lengths[np.argmax(free * np.random.default_rng(int(lengths.sum())).random(n_seqs))] += step
    return lengths


def batches() -> dict[str, np.ndarray]:
    """The sequence id of each row, by the name of the batch."""
    interleaved = ragged(64, 64, 2052)
    rounds = [np.flatnonzero(interleaved > t) for t in range(64)]
    rows = [
        np.arange(32),
        np.arange(256),
        np.zeros(512),
        np.concatenate([np.arange(31), np.full(481, 31)]),
        np.repeat(np.arange(32), ragged(32, 32, 555)),
        np.concatenate(rounds),
        np.zeros(2048),
        np.repeat(np.arange(256), 32),
    ]
    return {name: ids.astype(np.int32) for name, ids in zip(RECORDED, rows, strict=True)}


def best(call: Callable[[], Any], repeat: int, *, wait: bool = True) -> float:
    """Best time of `repeat` calls after two warm ones, in microseconds; `wait`: until device results are there."""
    times = []
    for _ in range(repeat + 2):
        start = time.perf_counter()
        result = call()
        if wait:
            jax.block_until_ready(result)
        times.append(time.perf_counter() - start)
    return min(times[2:]) * 1e6


def planned(batch: Batch, cached: Any, n_ubatch: Any, config: BatchConfig, name: str) -> Any:
    """Status and plan."""
    return validate(batch, cached, cached, config), SPLITS[name](batch, n_ubatch)


@partial(jax.jit, static_argnames=("config", "name"))
def validate_and_split(batch: Batch, cached: Any, n_ubatch: Any, config: BatchConfig, name: str) -> Any:
    """Both as one program, packed for the host."""
    return pack(planned(batch, cached, n_ubatch, config, name))


def measure(seq_id: np.ndarray, strategy: str, repeat: int) -> dict[str, float]:
    """Times of one batch and strategy in microseconds."""
    n, n_seqs = len(seq_id), int(seq_id.max()) + 1
    config = BatchConfig(n_vocab=50_000, n_batch=n, n_seq_max=n_seqs)
    token, output = np.arange(n, dtype=np.int32), np.ones(n, bool)
    pos = np.asarray([np.count_nonzero(seq_id[:i] == s) for i, s in enumerate(seq_id)], np.int32)
    cached, n_ubatch = np.full(n_seqs, -1, np.int32), np.int32(N_UBATCH)

    def build() -> Batch:
        return Batch.from_arrays(token, seq_id=seq_id, pos=pos, output=output, config=config)

    batch = build()
    plan = SPLITS[strategy](batch, n_ubatch)
    if int(plan.n_used) != n:
        raise RuntimeError(f"{strategy} left {n - int(plan.n_used)} of {n} tokens over")
    unified = strategy == "simple"
    memory = MemoryConfig(n_cells=8192 if unified else 2048, n_seq_max=n_seqs, unified=unified)
    cells = jax.device_put(Cells.empty(memory))
    both = partial(validate_and_split, config=config, name=strategy)
    layout = Layout(jax.eval_shape(partial(planned, config=config, name=strategy), batch, cached, n_ubatch))
    times = {
        "build": best(build, repeat),
        "validate": best(lambda: validate(batch, cached, cached, config), repeat),
        "split": best(lambda: SPLITS[strategy](batch, n_ubatch), repeat),
        "both": best(lambda: both(batch, cached, n_ubatch), repeat),
        "clock": best(lambda: layout.unpack(np.asarray(both(build(), cached, n_ubatch))), repeat, wait=False),
    }
    if strategy in ("simple", "equal, sequential"):
        times["prepare"] = best(
            lambda: prepare(cells, batch, plan, memory, max_rows=N_UBATCH), max(repeat // 10, 3)
        )
    return {**times, "ubatches": int(plan.n_ubatches)}


def main() -> None:
    """Measure every row and print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--inline", action="store_true")
    args = parser.parse_args()
    repeat = args.repeat
    if args.inline:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    numbers = np.random.default_rng(0).integers(0, 2**31 - 1, 65_536, dtype=np.int32)
    u = best(lambda: np.argsort(numbers, kind="stable"), 30)
    print(f"jax {jax.__version__}, numpy {np.__version__}, {platform.machine()}; u = {u:.0f} us\n")
    names = ("build", "validate", "split", "both", "clock", "prepare")
    print(
        f"{'batch, T / S':38}{'strategy':19}{'ubatches':>9}"
        + "".join(f"{c:>10}" for c in names)
        + f"{'both/C++':>11}{'clock/C++':>11}"
    )
    rows = []
    for name, seq_id in batches().items():
        for i, strategy in enumerate(SPLITS):
            times = measure(seq_id, strategy, repeat)
            recorded = RECORDED[name][i] / RECORDED_U
            ratios = {f"{c}_ratio": times[c] / u / recorded for c in ("both", "clock")}
            rows.append({"batch": name, "strategy": strategy, **times, **ratios})
            cells = "".join(f"{times[c]:10.0f}" if c in times else " " * 10 for c in names)
            print(
                f"{name:38}{strategy:19}{times['ubatches']:9}{cells}"
                f"{ratios['both_ratio']:11.2f}{ratios['clock_ratio']:11.2f}",
                flush=True,
            )
    versions = {"jax": jax.__version__, "numpy": np.__version__}
    print(
        json.dumps(
            {
                "benchmark": "plan",
                "u_us": u,
                **versions,
                "n_ubatch": N_UBATCH,
                "inline": args.inline,
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
