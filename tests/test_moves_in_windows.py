"""Windows: what is removed, shifted and used again changes no result, and what a window gave up is not resumed.

A model of one layer, so that K and V depend on a token and its position alone.
"""

import dataclasses
import functools

import numpy as np
import pytest

from tests.test_moves import KINDS, ONE_LAYER, afresh, engine_of, model, put
from tests.tiny import CONFIG, state, unchanged
from ubjax import BucketLadder, Engine, EngineConfig
from ubjax.config import SwaType

WINDOW = dataclasses.replace(ONE_LAYER, n_swa=4, swa_type=SwaType.STANDARD, swa_layers=(True,))


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_removed_and_shifted_in_a_window(kind, swa_full):
    """W = 4, 12 tokens, rm(2, 6), add(6, 12, -4)."""
    engine = engine_of(WINDOW, **kind, swa_full=swa_full)
    put(engine, 0, range(1, 13))
    engine.rm(0, 2, 6)
    engine.add(0, 6, 12, -4)
    contents = [(t, i) for i, t in enumerate([1, 2, 7, 8, 9, 10, 11, 12])]
    np.testing.assert_allclose(
        put(engine, 0, [13]), afresh(WINDOW, contents, 13, **kind, swa_full=True), atol=1e-5
    )


@functools.cache
def dense():
    """An engine that computes a sequence of up to 96 tokens as one ubatch: no step reads what another wrote."""
    sizes = EngineConfig(n_ctx=96, n_ubatch=96, kv_pad=96, swa_full=True)
    return Engine(model(WINDOW), None, sizes, rows=BucketLadder((96,)))


def densely(tokens):
    """The logits of a sequence's last token."""
    dense().clear()
    return put(dense(), 0, tokens)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("n_ubatch", [2, 5])
def test_reused_cells_change_no_result(kind, n_ubatch):
    """Sequences longer than the window cache, prompts and single tokens mixed; dense: each at once, in one ubatch."""
    engines = [
        engine_of(WINDOW, **(kind | {"n_ctx": 256, "n_seq_max": 2}), n_ubatch=n_ubatch, swa_full=full)
        for full in (False, True)
    ]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        for engine in engines:
            engine.clear()
        whole, last = ([], []), [None, None]
        for n0, n1 in [(9, 3), *zip(*rng.integers(0, 9, (2, 8)), strict=True), (12, 4)]:
            seq_id = [0] * n0 + [1] * n1
            tokens = rng.integers(0, CONFIG.n_vocab, n0 + n1)
            if not len(tokens):
                continue
            made = {"seq_id": seq_id, "output": [True] * len(tokens)}
            found = [engine.decode(engine.batch(tokens, **made)) for engine in engines]
            rows = [np.stack([outputs.logits(i) for i in range(len(tokens))]) for outputs in found]
            np.testing.assert_allclose(*rows, atol=1e-5)
            for i, (seq, token) in enumerate(zip(seq_id, tokens.tolist(), strict=True)):
                whole[seq].append(token)
                last[seq] = rows[0][i]
        for ids, found in zip(whole, last, strict=True):
            np.testing.assert_allclose(found, densely(ids), atol=1e-5)
    small = engines[0].caches[1]
    assert (
        small.n_cells == 16 and engines[0].pos_max(0) + engines[0].pos_max(1) > small.n_cells
    )  # cells were reused
    assert engines[0].pos_min(0) > 0 and engines[1].pos_min(0) == 0


def test_what_a_window_has_given_up_can_not_be_resumed():
    engine = engine_of(WINDOW, kv_unified=True, n_seq_max=1, n_ubatch=4)
    put(engine, 0, range(1, 17))
    put(engine, 0, range(17, 27))
    assert engine.caches[1].n_cells == 16 and engine.pos_max(0) == 25
    low = engine.pos_min(0)
    assert 0 < low <= 22
    can = [p for p in range(28) if engine.can_resume(0, p)]
    assert can == [0, *range(low + 3, 27)]  # position p sees p - 3 .. p - 1; 27 would leave a hole
    assert engine.can_remove(0, low + 3) and not engine.can_remove(0, low + 2) and engine.can_remove(0)
    before = state(engine)
    with pytest.raises(
        ValueError, match=r"the window of 4 positions has given up what sequence 0 would need"
    ):
        engine.rm(0, low + 2)
    assert unchanged(engine, before)
    engine.rm(0, 4, 24)  # what is left at the end can go on where it is, but not behind position 3
    with pytest.raises(ValueError, match="can't be moved by -20: the window of 4 positions has given up"):
        engine.add(0, 24, -1, -20)
    assert (engine.pos_min(0), engine.pos_max(0)) == (24, 25)
