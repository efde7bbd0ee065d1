"""After a warm-up 200 requests of all kinds compile nothing: they join, leave, stop, are cancelled, wait for cells."""

import numpy as np
import pytest

from tests.tiny import CONFIG, Letters, tiny_engine
from ubjax import Sampling
from ubjax.analysis import forbid_compilations

N_REQUESTS, BATCH = 200, 20


def mixed(seed):
    """Prompts with a sampling of its own for each, and options of all."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(1, CONFIG.n_vocab, n).tolist() for n in rng.integers(1, 24, BATCH)]
    sampling = [
        Sampling(
            temperature=float(rng.choice([0.0, 0.8, 5.0])),
            top_k=int(rng.choice([0, 5])),
            top_p=float(rng.choice([0.7, 1.0])),
            repeat_penalty=float(rng.choice([1.0, 1.3])),
            seed=int(rng.integers(1 << 31)),
            logit_bias={3: -2.0} if rng.random() < 0.3 else {},
            allowed=range(30) if rng.random() < 0.2 else None,
        )
        for _ in range(BATCH)
    ]
    options = {
        "max_tokens": int(rng.integers(1, 40)),
        "stop": [(), "e", ("ab", "q")][seed % 3],
        "stop_tokens": [7, 8] if seed % 2 else [],
        "context_shift": seed % 4 == 3,
        "steps_per_dispatch": [None, 3, 32][seed % 3],
        "logprobs": [None, 0][seed % 2],
        "n": 2 if seed % 5 == 4 else 1,
    }
    return prompts, sampling, options


@pytest.mark.slow
@pytest.mark.parametrize("kv_unified", [True, False])
def test_200_mixed_requests_compile_nothing(kv_unified):
    n_ctx, n_cells = (48, 48) if kv_unified else (4 * 32, 32)
    sizes = {"n_ctx": n_ctx, "kv_pad": n_cells, "n_seq_max": 4, "n_batch": 8, "n_ubatch": 4}
    engine = tiny_engine(Letters(), **sizes, kv_unified=kv_unified, prefix_cache=kv_unified)
    engine.warmup()
    reasons, n_preempted, n_waited = set(), 0, 0
    with forbid_compilations():
        for seed in range(N_REQUESTS // BATCH):
            prompts, sampling, options = mixed(seed)
            with engine.stream(prompts, sampling=sampling, **options) as pieces:
                for i, piece in enumerate(pieces):
                    n_waited += i == 0 and piece.index < BATCH - 1
                    if i == 25:
                        pieces.cancel(BATCH - 1)
                        pieces.cancel(piece.index)
                results = [output for result in pieces.results for output in (result, *result.others)]
            reasons |= {output.finish_reason for output in results}
            n_preempted += pieces.report.n_preempted
    assert {"stop", "length", "cancelled"} <= reasons and n_waited == N_REQUESTS // BATCH
    assert n_preempted > 0 or not kv_unified
    for seq in engine.kept():
        engine.rm(seq)
    assert engine.n_free_cells() == n_ctx
