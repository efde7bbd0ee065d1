"""48 tokens of real models in loops equal those of single steps, greedy and drawn, for 1, 4 and 16 sequences."""

import functools

import pytest

from tests.generate.engines import clear_until
from ubjax import Engine, EngineConfig, Sampling, load_model

N_TOKENS = 48
TEXTS = [
    "The capital of France is",
    "Once upon a time there was",
    "def fibonacci(n):",
    "Water boils at a temperature of",
]


@functools.cache
def model_of(name):
    return load_model(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_tokens_of_loops_equal_those_of_single_steps(name, rows):
    """One size of K/V, so that both attend the same cells; every other sequence is drawn."""
    n_ctx = 64 * rows
    engine = Engine(
        *model_of(name), EngineConfig(n_ctx=n_ctx, kv_pad=n_ctx, n_seq_max=rows, n_ubatch=16, kv_unified=True)
    )
    prompts = [TEXTS[i % len(TEXTS)] for i in range(rows)]
    sampling = [Sampling(temperature=0.8 * (i // len(TEXTS) % 2), top_k=50, seed=i) for i in range(rows)]
    options = {"sampling": sampling, "max_tokens": N_TOKENS}
    single = engine.generate(
        prompts, **options, logprobs=2
    )  # log-probabilities of other tokens take single steps
    looped = engine.generate(prompts, **options, logprobs=0)
    assert (
        looped[0].report.usage.decodes < single[0].report.usage.decodes - N_TOKENS // 2
    )  # many steps a dispatch
    n_equal = 0
    for ours, theirs in zip(looped, single, strict=True):
        n = clear_until(theirs)
        assert ours.tokens[:n] == theirs.tokens[:n]
        n_equal += n
    assert n_equal >= rows * N_TOKENS // 2  # most tokens are clear
