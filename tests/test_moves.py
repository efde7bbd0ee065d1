"""K and V follow shifts and stream copies: what is decoded afterwards equals a cache computed afresh.

A model of one layer: its K and V depend on a token and its position alone, so "afresh" is exact.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG, state, unchanged
from ubjax import Engine, EngineConfig
from ubjax.models.decoder import Decoder
from ubjax.status import DecodeError

ONE_LAYER = dataclasses.replace(CONFIG, n_layers=1)


@functools.cache
def model(config=ONE_LAYER):
    return Decoder(config, rngs=nnx.Rngs(0))


def engine_of(config=ONE_LAYER, **sizes):
    return Engine(
        model(config),
        None,
        EngineConfig(**{"n_ctx": 64, "n_batch": 16, "kv_pad": 16, "n_seq_max": 4, **sizes}),
    )


def put(engine, seq, tokens, pos=None):
    """Decode tokens of a sequence; the logits of the last."""
    pos = None if pos is None else np.asarray(pos)
    batch = engine.batch(tokens, seq_id=[seq] * len(tokens), **({} if pos is None else {"pos": pos}))
    return np.asarray(engine.decode(batch).logits(-1))


def afresh(config, contents, token, **sizes):
    """Logits of a token after a sequence with these (token, position) pairs, in a new engine that never shifted."""
    engine = engine_of(config, **sizes)
    put(engine, 0, [t for t, _ in contents], [p for _, p in contents])
    return put(engine, 0, [token])


KINDS = {"unified": {"kv_unified": True}, "streams": {"kv_unified": False, "n_ctx": 128}}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_two_shifts_before_a_decode_add_up(kind):
    engine = engine_of(**kind)
    for seq in (0, 2):  # every stream follows, not only the first
        put(engine, seq, range(1, 11))
        engine.rm(seq, 2, 5)
        engine.add(seq, 5, -1, -2)
        engine.add(seq, 3, -1, -1)
    contents = [(t, i) for i, t in enumerate([1, 2, 6, 7, 8, 9, 10])]
    want = afresh(ONE_LAYER, contents, 11, **kind)
    for seq in (0, 2):
        np.testing.assert_allclose(put(engine, seq, [11]), want, atol=1e-5)


def test_a_shift_up_frees_nothing_and_is_followed():
    engine = engine_of(kv_unified=True)
    put(engine, 0, [1, 2, 3])
    engine.add(0, 0, -1, 7)
    assert (engine.pos_min(0), engine.pos_max(0)) == (7, 9)
    np.testing.assert_allclose(
        put(engine, 0, [4]), afresh(ONE_LAYER, [(1, 7), (2, 8), (3, 9)], 4, kv_unified=True), atol=1e-5
    )


def test_division_turns_keys_the_right_way():
    engine = engine_of(kv_unified=True)
    put(engine, 0, range(1, 9))
    engine.add(0, 4, -1, 1)
    engine.div(0, 0, -1, 2)
    contents = [(t, p // 2) for t, p in zip(range(1, 9), [0, 1, 2, 3, 5, 6, 7, 8], strict=True)]
    np.testing.assert_allclose(
        put(engine, 0, [9]), afresh(ONE_LAYER, contents, 9, kv_unified=True), atol=1e-5
    )


def test_positions_below_zero_are_dropped():
    engine = engine_of(kv_unified=True)
    put(engine, 0, range(1, 7))
    engine.add(0, 0, -1, -2)
    assert (engine.pos_min(0), engine.pos_max(0), engine.n_free_cells()) == (0, 3, 60)
    contents = [(t, i) for i, t in enumerate([3, 4, 5, 6])]
    np.testing.assert_allclose(
        put(engine, 0, [7]), afresh(ONE_LAYER, contents, 7, kv_unified=True), atol=1e-5
    )


def test_owners_of_a_cell_move_together():
    engine = engine_of(kv_unified=True)
    put(engine, 0, range(1, 6))
    engine.cp(0, 1)
    before = state(engine)
    with pytest.raises(
        ValueError, match=r"sequence 0 can't be moved by 3: sequence 1 shares some of their cells"
    ):
        engine.add(0, 2, -1, 3)
    with pytest.raises(ValueError, match="can't be divided by 2: sequence 0 shares"):
        engine.div([1], 0, -1, 2)
    assert unchanged(engine, before)
    engine.add([0, 1], 0, -1, 3)
    want = afresh(ONE_LAYER, [(t, t + 2) for t in range(1, 6)], 6, kv_unified=True)
    for seq in (0, 1):
        np.testing.assert_allclose(put(engine, seq, [6]), want, atol=1e-5)


def test_stream_copies_follow_in_order():
    kind = KINDS["streams"]
    engine = engine_of(**kind)
    put(engine, 0, [1, 2, 3])
    put(engine, 2, [7, 8])
    engine.cp(0, 1)
    engine.cp(1, 3)  # of rows that are themselves still to be copied
    engine.cp(2, 0)
    engine.cp(1, 2)  # 0 and 2 have changed places
    one, two = (
        afresh(ONE_LAYER, [(1, 0), (2, 1), (3, 2)], 9, **kind),
        afresh(ONE_LAYER, [(7, 0), (8, 1)], 9, **kind),
    )
    for seq, want in ((3, one), (1, one), (0, two), (2, one)):
        np.testing.assert_allclose(put(engine, seq, [9]), want, atol=1e-5)


def test_a_copy_with_a_pending_shift_is_copied_then_rotated():
    kind = KINDS["streams"]
    engine = engine_of(**kind)
    put(engine, 0, range(1, 6))
    engine.rm(0, 0, 2)
    engine.add(0, 2, -1, -2)
    engine.cp(0, 3)
    want = afresh(ONE_LAYER, [(3, 0), (4, 1), (5, 2)], 6, **kind)
    for seq in (3, 0):
        np.testing.assert_allclose(put(engine, seq, [6]), want, atol=1e-5)


def test_a_decode_that_fails_leaves_updates_pending():
    engine = engine_of(kv_unified=True, n_ctx=16, n_batch=16)
    put(engine, 0, range(1, 11))
    engine.rm(0, 0, 3)
    engine.add(0, 3, -1, -3)
    before = state(engine)
    for tokens, pos in (([11], [9]), (range(1, 12), None)):  # a hole; no room for 11
        with pytest.raises(ValueError):
            put(engine, 0, tokens, pos)
    assert unchanged(engine, before)
    contents = [(t, i) for i, t in enumerate(range(4, 11))]
    want = afresh(ONE_LAYER, contents, 11, kv_unified=True, n_ctx=16)
    np.testing.assert_allclose(put(engine, 0, [11]), want, atol=1e-5)


class Failing:
    """A step whose update program fails, before or after it has taken over K/V."""

    def __init__(self, step, after, error=RuntimeError):
        self.step, self.after, self.error = step, after, error

    def __getattr__(self, name):
        return getattr(self.step, name)

    def update(self, kv, *_):
        if self.after:
            jax.tree.map(lambda leaf: leaf.delete(), kv)
        raise self.error("out of memory")


@pytest.mark.parametrize("lost", [False, True])
def test_a_failed_update_leaves_all_or_clears_all(lost):
    engine = engine_of(kv_unified=True)
    put(engine, 0, [1, 2, 3])
    engine.add(0, 0, -1, 2)
    before, step = state(engine), vars(engine)["_step"]
    engine._step = Failing(step, lost)
    with pytest.raises(DecodeError) as caught:
        put(engine, 0, [4])
    assert caught.value.result == (-3 if lost else 2)
    engine._step = step
    if lost:
        assert engine.pos_max(0) == -1
        np.testing.assert_allclose(put(engine, 0, [4]), put(engine_of(kv_unified=True), 0, [4]), atol=1e-6)
    else:
        assert unchanged(engine, before)
        want = afresh(ONE_LAYER, [(1, 2), (2, 3), (3, 4)], 4, kv_unified=True)
        np.testing.assert_allclose(put(engine, 0, [4]), want, atol=1e-5)


def test_an_interrupted_update_clears_what_is_lost():
    engine = engine_of(kv_unified=True)
    put(engine, 0, [1, 2, 3])
    engine.add(0, 0, -1, 2)
    step = vars(engine)["_step"]
    engine._step = Failing(step, True, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        put(engine, 0, [4])
    engine._step = step
    assert engine.pos_max(0) == -1
    np.testing.assert_allclose(put(engine, 0, [4]), put(engine_of(kv_unified=True), 0, [4]), atol=1e-6)


def test_positions_of_other_sequences_bound_no_move():
    engine = engine_of(kv_unified=True)
    put(engine, 0, [1, 2])
    engine.cp(0, 1)
    engine.rm(1, 0, 1)
    engine.rm(0, 1, 2)
    engine.add(1, 0, -1, 2**30 - 1)
    engine.add(0, 0, -1, 3)
    assert (engine.pos_max(0), engine.pos_max(1)) == (3, 2**30)
    with pytest.raises(ValueError, match=f"positions up to {2**30} are possible"):
        engine.add([0, 1], 0, -1, 1)
