"""Calibration: what a step costs on this machine, from decodes of a real engine at a few shapes."""

import statistics
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from ubjax.analysis.shapes import StepShape
from ubjax.analysis.step_cost import StepCost
from ubjax.config import EngineConfig
from ubjax.engine import Engine
from ubjax.ladders import BucketLadder
from ubjax.models.decoder import Decoder


def shapes_to_time(
    n_ubatch: int, n_seqs: int, n_kv: tuple[int, int, int]
) -> tuple[list[StepShape], list[StepShape]]:
    """Shapes to fit a StepCost to, and others to judge it by.

    One block of 1, 4, 16, ... and n_ubatch rows with the middle K/V; two of them with the large one too, one with all
    rows as outputs; with n_seqs > 1 as many blocks of one row, K/V small and middle. The others lie between.
    """
    small, middle, large = n_kv
    knots = [4**i for i in range(16) if 4**i < n_ubatch]
    some = knots[-1] if len(knots) < 4 else knots[3]
    fit = [StepShape(1, rows, 1, middle) for rows in (*knots, n_ubatch)]
    fit += [StepShape(1, 1, 1, large), StepShape(1, some, 1, large), StepShape(1, some, some, middle)]
    others = [StepShape(1, 2 * rows, 1, middle) for rows in knots if 2 * rows < n_ubatch]
    others += [StepShape(1, knots[len(knots) // 2], 1, small), StepShape(1, knots[-1], knots[-1], large)]
    if n_seqs > 1:
        fit += [StepShape(n_seqs, 1, n_seqs, small), StepShape(n_seqs, 1, n_seqs, middle)]
        others += [StepShape(n_seqs, max(n_ubatch // n_seqs // 2, 1), n_seqs, middle)]
    return list(dict.fromkeys(fit)), [shape for shape in dict.fromkeys(others) if shape not in fit]


def calibrate(
    model: Decoder,
    *,
    n_ubatch: int = 512,
    n_seqs: int = 1,
    n_kv: tuple[int, int, int] = (256, 1024, 4096),
    repeat: int = 5,
    on_shape: Callable[[StepShape, int, int], None] | None = None,
) -> StepCost:
    """Time decodes of one ubatch (`repeat` each, the median counts) and fit a StepCost.

    n_ubatch: the most rows; n_seqs: streams, where the cost of several blocks is wanted; n_kv: three sizes of K/V, in
    cells a stream. Everything that a ubatch costs is in it, the control plane too, compiling is not.
    `on_shape(shape, i, n)` hears when the i-th of n is timed.

    Raises ValueError unless n_kv ascends and the middle one has cells for n_ubatch rows and one more, n_ubatch > 1.
    """
    if n_ubatch < 2 or not n_ubatch < n_kv[1] < n_kv[2] or not 1 <= n_kv[0] < n_kv[1]:
        raise ValueError(
            f"n_ubatch is {n_ubatch} and n_kv {n_kv}: at least 2 rows, and ascending sizes of which the middle one is "
            f"larger than n_ubatch, are needed"
        )
    fit, others = shapes_to_time(n_ubatch, n_seqs, n_kv)
    seconds: dict[StepShape, float] = {}
    for n_blocks in dict.fromkeys(shape.n_blocks for shape in fit + others):
        own = [shape for shape in fit + others if shape.n_blocks == n_blocks]
        engine = _engine(model, own, n_ubatch)
        for shape in own:
            seconds[shape] = _seconds(engine, shape, repeat)
            if on_shape is not None:
                on_shape(shape, len(seconds), len(fit + others))
    return StepCost.of({shape: seconds[shape] for shape in fit}, {shape: seconds[shape] for shape in others})


def _engine(model: Decoder, shapes: Sequence[StepShape], n_ubatch: int) -> Engine:
    """An engine whose buckets are these shapes, all of as many blocks."""
    n_seqs, n_cells = shapes[0].n_blocks, max(shape.n_kv for shape in shapes)
    rows, n_kv, n_outputs = (
        BucketLadder(tuple(sorted(sizes)))
        for sizes in (
            {n_ubatch, *(shape.n_block_rows for shape in shapes)},
            {shape.n_kv for shape in shapes},
            {n_ubatch, *(shape.n_outputs for shape in shapes)},
        )
    )
    config = EngineConfig(
        n_ctx=n_seqs * n_cells, kv_pad=1, n_seq_max=n_seqs, n_batch=n_ubatch, n_ubatch=n_ubatch
    )
    return Engine(model, None, config, rows=rows, n_kv=n_kv, n_outputs=n_outputs)


def _seconds(engine: Engine, shape: StepShape, repeat: int) -> float:
    """The median of decodes that give one ubatch of this shape, the first one left out: it compiles."""
    engine.clear()
    engine.reserve(shape.n_kv)
    ids = np.arange(shape.n_blocks)
    engine.decode(engine.batch(np.zeros_like(ids), seq_id=ids))  # stays, so that the cache is never empty
    batch = engine.batch(
        np.zeros(shape.n_rows, np.int32),
        seq_id=np.repeat(ids, shape.n_block_rows),
        output=np.arange(shape.n_rows) < shape.n_outputs,
    )
    seconds = []
    for _ in range(1 + repeat):
        start = time.perf_counter()
        outputs = engine.decode(batch)
        jax.block_until_ready([logits for logits, _ in outputs.buffers()])
        seconds.append(time.perf_counter() - start)
        engine.rm(-1, 1)
    return statistics.median(seconds[1:])
