"""Warm-up: afterwards nothing compiles, whatever bucket a decode takes, and each bucket gives the unpadded result."""

import functools
import itertools

import numpy as np
import pytest

from tests.models.helpers import GROUPED, decoder, random_weights
from tests.models.oracle import Reference
from ubjax import BucketLadder, Engine, EngineConfig
from ubjax.analysis import count_compilations, forbid_compilations
from ubjax.buckets import shape_name

N_SEQS, N_CELLS = 2, 12
TOKENS = [np.random.default_rng(s).integers(0, GROUPED.n_vocab, N_CELLS).tolist() for s in range(N_SEQS)]
LADDERS = {"rows": BucketLadder((1, 4)), "n_kv": BucketLadder((5, 12)), "n_outputs": BucketLadder((2, 4))}


def new_engine(kv_unified):
    n_ctx = N_CELLS if kv_unified else N_SEQS * N_CELLS
    sizes = {"n_ctx": n_ctx, "kv_pad": N_CELLS, "n_batch": 8, "n_ubatch": 4, "n_seq_max": N_SEQS}
    return Engine(decoder(GROUPED), None, EngineConfig(**sizes, kv_unified=kv_unified), **LADDERS)


@functools.cache
def warm(kv_unified):
    """An engine after its warm-up, the report, and what the progress callback heard."""
    engine, heard = new_engine(kv_unified), []
    report = engine.warmup(lambda program, i, n: heard.append((program, i, n)))
    return engine, report, heard


@functools.cache
def unpadded():
    """Logits of every position of both sequences, each alone and without a cache."""
    reference = Reference(GROUPED, random_weights(GROUPED))
    return [reference.logits(tokens) for tokens in TOKENS]


def ubatches_of(engine):
    """For each shape the ubatch of least outputs and rows in it: sets, tokens of a set, outputs, cells before them."""
    buckets = engine.buckets
    for bucket, (n_kv,) in buckets.shapes():
        sizes = [x.tolist() for x in buckets.rows.ubatches()]
        for n_outputs, (n_seqs, n_tokens) in itertools.product(range(5), zip(*sizes, strict=True)):
            rows = {"n_tokens": n_seqs * n_tokens, "n_seqs": n_seqs, "n_outputs": n_outputs}
            fits = n_outputs <= n_seqs * n_tokens and n_tokens <= n_kv
            if fits and buckets.ubatch(**rows, equal_seqs=not engine.memory.unified) == bucket:
                yield bucket, (n_kv,), n_seqs, n_tokens, n_outputs, n_kv - n_tokens
                break


@pytest.mark.slow
@pytest.mark.parametrize("kv_unified", [True, False])
def test_every_bucket_gives_the_unpadded_result_and_compiles_nothing(kv_unified):
    engine, _, _ = warm(kv_unified)
    engine.clear()
    taken = set()
    with forbid_compilations():
        for bucket, n_kv, n_seqs, n_tokens, n_outputs, before in ubatches_of(engine):
            engine.clear()
            for start in range(0, before, 8):
                n = min(8, before - start)
                engine.decode(engine.batch(TOKENS[0][start : start + n], output=[False] * n))
            usage = engine.usage.copy()
            first = [before] + [0] * (n_seqs - 1)
            rows = [(s, first[s] + t) for s, t in itertools.product(range(n_seqs), range(n_tokens))]
            outputs = engine.decode(
                engine.batch(
                    [TOKENS[s][p] for s, p in rows],
                    seq_id=[s for s, _ in rows],
                    output=[i >= len(rows) - n_outputs for i in range(len(rows))],
                )
            )
            assert engine.usage.since(usage).buckets == {shape_name(bucket, n_kv): 1}
            for i in range(len(rows) - n_outputs, len(rows)):
                s, p = rows[i]
                np.testing.assert_allclose(outputs.logits(i), unpadded()[s][p], atol=1e-4)
            taken.add((bucket, n_kv))
    assert taken == set(engine.buckets.shapes())


@pytest.mark.slow
@pytest.mark.parametrize("kv_unified", [True, False])
def test_generation_and_sequence_operations_compile_nothing(kv_unified):
    engine, _, _ = warm(kv_unified)
    with count_compilations() as count, forbid_compilations():
        engine.clear()
        prompts = [TOKENS[0][:6], TOKENS[1][:3], TOKENS[0][:2]]  # the third one has to wait for a sequence
        results = engine.generate(prompts, max_tokens=4, n=2 if kv_unified else 1)
        beyond = engine.generate(TOKENS[0][:6], max_tokens=9, context_shift=True)
        full = engine.generate(TOKENS[0][:6], max_tokens=9)
        assert (beyond.finish_reason, full.finish_reason) == ("length", "context")
        engine.decode(engine.batch(TOKENS[0][:3] + TOKENS[1][:2], seq_id=[0] * 3 + [1] * 2))
        engine.rm(0, 2)
        engine.keep(1)
        assert engine.pos_max(1) == 1 and [len(r.tokens) for r in results] == [4, 4, 4]
    assert count.total == 0


@pytest.mark.slow
def test_the_report_lists_every_program_smallest_first():
    engine, report, heard = warm(False)
    assert [(i, n) for _, i, n in heard] == [(i + 1, len(heard)) for i in range(len(heard))]
    assert tuple(program for program, _, _ in heard) == report.programs
    steps = [program.shape for program in report.programs if program.function == "step"]
    assert steps == [shape_name(*shape) for shape in engine.buckets.shapes()]
    assert report.compilations.functions["step"].compiled == len(steps)
    assert report.compilations.total <= len(report.programs)  # other engines share some
    assert all(program.seconds > 0 for program in report.programs) and report.temp_bytes > 0
    lines = str(report).splitlines()
    assert len(lines) == 2 + len(report.programs) and lines[-1] == report.summary
    assert lines[-1].startswith(f"{len(report.programs)} programs in ")
    assert report._repr_html_().count("<tr>") == 1 + len(report.programs)


@pytest.mark.slow
def test_a_second_warm_up_compiles_nothing_and_the_cache_stays():
    engine, report, _ = warm(False)
    engine.clear()
    engine.decode(engine.batch(TOKENS[0][:3]))
    with forbid_compilations():
        again = engine.warmup()
    assert len(again.programs) == len(report.programs) and again.compilations.total == 0
    assert engine.pos_max(0) == 2


@pytest.mark.slow
def test_warm_up_is_for_any_engine_of_these_sizes():
    warm(True)
    with forbid_compilations():
        engine = new_engine(True)
        outputs = engine.decode(engine.batch(TOKENS[0][:3]))
    np.testing.assert_allclose(outputs.logits(-1), unpadded()[0][2], atol=1e-4)


def test_ladders_of_another_size_are_refused_before_anything_runs():
    sizes = EngineConfig(n_ctx=24, kv_pad=12, n_batch=8, n_ubatch=4, n_seq_max=2)
    for ladder in (
        {"rows": BucketLadder((1, 8))},
        {"n_kv": BucketLadder((5,))},
        {"n_outputs": BucketLadder((2,))},
    ):
        with pytest.raises(
            ValueError, match=r"the ladder of .* ends at \d+, .* a ladder up to \d+ is needed"
        ):
            Engine(decoder(GROUPED), None, sizes, **ladder)
