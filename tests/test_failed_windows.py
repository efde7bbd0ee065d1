"""Decodes that fail part way with a full and a window cache.

Afterwards both hold, byte for byte, what an engine holds that never saw the failed ubatch, and go on.
"""

import numpy as np
import pytest

from tests.saving.helpers import delete, engine_of, goes_on, put, text
from ubjax.status import DecodeError

LONG = text(20)  # the window cache has begun to use its cells again


class Fails:
    """A step that fails at ubatch k: before its program starts, with K/V of one cache taken over, or only later."""

    def __init__(self, step, k, how):
        self.step, self.left, self.how = step, k, how

    def __getattr__(self, name):
        return getattr(self.step, name)

    def __call__(self, kv, staged):
        self.left -= 1
        if self.left >= 0:
            return self.step(kv, staged)
        if self.how == "late":
            logits, kv = self.step(kv, staged)
            logits.delete()  # whoever waits for them hears of it
            return logits, kv
        if self.how == "lost":
            delete(kv[1])
        raise RuntimeError("out of memory")


def failing(engine, k, how, tokens, seq_id) -> DecodeError:
    step = vars(engine)["_step"]
    engine._step = Fails(step, k, how)
    with pytest.raises(DecodeError) as caught:
        engine.decode(engine.batch(tokens, seq_id=seq_id))
    engine._step = step
    return caught.value


@pytest.fixture(scope="module", params=["window", "window streams"])
def engines(request):
    """Two of a kind."""
    return engine_of(request.param), engine_of(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 1])
def test_earlier_ubatches_stay_and_the_failed_one_never_was(engines, k):
    """n_ubatch 4, 8 tokens of two sequences, with a shift that is owed: carried out, whatever fails later."""
    failed, plain = engines
    for engine in engines:
        engine.clear()
        put(engine, 0, LONG)
        put(engine, 1, text(5, seed=1))
        engine.shift(1, 0, 2)
    tokens, seq_id = text(8, seed=2), [0, 1] * 4
    error = failing(failed, k, "before", tokens, seq_id)
    assert error.result == 2
    assert str(error) == (
        "the step of a ubatch failed: its sequences were cut back to where they were before it"
    )
    if k:  # the ubatches are [0 1 0 1] [0 1 0 1], with streams [0 0 1 1] [0 0 1 1]
        plain.decode(plain.batch(tokens[:4], seq_id=seq_id[:4]))
    assert [failed.pos_max(s) for s in range(4)] == [plain.pos_max(s) for s in range(4)]
    assert failed.pos_max(0) == 19 + 2 * k and failed.pos_min(0) > 0
    assert all(failed.can_resume(s, failed.pos_max(s) + 1) for s in (0, 1))
    for seq in (0, 1, None):
        assert failed.get_state(seq) == plain.get_state(seq)
    for seq in (0, 1):
        goes_on(failed, seq, plain, seq, n=2)


@pytest.mark.parametrize("how", ["lost", "late"])
def test_what_can_not_be_trusted_is_dropped_in_both_caches(engines, how):
    """K/V of the window cache alone is gone, or the failure shows when ubatch 1 was already planned."""
    failed, plain = engines
    for engine in engines:
        engine.clear()
    put(failed, 0, text(3))
    error = failing(failed, 1, how, text(8, seed=2), [1] * 8)
    assert error.result == -3
    assert str(error) == "the step failed after it had taken over the K/V buffers: the cache was cleared"
    assert [failed.pos_max(s) for s in range(4)] == [-1] * 4
    assert [cache.used for cache in failed.memory_report().caches] == [0, 0]
    for engine in engines:
        put(engine, 1, text(4))
    assert failed.get_state() == plain.get_state()
    np.testing.assert_allclose(put(failed, 1, [7]), put(plain, 1, [7]), rtol=0, atol=1e-6)


def test_a_split_that_leaves_tokens_over_changes_nothing():
    engine = engine_of("window streams")
    engine.decode(engine.batch([1, 2], seq_id=[0, 1]))
    before = engine.get_state()
    with pytest.raises(DecodeError, match=r"can't be cut this way \(token 0 was left over\)") as caught:
        engine.decode(engine.batch([3, 4], seq_id=[[0], [0, 1]], pos=np.array([1, 1])))
    assert caught.value.result == -2 and engine.get_state() == before
