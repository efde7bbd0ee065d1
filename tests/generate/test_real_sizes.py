"""64 prompts of 1 to 600 tokens through 8 sequences and 1,024 cells, on the tiny model."""

import functools

import pytest

from tests.generate.engines import clear_until, prompts, same
from tests.tiny import tiny_engine
from ubjax import count_compilations


@functools.cache
def lone_runs():
    """Each of the 64 prompts by itself, on an engine that has one sequence."""
    engine = tiny_engine(n_ctx=1024, kv_pad=1024, n_batch=512, n_ubatch=256)
    return [engine.generate(prompt, max_tokens=24, logprobs=2) for prompt in prompts(64, 600)]


@pytest.mark.slow
@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("n_ubatch", [32, 256])
def test_64_prompts_equal_their_lone_runs_and_another_64_compile_nothing(n_ubatch, kv_unified):
    engine = tiny_engine(
        n_ctx=1024 if kv_unified else 8 * 1024,
        kv_pad=256,
        n_seq_max=8,
        n_batch=512,
        n_ubatch=n_ubatch,
        kv_unified=kv_unified,
    )
    together = engine.generate(prompts(64, 600), max_tokens=24, logprobs=2)
    with count_compilations() as count:
        more = engine.generate(prompts(64, 600, seed=1), max_tokens=24, logprobs=2)
    assert count.total == 0, str(count)
    assert more[0].report.n_generated == 64 * 24
    assert all(same(found, lone) for found, lone in zip(together, lone_runs(), strict=True))
    assert sum(clear_until(lone) for lone in lone_runs()) > 1000
