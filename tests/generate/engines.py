"""Engines of few programs that several tests share, prompts for them, and how outputs are compared."""

import functools

import numpy as np

from tests.tiny import CONFIG, Letters, tiny_engine
from ubjax import Engine
from ubjax.generate import Generation

MARGIN = 1e-3  # of the two best logits; where they are closer, other sums may decide otherwise


@functools.cache
def shared() -> Engine:
    """96 cells for 4 sequences."""
    return tiny_engine(Letters(), n_ctx=96, kv_pad=96, n_seq_max=4, n_batch=8, n_ubatch=4, kv_unified=True)


@functools.cache
def streams() -> Engine:
    """48 cells for each of 4 sequences."""
    return tiny_engine(Letters(), n_ctx=192, kv_pad=48, n_seq_max=4, n_batch=8, n_ubatch=4)


def prompts(n: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens, none of which ends a generation."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, CONFIG.n_vocab, k).tolist() for k in rng.integers(1, longest + 1, n)]


def clear_until(alone: Generation) -> int:
    """How many of the tokens, from the first, are clear by more than the margin (needs two logprobs)."""
    for i, token in enumerate(alone.logprobs or ()):
        (_, first), (_, second) = token.top[:2]
        if first - second <= MARGIN:
            return i
    return len(alone.tokens)


def same(found: Generation, alone: Generation) -> bool:
    """Whether an output equals the lone run as far as that is clear, log-probabilities included; whole when all is."""
    n = clear_until(alone)
    whole = n < len(alone.tokens) or (found.finish_reason, found.text) == (alone.finish_reason, alone.text)
    ours, theirs = ([x.logprob for x in (it.logprobs or ())[:n]] for it in (found, alone))
    return found.tokens[:n] == alone.tokens[:n] and np.allclose(ours, theirs, rtol=0, atol=MARGIN) and whole
