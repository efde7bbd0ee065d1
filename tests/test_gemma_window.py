"""Gemma 3 beyond its window: cells are reused, and the results are those of full caches and of no cache at all."""

import functools

import numpy as np
import pytest

from ubjax import Engine, EngineConfig, load_model

N_PROMPT, N_DECODES = 2000, 64


@functools.cache
def model():
    return load_model("gemma3")[0]


def tokens():
    """A prompt and what follows it: any ids will do, repeated now and then so that attention has something to find."""
    rng = np.random.default_rng(5)
    ids = rng.integers(1000, 30000, N_PROMPT + N_DECODES)
    ids[700:900], ids[1500:1700] = ids[100:300], ids[700:900]
    return ids


def logits_of(ids, n_decodes, **sizes):
    """Logits of the last prompt token and of each token decoded after it, [1 + n_decodes, V]; and the engine."""
    engine = Engine(model(), None, EngineConfig(n_ctx=2304, n_batch=2304, **sizes))
    engine.reserve(2304)  # one size of K/V: fewer programs
    n = len(ids) - n_decodes
    output = np.arange(n) >= n - 1
    rows = [engine.decode(engine.batch(ids[:n], output=output)).logits(-1)]
    for token in ids[n:]:
        rows.append(engine.decode(engine.batch([token])).logits(-1))
    return np.stack(rows), engine


@pytest.mark.slow
def test_reused_window_cells_change_no_result():
    ids = tokens()
    found, engine = logits_of(ids, N_DECODES, n_ubatch=128)
    full, window = engine.caches
    assert (full.n_cells, window.n_cells) == (2304, 768)  # 512 + 128 rounded up
    assert (
        engine.pos_max(0) == len(ids) - 1 and engine.pos_min(0) > len(ids) - 1 - window.n_cells
    )  # cells were reused
    whole, engine = logits_of(ids, N_DECODES, n_ubatch=128, swa_full=True)
    assert engine.caches[1].n_cells == 2304 and engine.pos_min(0) == 0
    np.testing.assert_allclose(found, whole, atol=2e-3)
    # Dense: all tokens in one ubatch, so nothing is read back that was not computed in the same step.
    engine = Engine(model(), None, EngineConfig(n_ctx=2304, n_batch=2304, n_ubatch=2304, swa_full=True))
    engine.reserve(2304)
    outputs = engine.decode(engine.batch(ids, output=np.arange(len(ids)) >= N_PROMPT - 1))
    dense = np.stack([outputs.logits(i) for i in range(N_PROMPT - 1, len(ids))])
    np.testing.assert_allclose(found, dense, atol=2e-3)
    assert (found.argmax(axis=1) == dense.argmax(axis=1)).all()
