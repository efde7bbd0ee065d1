"""Kept sequences: prompts start from what begins alike, results are as from scratch, cells are given up when needed."""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG, state, tiny_engine, tiny_model, unchanged
from ubjax import Engine, EngineConfig
from ubjax.config import SwaType
from ubjax.models.decoder import Decoder
from ubjax.status import NoSlotError

KINDS = {"unified": {"kv_unified": True}, "streams": {"kv_unified": False, "n_ctx": 192}}


def put(engine, seq, ids, start=0):
    """Decode the ids of a sequence from `start` on; the logits of the last."""
    batch = engine.batch(ids[start:], seq_id=[seq] * (len(ids) - start))
    return np.asarray(engine.decode(batch).logits(-1))


def scratch(ids, kind, engine=tiny_engine):
    return put(engine(n_seq_max=3, **kind), 0, ids)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_prompt_starts_from_what_begins_most_alike(kind):
    engine = tiny_engine(n_seq_max=3, **kind)
    put(engine, 0, [5, 6, 7, 8, 9])
    put(engine, 1, [5, 6, 1, 2])
    engine.keep_prefix(0, [5, 6, 7, 8, 9])
    engine.keep_prefix(1, [5, 6, 1, 2])
    assert list(engine.kept()) == [0, 1] and engine.free_sequences() == [0, 1, 2]
    # part of sequence 0, so its cells are copied: it stays whole
    ids = [5, 6, 7, 3, 3]
    assert engine.claim([1, 2], ids) == (2, 3)
    assert list(engine.kept()) == [0, 1]
    np.testing.assert_allclose(put(engine, 2, ids, 3), scratch(ids, kind), atol=1e-5)
    # all of sequence 1: it goes on itself
    ids = [5, 6, 1, 2, 8]
    assert engine.claim([0, 1], ids) == (1, 4)
    assert list(engine.kept()) == [0]
    np.testing.assert_allclose(put(engine, 1, ids, 4), scratch(ids, kind), atol=1e-5)
    # no other is empty: sequence 0 itself, cut back; the last token is always left
    assert engine.claim([0], [5, 6, 7, 8, 9]) == (0, 4)
    assert engine.kept() == {}
    np.testing.assert_allclose(put(engine, 0, [5, 6, 7, 8, 9], 4), scratch([5, 6, 7, 8, 9], kind), atol=1e-5)


def test_without_anything_alike_an_empty_sequence_then_the_oldest():
    engine = tiny_engine(n_seq_max=2, kv_unified=True)
    put(engine, 1, [5, 6, 7])
    engine.keep_prefix(1, [5, 6, 7])
    assert engine.claim([0, 1], [9, 9]) == (0, 0)
    put(engine, 0, [9, 9])
    assert engine.claim([1], [8, 8]) == (1, 0) and engine.kept() == {} and engine.pos_max(1) == -1


def test_kept_cells_count_as_free_and_are_given_up_oldest_first():
    engine = tiny_engine(n_ctx=16, n_seq_max=4, kv_unified=True)
    for seq in (2, 0, 1):
        put(engine, seq, [seq, 1, 2, 3])
        engine.keep_prefix(seq, [seq, 1, 2, 3])
    assert engine.n_free_cells() == 16
    put(engine, 3, list(range(1, 7)))  # 4 cells are empty
    assert list(engine.kept()) == [0, 1] and engine.pos_max(2) == -1 and engine.n_free_cells() == 10


def test_a_decode_that_can_not_fit_gives_up_nothing():
    engine = tiny_engine(n_ctx=16, n_seq_max=4, kv_unified=True)
    put(engine, 0, [1, 2, 3])
    put(engine, 1, list(range(8)))
    engine.keep_prefix(1, list(range(8)))
    before = state(engine)
    with pytest.raises(NoSlotError):
        put(engine, 2, list(range(14)))
    assert unchanged(engine, before) and list(engine.kept()) == [1]


def test_a_decode_gives_up_other_kept_sequences_than_its_own():
    engine = tiny_engine(n_ctx=16, n_seq_max=4, kv_unified=True)
    for seq in (0, 1):
        put(engine, seq, [seq, 1, 2, 3])
        engine.keep_prefix(seq, [seq, 1, 2, 3])
    before = state(engine)
    with pytest.raises(NoSlotError, match="the first 12 of its 13 tokens fit now") as caught:
        put(engine, 0, list(range(17)), 4)
    assert caught.value.fits == 12 and unchanged(engine, before) and list(engine.kept()) == [0, 1]
    ids = [0, 1, 2, 3, *range(9)]
    found = put(engine, 0, ids, 4)  # 8 cells are empty, sequence 0 is the oldest
    np.testing.assert_allclose(found, put(tiny_engine(n_ctx=16, kv_unified=True), 0, ids), atol=1e-5)
    assert engine.kept() == {} and (engine.pos_max(0), engine.pos_max(1)) == (12, -1)


def test_what_is_changed_by_hand_is_kept_no_longer():
    def kept_after(act):
        engine = tiny_engine(n_seq_max=3, kv_unified=True)
        for seq in (0, 1):
            put(engine, seq, [4, 5, 6])
            engine.keep_prefix(seq, [4, 5, 6])
        act(engine)
        return list(engine.kept())

    assert kept_after(lambda e: put(e, 0, [7])) == [1]
    assert kept_after(lambda e: e.rm(0, 1)) == [1]
    assert kept_after(lambda e: e.cp(1, 0)) == [1]
    assert kept_after(lambda e: e.add([0], 0, -1, 2)) == [1]
    assert kept_after(lambda e: e.div(1, 0, -1, 2)) == [0]
    assert kept_after(lambda e: e.keep(1)) == [1]
    assert kept_after(lambda e: e.rm(-1)) == kept_after(lambda e: e.clear()) == []
    assert kept_after(lambda e: e.cp(0, 2)) == [0, 1]


def test_only_what_a_sequence_holds_can_be_kept():
    engine = tiny_engine(n_seq_max=2)
    put(engine, 0, [1, 2, 3])
    for ids in ([], [1, 2], [1, 2, 3, 4]):
        with pytest.raises(ValueError, match=rf"sequence 0 holds positions 0 to 2: for {len(ids)} tokens"):
            engine.keep_prefix(0, ids)
    with pytest.raises(ValueError, match="sequence 1 holds positions -1 to -1"):
        engine.keep_prefix(1, [1])
    with pytest.raises(ValueError, match=r"token 1 is 2\.5, an integer is needed"):
        engine.keep_prefix(0, [1, 2.5, 3])
    engine.rm(0, 1, 2)
    with pytest.raises(ValueError, match="to hold 0 to 2, each in one cell"):
        engine.keep_prefix(0, [1, 2, 3])


@functools.cache
def windowed():
    config = dataclasses.replace(CONFIG, n_swa=4, swa_type=SwaType.STANDARD, swa_layers=(True, False))
    return Decoder(config, rngs=nnx.Rngs(0))


def windowed_engine(**sizes):
    return Engine(windowed(), None, EngineConfig(**{"n_ctx": 64, "kv_pad": 16, "n_ubatch": 4, **sizes}))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_window_is_resumed_only_where_it_still_holds_what_is_seen(kind):
    engine = windowed_engine(n_seq_max=3, **kind)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 60, 40)]
    put(engine, 0, ids)
    engine.keep_prefix(0, ids)
    low = engine.pos_min(0)
    assert low > 4  # cells were reused
    assert engine.claim([1, 2], [*ids[:low], 3, 3])[1] == 0
    longer = [*ids[: low + 5], 1, 2]
    seq, n = engine.claim([1, 2], longer)
    assert n == low + 5
    want = scratch(longer, kind, windowed_engine)
    np.testing.assert_allclose(put(engine, seq, longer, n), want, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_generations_reuse_prefixes_and_stay_the_same(kind):
    plain = tiny_engine(n_seq_max=3, **kind)
    engine = Engine(
        tiny_model(),
        None,
        EngineConfig(
            n_ctx=kind.get("n_ctx", 64),
            kv_pad=16,
            n_seq_max=3,
            kv_unified=kind["kv_unified"],
            prefix_cache=True,
        ),
    )
    system = [7, 3, 9, 4, 1, 1, 2]
    turns = [[*system, k, k + 1] for k in range(5)]
    for prompts in (turns[:3], turns[3:], turns):
        found = engine.generate(prompts, max_tokens=6)
        want = plain.generate(prompts, max_tokens=6)
        assert [g.tokens for g in found] == [g.tokens for g in want]
    # in the last call all but what differs at the end was there
    assert found[0].report.n_prompt < want[0].report.n_prompt
    assert engine.kept() and plain.n_free_cells() == engine.n_free_cells()
    last = found[-1]
    again = engine.generate([*last.prompt_tokens, *last.tokens, 5], max_tokens=3)
    assert again.tokens == plain.generate([*last.prompt_tokens, *last.tokens, 5], max_tokens=3).tokens
    assert again.report.n_prompt <= 2  # the conversation went on


def test_outputs_of_a_prompt_beyond_the_window_come_to_an_end():
    """What they share they take over from one another, and each has a window of its own behind that."""
    ids = [int(i) for i in np.random.default_rng(1).integers(1, 60, 20)]
    engine = windowed_engine(n_seq_max=2, kv_unified=True)
    alone = engine.generate(ids, max_tokens=8)
    both = engine.generate(ids, max_tokens=8, n=2)
    assert [both.tokens, both.others[0].tokens] == [alone.tokens] * 2
    assert engine.n_free_cells() == 64
