"""64 prompts of 1 to 600 tokens through 8 sequences and 1,024 cells, on the tiny model."""

import pytest

from tests.generate.engines import clear_until, prompts, same
from tests.tiny import tiny_engine
from ubjax import count_compilations


@pytest.mark.slow
@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("n_ubatch", [32, 256])
def test_64_prompts_equal_their_lone_runs_and_another_64_compile_nothing(n_ubatch, kv_unified):
    engine = tiny_engine(
        n_ctx=1024 if kv_unified else 8 * 1024,
        kv_pad=1024,  # one size of K/V, so that shapes are those of ubatches alone
        n_seq_max=8,
        n_batch=512,
        n_ubatch=n_ubatch,
        kv_unified=kv_unified,
    )
    many = prompts(64, 600)
    together = engine.generate(many, max_tokens=24, logprobs=2)
    alone = [engine.generate(prompt, max_tokens=24, logprobs=2) for prompt in many]
    assert all(same(found, lone) for found, lone in zip(together, alone, strict=True))
    assert sum(clear_until(lone) for lone in alone) > 1000
    # Nothing but max_tokens ends an output here, so lengths alone decide which shapes occur. The rare ones
    # are the last ubatches of a prompt that finds few others beside it: two more runs meet those that are left.
    for seed in (1, 2):
        engine.generate(prompts(64, 600, seed), max_tokens=24, logprobs=2)
    with count_compilations() as count:
        more = engine.generate(prompts(64, 600, seed=3), max_tokens=24, logprobs=2)
    assert count.total == 0, str(count)
    assert more[0].report.n_generated == 64 * 24
