"""Kept sequences make way: for moves of cells that they share, for removals from every sequence, for claims."""

import numpy as np
import pytest

from tests.test_prefixes import KINDS, put, windowed_engine
from tests.tiny import state, tiny_engine, unchanged

MOVES = {
    "add": (lambda e: e.add(0, 1, -1, 3), [0, 4, 5]),
    "div": (lambda e: e.div(iter([0]), 0, -1, 2), [0, 0, 1]),
    "shift": (lambda e: e.shift(0, 0, 1), [0, 1]),
}


@pytest.mark.parametrize("name", MOVES)
def test_kept_owners_make_way_for_moves(name):
    """Sequence 0 shares its cells with kept ones (1: all, 2: the first) and one that is kept elsewhere stays."""
    act, positions = MOVES[name]
    engine = tiny_engine(n_seq_max=5, kv_unified=True)
    put(engine, 0, [4, 5, 6])
    put(engine, 3, [7, 8])
    engine.keep_prefix(3, [7, 8])
    for seq, n in ((1, 3), (2, 1)):
        engine.cp(0, seq, 0, n)
        engine.keep_prefix(seq, [4, 5, 6][:n])
    before = state(engine)
    engine.cp(0, 4)  # an owner that is not kept: refused, and the kept ones are still there
    with pytest.raises(ValueError, match="sequence 4 shares some of their cells"):
        act(engine)
    engine.rm(4)
    assert list(engine.kept()) == [3, 1, 2]
    assert all(np.array_equal(a, b) for a, b in zip(state(engine)[:5], before[:5], strict=True))
    act(engine)
    # add and shift leave the first cell alone: who holds that one only is not in the way
    assert list(engine.kept()) == ([3] if name == "div" else [3, 2])
    pos = np.asarray(vars(engine)["_cells"][0].pos)
    held = np.asarray(vars(engine)["_cells"][0].seq)[..., 0]
    assert sorted(pos[held & 1 != 0].tolist()) == positions
    assert engine.pos_max(1) == -1 and engine.pos_max(3) == 1


def test_a_refused_move_gives_up_nothing():
    engine = tiny_engine(n_seq_max=3, kv_unified=True)
    put(engine, 0, [4, 5, 6])
    engine.cp(0, 1)
    engine.keep_prefix(1, [4, 5, 6])
    before = state(engine)
    for act, words in (
        (lambda: engine.add([0], 0, -1, 2**30), "positions up to"),
        (lambda: engine.div(0, 0, -1, 0), "a divisor of at least 1"),
        (lambda: engine.shift(0, 2, 1), "can't be moved from 1 down to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            act()
        assert unchanged(engine, before) and list(engine.kept()) == [1]
    engine.shift(0, 0, 1)
    assert engine.kept() == {} and engine.pos_max(0) == 1


def test_a_removal_from_every_sequence_gives_up_the_kept_ones_that_it_strikes():
    engine = tiny_engine(n_seq_max=4, kv_unified=True)
    for seq, ids in enumerate(([4, 5, 6], [4, 5, 6, 7], [8, 9], [3, 3, 3, 3])):
        put(engine, seq, ids)
        if seq != 3:
            engine.keep_prefix(seq, ids)
    for p0, p1 in ((5, 2), (4, -1), (2, 2)):  # nothing lies there
        engine.rm(-1, p0, p1)
        assert list(engine.kept()) == [0, 1, 2]
    engine.rm(-1, 3, 4)
    assert engine.kept() == {0: (4, 5, 6), 2: (8, 9)}
    assert [engine.pos_max(seq) for seq in range(4)] == [2, -1, 1, 2]
    assert engine.free_sequences() == [0, 1, 2] and engine.memory_report().n_by_sequence == (3, 0, 2, 3)
    engine.rm(-1, 1)
    assert engine.kept() == {} and [engine.pos_max(seq) for seq in range(4)] == [-1, -1, -1, 0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kept_windows_do_not_stand_in_the_way_of_a_removal(kind):
    """What a kept sequence would need to go on is no reason to refuse: it makes way."""
    engine = windowed_engine(n_seq_max=2, **kind)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 60, 40)]
    put(engine, 0, ids)
    put(engine, 1, ids[:4])
    low = engine.pos_min(0)
    assert low > 4 and not engine.can_remove(-1, 3)
    engine.keep_prefix(0, ids)
    assert engine.can_remove(-1, 3)
    engine.rm(-1, 3)
    assert engine.kept() == {} and (engine.pos_max(0), engine.pos_max(1)) == (-1, 2)


def test_only_free_sequences_can_be_claimed():
    engine = tiny_engine(n_seq_max=3, kv_unified=True)
    put(engine, 0, [4, 5, 6])
    put(engine, 1, [4, 5])
    engine.keep_prefix(1, [4, 5])
    before = state(engine)
    for free, words in (
        ([], "no sequence is free: one that is empty or only kept is needed"),
        ([2, 0], "sequence 0 holds positions 0 to 2: a sequence that is empty or only kept is needed"),
        ([3], "sequence 3 is unknown"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.claim(free, [4, 5, 6])
    assert unchanged(engine, before) and list(engine.kept()) == [1]
    assert engine.claim([2], []) == (2, 0)
    assert engine.claim([1, 2], [4, 5, 6]) == (1, 2)


def test_one_sequence_is_enough_for_prefixes():
    """Prompts equal to what is kept, shorter, longer, different: one token or more is computed."""
    engine, plain = (tiny_engine(n_seq_max=1, prefix_cache=kept) for kept in (True, False))
    prompt = [5, 9, 2, 6, 5, 3, 5, 8]
    computed = []
    for ids in (prompt, prompt, prompt[:5], [*prompt[:5], 7], prompt[:1], [1, 2, 3]):
        found = engine.generate(ids, max_tokens=3)
        assert found.tokens == plain.generate(ids, max_tokens=3).tokens
        assert list(engine.kept()) == [0] and engine.n_free_cells() == 64
        computed.append(found.report.n_prompt)
    assert computed == [8, 1, 1, 1, 1, 3]
    assert engine.generate([[]])[0].error == "the prompt has 0 tokens, at least 1 is needed"
    assert list(engine.kept()) == [0]


def test_what_is_kept_again_is_the_newest():
    engine = tiny_engine(n_ctx=16, n_seq_max=4, kv_unified=True)
    for seq in (2, 0, 1):
        put(engine, seq, [seq + 1, 1, 2, 3])
        engine.keep_prefix(seq, [seq + 1, 1, 2, 3])
    engine.keep_prefix(2, [3, 1, 2, 3])
    put(engine, 3, list(range(1, 7)))
    assert list(engine.kept()) == [1, 2] and engine.pos_max(0) == -1
    put(engine, 3, list(range(1, 12)), 6)  # all that was left
    assert list(engine.kept()) == [2] and engine.memory_report().n_by_sequence == (0, 0, 4, 11)


def test_identical_prompts_in_streams_stay_the_same():
    engine, plain = (tiny_engine(n_seq_max=3, n_ctx=192, prefix_cache=kept) for kept in (True, False))
    prompt = [5, 9, 2, 6]
    for _ in range(2):
        found, want = (e.generate([prompt] * 4, max_tokens=3, n=2) for e in (engine, plain))
        every = [[g.tokens for one in some for g in (one, *one.others)] for some in (found, want)]
        assert every[0] == every[1] and len(every[0]) == 8
    assert found[0].report.n_prompt == 8  # one token of each


@pytest.mark.parametrize("n", [2, 3])
def test_outputs_of_a_prompt_beyond_the_window_run_together(n):
    """They share the cells that the windows still see; what lies before is the first output's, to be used again."""
    engine = windowed_engine(n_seq_max=3, kv_unified=True)
    ids = [int(i) for i in np.random.default_rng(1).integers(1, 60, 20)]
    alone = engine.generate(ids, max_tokens=8)
    found = engine.generate(ids, max_tokens=8, n=n)
    assert [g.tokens for g in (found, *found.others)] == [alone.tokens] * n
    assert (found.report.n_prompt, found.report.n_preempted) == (20 + n - 1, 0)
    assert engine.n_free_cells() == 64


def test_a_claimed_sequence_leaves_passed_cells_to_the_kept_one():
    small, whole = (windowed_engine(n_seq_max=2, kv_unified=True, swa_full=full) for full in (False, True))
    ids = [int(i) for i in np.random.default_rng(1).integers(1, 60, 12)]
    for engine, shared in ((small, 3), (whole, 10)):
        put(engine, 0, ids)
        engine.keep_prefix(0, ids)
        assert engine.claim([1], [*ids[:10], 3, 4]) == (1, 10)
        assert [cache.shared for cache in engine.memory_report().caches] == [10, shared]
    want, found = (put(engine, 1, [*ids[:10], 3, 4], 10) for engine in (whole, small))
    np.testing.assert_allclose(found, want, atol=1e-5)
