"""What n_ubatch, split strategy and bucket ladder cost a traffic: a table of all combinations, without a model."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.ladder import Cost
from ubjax.analysis.ladder_kinds import LadderKind, parse_ladder
from ubjax.analysis.padding import ModelSizes, padding_of
from ubjax.analysis.rectangle_ladder import RectangleHistogram
from ubjax.analysis.shapes import (
    UbatchCounts,
    check_strategy,
    count_shapes,
    count_ubatches,
    shapes_of,
    steps_of,
)
from ubjax.analysis.step_cost import StepCost
from ubjax.analysis.sweep_result import SweepResult
from ubjax.analysis.traces import Trace
from ubjax.analysis.traffic import Traffic
from ubjax.buckets import Buckets
from ubjax.config import round_up
from ubjax.ladders import BucketLadder, RectangleLadder
from ubjax.typing import Number, Whole

KV_PAD = 256  # cells, as an engine rounds them


def sweep(
    trace: Trace,
    n_ubatch: Whole | Sequence[Whole] = (32, 64, 128, 256, 512),
    strategy: str | Sequence[str] = ("simple", "equal", "seq"),
    ladder: str | LadderKind | Sequence[str | LadderKind] = ("pow2", "opt"),
    *,
    slots: int = 32,
    n_batch: int = 2048,
    fit_share: float | None = None,
    cost: Cost | StepCost | None = None,
    sizes: ModelSizes | None = None,
    on_row: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Serve a trace with every combination of n_ubatch, split strategy and ladder (one each, or several), and count.

    The trace becomes decodes as in `drive` (closed loop); for "seq" as in `pack_prompts`, whole prompts in embedding
    mode. They are cut by the real split functions, and each ubatch goes to the smallest bucket of the ladder that
    holds it. Ladders as in `parse_ladder`; those that need traffic are fitted to the same decodes, or with
    `fit_share` to the first share of the requests, and then every row counts the other requests alone.

    `cost(rows)` [seconds] of a ubatch adds `seconds`; a StepCost also goes by K/V and outputs. With one of these, or
    with the `sizes` of a model, the ladders of K/V and outputs are those that an engine has by itself, and `programs`
    counts its programs of a step, of which one for each size of K/V and of outputs; `sizes` add the shares of the FLOPs
    of matrices and of attention that are padding. `on_row(i, n)` hears when the i-th of n rows is there.

    Raises ValueError for an unknown strategy or ladder, and for sizes that can't be.
    """
    kinds = [kind if isinstance(kind, LadderKind) else parse_ladder(kind) for kind in _several(ladder)]
    n_ubatch, strategies = [int(size) for size in _several(n_ubatch)], _several(strategy)
    for name in strategies:
        check_strategy(name)
    fitting, measured = (trace, trace) if fit_share is None else _parts(trace, fit_share)
    result = SweepResult([], {}, str(measured))
    served = functools.cache(lambda form, part: form(part, slots=slots, n_batch=n_batch))
    for name in strategies:
        form = pack_prompts if name == "seq" else drive
        traffic = served(form, measured)
        n_kv = _cells(traffic, name) if sizes is not None or isinstance(cost, StepCost) else None
        counts = count_ubatches(traffic, n_ubatch, name, n_kv)
        fit_to = shapes = {size: shapes_of(counts[size]) for size in n_ubatch}
        if fit_share is not None and any(kind.needs_traffic for kind in kinds):
            fit_to = count_shapes(served(form, fitting), n_ubatch, name)
        for size, kind in itertools.product(n_ubatch, kinds):
            built = kind.build(size, slots if name == "equal" else 1, fit_to[size])
            row = {"strategy": name, "n_ubatch": size, "ladder": kind.text, "decodes": len(traffic)}
            row |= measure(shapes[size], built, None if isinstance(cost, StepCost) else cost)
            if n_kv is not None:
                row |= measure_steps(traffic, counts[size], built, cost, sizes)
            result.rows.append(row)
            result.ladders[name, size, kind.text] = built
            if on_row is not None:
                on_row(len(result), len(strategies) * len(n_ubatch) * len(kinds))
    return result


def _several(given: Any) -> list[Any]:
    """One value or several, as a list."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def _parts(trace: Trace, share: float) -> tuple[Trace, Trace]:
    """The first share of the requests, and the others."""
    n_fit = round(len(trace) * share)
    if not 0 < n_fit < len(trace):
        raise ValueError(
            f"a share of {share} of {len(trace)} requests is {n_fit}: at least 1, and not all, are needed"
        )
    return trace[:n_fit], trace[n_fit:]


def _cells(traffic: Traffic, strategy: str) -> BucketLadder:
    """The sizes of K/V of an engine that can hold the traffic."""
    needed = int(traffic.needed_cells(strategy == "simple")[1].max())
    return _engine_buckets(1, round_up(needed, KV_PAD)).n_kv[0]


def _engine_buckets(n_ubatch: int, n_cells: int) -> Buckets:
    """The ladders that an engine has by itself; those of rows are not used here."""
    return Buckets.default(
        n_batch=n_ubatch, n_ubatch=n_ubatch, n_streams=1, n_cells=(n_cells,), kv_pad=KV_PAD
    )


def measure_steps(
    traffic: Traffic,
    counts: UbatchCounts,
    ladder: RectangleLadder,
    cost: Cost | StepCost | None = None,
    sizes: ModelSizes | None = None,
) -> dict[str, Number]:
    """What depends on more than rows, of counts with K/V: see `sweep`."""
    steps = steps_of(counts, ladder, _engine_buckets(ladder.n_ubatch, 1).n_outputs)
    found: dict[str, Number] = {"programs": len(steps)}
    if sizes is not None:
        shares = padding_of(traffic, counts, steps).flops_share(sizes)
        found |= {"matmul_padded": shares["matmul"], "attention_padded": shares["attention"]}
    if isinstance(cost, StepCost):
        found["seconds"] = sum(cost(step) * count for step, count in steps.items())
    return found


def measure(
    counts: RectangleHistogram, ladder: RectangleLadder, cost: Cost | None = None
) -> dict[str, Number]:
    """What the ubatches of a traffic cost with a ladder.

    ubatches; tokens, their real rows; shapes, the different raw ones; compilations, the different buckets they need;
    padded_share, the share of computed rows that is padding; fill, tokens by n_ubatch rows of every ubatch; rows_mean
    and rows_p95, the rows of a bucket (padding included), mean and 95th percentile over the ubatches; with `cost`,
    seconds.
    """
    rows_of: dict[int, int] = {}
    buckets = set()
    for shape, count in counts.items():
        bucket = ladder.pick(*shape)
        buckets.add(bucket)
        rows_of[bucket[0] * bucket[1]] = rows_of.get(bucket[0] * bucket[1], 0) + count
    ubatches = sum(counts.values())
    tokens = sum(n_seqs * n * count for (n_seqs, n), count in counts.items())
    rows = sum(size * count for size, count in rows_of.items())
    found: dict[str, Number] = {
        "ubatches": ubatches,
        "tokens": tokens,
        "shapes": len(counts),
        "compilations": len(buckets),
        "padded_share": 1 - tokens / rows,
        "fill": tokens / (ubatches * ladder.n_ubatch),
        "rows_mean": rows / ubatches,
        "rows_p95": _percentile(rows_of, 0.95),
    }
    if cost is not None:
        found["seconds"] = sum(cost(size) * count for size, count in rows_of.items())
    return found


def _percentile(counts: dict[int, int], share: float) -> int:
    """The smallest value that at least `share` of the entries do not exceed."""
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    raise ValueError("there are no entries: at least one is needed")
