"""SmolLM2: prompts of a few words that share a cache are continued as they are alone."""

import pytest

from tests.generate.engines import clear_until, same
from ubjax import Engine, EngineConfig, count_compilations, load_model

TEXTS = ["The capital of France is", "1 2 3 4 5 6", "def main():\n    ", "Water boils at", "Once upon a time"]


@pytest.mark.slow
def test_prompts_in_company_equal_their_lone_runs_and_others_compile_nothing():
    engine = Engine(
        *load_model("smollm2"), EngineConfig(n_ctx=256, n_seq_max=2, n_ubatch=16, kv_unified=True)
    )
    together = engine.generate(TEXTS, max_tokens=8, logprobs=2)
    assert together[0].text.startswith(" Paris")
    with count_compilations() as count:
        engine.generate(TEXTS[::-1], max_tokens=8, logprobs=2)
        alone = [engine.generate(text, max_tokens=8, logprobs=2) for text in TEXTS]
    assert count.total == 0, str(count)
    assert all(same(found, lone) for found, lone in zip(together, alone, strict=True))
    assert sum(clear_until(lone) for lone in alone) > 30
