"""Outputs that fill their context and go on: the tokens are those of the same removals and shifts made by hand."""

import numpy as np
import pytest

from tests.tiny import tiny_engine
from ubjax import Sampling
from ubjax.memory import context_shift

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def by_hand(n_tokens, n_keep, **sizes):
    """Greedy tokens of a loop over decode, rm and add."""
    engine = tiny_engine(**sizes)
    logits, n, tokens = engine.decode(engine.batch(PROMPT)).logits(-1), len(PROMPT), []
    for _ in range(n_tokens):
        tokens.append(int(np.argmax(logits)))
        if n == engine.memory.n_cells:
            (p0, p1), delta = context_shift(n, n_keep, 1, n)
            engine.rm(0, p0, p1)
            engine.add(0, p1, -1, delta)
            n += delta
        logits, n = engine.decode(engine.batch([tokens[-1]])).logits(-1), n + 1
    return tokens


@pytest.mark.parametrize("n_keep", [0, 3, 8])
def test_an_output_goes_on_beyond_the_context(n_keep):
    engine = tiny_engine(n_ctx=16)
    found = engine.generate(PROMPT, max_tokens=40, context_shift=True, n_keep=n_keep)
    assert found.finish_reason == "length" and len(found.tokens) == 40
    assert found.tokens == by_hand(40, n_keep, n_ctx=16)
    assert engine.generate(PROMPT, max_tokens=40).finish_reason == "context"


def test_what_can_not_be_shifted_ends_as_ever_or_waits():
    engine = tiny_engine(n_ctx=16)
    assert engine.generate(PROMPT, max_tokens=40, context_shift=True, n_keep=16).finish_reason == "context"
    shared = tiny_engine(n_ctx=16, n_seq_max=2, kv_unified=True)
    found = shared.generate(PROMPT, max_tokens=40, context_shift=True, n=2)
    # The second output was put back; alone, each shares no cells and can be shifted.
    assert [(len(g.tokens), g.finish_reason) for g in (found, *found.others)] == [(40, "length")] * 2
    assert shared.n_free_cells() == 16
    with pytest.raises(ValueError, match="n_keep is -1, at least 0 is needed"):
        engine.generate(PROMPT, context_shift=True, n_keep=-1)
    with pytest.raises(ValueError, match=r"the prompt has 20 tokens, the context holds 16"):
        engine.generate(list(range(20)), context_shift=True)


def test_draws_do_not_repeat_after_a_shift():
    """The key of a draw counts all tokens, so that a position that comes again draws anew."""
    engine = tiny_engine(n_ctx=16)
    hot = Sampling(temperature=50.0, seed=4)  # nearly uniform: equal keys would give equal tokens
    tokens = engine.generate(PROMPT, max_tokens=60, context_shift=True, sampling=hot).tokens
    late = tokens[9:]
    assert all(late[i : i + 8] != late[i + 8 : i + 16] for i in range(0, 32, 8))


def test_what_was_shifted_is_not_kept_for_other_prompts():
    """Its keys and values are not those that its tokens give from scratch."""
    engine = tiny_engine(n_ctx=16, prefix_cache=True)
    engine.generate(PROMPT, max_tokens=12, context_shift=True)
    assert engine.kept() == {} and engine.pos_max(0) == -1
    engine.generate(PROMPT, max_tokens=3, context_shift=True)
    assert list(engine.kept()) == [0]


def test_tokens_that_were_dropped_count_for_the_penalties_of_an_output_that_was_put_back():
    engine = tiny_engine(n_ctx=16, n_seq_max=1)
    with engine.stream(PROMPT, max_tokens=30, context_shift=True, steps_per_dispatch=1) as pieces:
        for _, piece in zip(range(12), pieces, strict=False):
            assert piece.tokens
        loop = vars(pieces)["_loop"]
        (run,) = loop.schedule.running
        assert run.n_dropped
        engine.rm(loop.schedule.end(run))
        run.cached = 0
        loop.schedule.waiting.append(run)
        started = []
        loop._sampler.start = lambda *given: started.append(given[-1])
        loop._admit()
    assert len(started[0]) == len(PROMPT) + 12 and started[0][: len(PROMPT)] == PROMPT
