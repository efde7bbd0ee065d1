"""The programs that are predicted from lengths alone are those that a real engine runs and compiles."""

import collections
import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.models.helpers import GROUPED, decoder
from tests.traffic import decodes_of, run
from ubjax import Batch, BucketLadder, Engine, EngineConfig
from ubjax.analysis import count_compilations, forbid_compilations, synthetic_trace
from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.ladder_kinds import parse_ladder
from ubjax.analysis.padding import account_padding
from ubjax.analysis.shapes import count_shapes, count_ubatches
from ubjax.analysis.sweep import measure
from ubjax.buckets import Bucket, Buckets, pick_outputs, shape_name
from ubjax.control import advance, stage
from ubjax.memory import caches
from ubjax.memory.init_batch import Mode, init_batch
from ubjax.step import Step
from ubjax.warmup import EnginePrograms, warm_up

SLOTS, N_BATCH, N_UBATCH, N_CELLS = 2, 8, 4, 64
KINDS = ("pow2", "opt:2", "linear:2", "pow2+gap:3")
N_OUTPUTS = BucketLadder((N_UBATCH,))
CONFIG = dataclasses.replace(GROUPED, n_layers=1)
TRACE = synthetic_trace(7, prompt=(10, 0.8, 40), output=(5, 0.6, 12), seed=4)


def kv_ladder(strategy):
    """Unified for simple, a stream for each sequence otherwise."""
    return BucketLadder((32, N_CELLS * (SLOTS if strategy == "simple" else 1)))


def new_engine(strategy, rows):
    """An engine with these ladders."""
    sizes = {"n_ctx": N_CELLS * SLOTS, "kv_pad": N_CELLS, "n_seq_max": SLOTS}
    config = EngineConfig(**sizes, n_batch=N_BATCH, n_ubatch=N_UBATCH, kv_unified=strategy == "simple")
    return Engine(decoder(CONFIG), None, config, rows=rows, n_kv=kv_ladder(strategy), n_outputs=N_OUTPUTS)


def predicted(counts, ladder):
    """How often each program of the step runs, by its name."""
    expected = collections.Counter()
    for kind, times in counts.items():
        n_blocks, n_rows = ladder.pick(kind.n_seqs, kind.n_seq_tokens)
        outputs = pick_outputs(N_OUTPUTS, kind.n_outputs, n_blocks * n_rows)
        bucket = Bucket(n_blocks=n_blocks, n_block_rows=n_rows, n_outputs=outputs)
        expected[shape_name(bucket, (kind.n_kv,))] += times
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["simple", "equal"])
def test_the_engine_compiles_the_predicted_programs_and_none_after_warm_up(strategy):
    traffic = drive(TRACE, slots=SLOTS, n_batch=N_BATCH)
    n_seqs = SLOTS if strategy == "equal" else 1
    shapes = count_shapes(traffic, [N_UBATCH], strategy)[N_UBATCH]
    counts = count_ubatches(traffic, [N_UBATCH], strategy, kv_ladder(strategy))[N_UBATCH]
    known = set()  # engines of one model and cache share their programs, so a ladder needs those that are new
    for kind in KINDS:
        ladder = parse_ladder(kind).build(N_UBATCH, n_seqs, shapes)
        engine, expected = new_engine(strategy, ladder), predicted(counts, ladder)
        with count_compilations() as count:
            run(engine, traffic)
        assert engine.usage.buckets == expected
        compiled = count.functions["step"].compiled if "step" in count.functions else 0
        assert compiled == len(expected.keys() - known)
        assert measure(shapes, ladder)["compilations"] == len({name.split("|")[0] for name in expected})
        report = account_padding(traffic, strategy, ladder, n_kv=kv_ladder(strategy), n_outputs=N_OUTPUTS)
        assert report.programs == len(expected)
        assert report.padded.tokens == engine.usage.rows and report.real.logits == engine.usage.outputs
        warm = {shape_name(*shape) for shape in engine.buckets.shapes()}
        assert expected.keys() <= warm
        engine.warmup()
        engine.clear()
        with forbid_compilations():
            run(engine, traffic)
        known |= warm


@functools.partial(jax.jit, static_argnums=(3, 4))
def cut_by_sequence(cells, batch, n_ubatch, known, max_rows):
    return init_batch(cells, batch, n_ubatch, known, max_rows=max_rows, mode=Mode.of(embd_all=True))


def run_whole_prompts(engine, step, buckets, traffic):
    """Decode whole prompts, every row an output, as the strategy seq cuts them; how often each program ran."""
    ran = collections.Counter()
    for pieces in decodes_of(traffic):
        seq_id = [s for s, n, _, _ in pieces for _ in range(n)]
        tokens, output = np.arange(len(seq_id)), np.ones(len(seq_id), bool)
        batch = Batch.from_arrays(
            tokens, seq_id=seq_id, output=output, config=engine.batch_config, capacity=N_BATCH
        )
        cells = jax.device_put(caches.empty(engine.caches), jax.devices()[0])
        prepared = cut_by_sequence(cells, batch, np.int32(N_UBATCH), engine.caches, N_UBATCH)
        kv = step.new_kv((N_CELLS,))
        for k in range(int(prepared.plan.n_ubatches)):
            n = int(prepared.plan.offset[k + 1] - prepared.plan.offset[k])
            bucket = buckets.ubatch(n_tokens=n, n_seqs=1, n_outputs=n, equal_seqs=True)
            at = (batch, prepared.plan, prepared.slot, np.int32(k))
            cells = advance(cells, *at, engine.caches)
            _, kv = step(kv, stage(cells, *at, prepared.causal, bucket, engine.caches))
            ran[shape_name(bucket, (N_CELLS,))] += 1
    return ran


@pytest.mark.slow
def test_steps_of_whole_prompts_are_the_predicted_ones_and_none_compile_after_warm_up():
    traffic = pack_prompts(TRACE, slots=SLOTS, n_batch=N_BATCH)
    shapes = count_shapes(traffic, [N_UBATCH], "seq")[N_UBATCH]
    n_kv = BucketLadder((N_CELLS,))
    counts = count_ubatches(traffic, [N_UBATCH], "seq", n_kv)[N_UBATCH]
    engine = new_engine("seq", None)
    step = Step(decoder(dataclasses.replace(CONFIG, norm_eps=3e-5)), engine.caches)  # programs of its own
    sizes = {
        "n_batch": N_BATCH,
        "n_ubatch": N_UBATCH,
        "n_streams": 1,
        "n_cells": (N_CELLS,),
        "kv_pad": N_CELLS,
    }
    run_with = functools.partial(run_whole_prompts, engine, step)
    known = set()
    for kind in KINDS:
        ladder = parse_ladder(kind).build(N_UBATCH, 1, shapes)
        buckets, expected = (
            Buckets.default(**sizes, rows=ladder, n_outputs=N_OUTPUTS),
            predicted(counts, ladder),
        )
        with count_compilations() as count:
            assert run_with(buckets, traffic) == expected
        compiled = count.functions["step"].compiled if "step" in count.functions else 0
        assert compiled == len(expected.keys() - known)
        assert measure(shapes, ladder)["compilations"] == len(expected)
        known |= expected.keys()
    assert len(known) == N_UBATCH
    step = Step(decoder(dataclasses.replace(CONFIG, norm_eps=4e-5)), engine.caches)
    programs = EnginePrograms(
        step,
        buckets,
        engine.batch_config,
        engine.caches,
        n_ubatch=N_UBATCH,
        widths=((0, 0),),
        hidden=False,
        kv_dtype="float32",
        control=step.device,
    )
    warm_up([program for program in programs if program.function in ("zeros", "stage", "step")])
    with forbid_compilations():
        assert run_whole_prompts(engine, step, buckets, traffic) == expected
