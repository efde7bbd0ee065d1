"""Positions with several sections through an engine: order inside an image, chunks, what is refused, sequences."""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG, state, unchanged
from ubjax import BucketLadder, Engine, EngineConfig, InvalidBatchError, mrope_positions
from ubjax.analysis import forbid_compilations
from ubjax.models.decoder import Decoder

IMAGE = np.random.default_rng(0).normal(size=(12, CONFIG.n_embd)).astype(np.float32)
POS = mrope_positions([3, (2, 6), 2])
IDS = [5, 1, 30, 7, 60]
TWELVE = BucketLadder((4, 12))


@functools.cache
def model():
    return Decoder(dataclasses.replace(CONFIG, rope_sections=(1, 2, 1)), rngs=nnx.Rngs(0))


@functools.cache
def engine(kv_unified=True):
    sizes = {"n_ctx": 64, "kv_pad": 32, "n_batch": 12, "n_ubatch": 12, "n_seq_max": 2}
    ladders = {
        "rows": TWELVE,
        "n_outputs": BucketLadder((12,)),
        "n_kv": BucketLadder((64 if kv_unified else 32,)),
    }
    return Engine(model(), None, EngineConfig(**sizes, kv_unified=kv_unified), **ladders)


@pytest.fixture(params=[True, False], ids=["unified", "streams"])
def on(request):
    """An engine with three tokens of text in sequence 1."""
    found = engine(request.param)
    found.clear()
    found.decode(found.batch(IDS[:3], seq_id=[1] * 3))
    return found


def decode_image(on, rows, pos=POS[:, 3:15], **mode):
    """The logits of some rows of the image, in the order given."""
    n = len(rows)
    outputs = on.decode(on.batch(embd=IMAGE[rows], pos=pos[:, rows], seq_id=[1] * n, output=[1] * n), **mode)
    return np.stack([outputs.logits(i) for i in range(n)])


def test_rows_of_an_image_see_those_before_them_by_y_and_x(on):
    straight = decode_image(on, list(range(12)))
    last = on.decode(on.batch(IDS[3:], seq_id=[1] * 2)).logits(-1)
    on.rm(1, 3)
    mixed = np.random.default_rng(1).permutation(12).tolist()
    np.testing.assert_allclose(decode_image(on, mixed), straight[mixed], atol=1e-5)
    np.testing.assert_allclose(on.decode(on.batch(IDS[3:], seq_id=[1] * 2)).logits(-1), last, atol=1e-5)
    on.rm(1, 3)
    x_y = POS[[0, 2, 1], 3:15]  # turned over, another order and other rotations
    assert np.abs(decode_image(on, list(range(12)), x_y) - straight).max() > 1e-2


def test_an_image_may_come_in_chunks_that_repeat_its_position(on):
    whole = decode_image(on, list(range(12)))
    on.rm(1, 3)
    parts = [decode_image(on, list(range(start, stop))) for start, stop in ((0, 5), (5, 6), (6, 12))]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-5)


def test_rows_of_an_image_may_all_see_one_another(on):
    causal = decode_image(on, list(range(12)))
    on.rm(1, 3)
    straight = decode_image(on, list(range(12)), causal=False)
    on.rm(1, 3)
    mixed = np.random.default_rng(2).permutation(12).tolist()
    np.testing.assert_allclose(decode_image(on, mixed, causal=False), straight[mixed], atol=1e-5)
    assert np.abs(straight[0] - causal[0]).max() > 1e-2


def test_the_next_position_is_behind_the_longer_side(on):
    assert [on.pos_next(s) for s in (0, 1)] == [0, 3]
    decode_image(on, list(range(7)))  # a row of six and one token more
    assert (on.pos_max(1), on.pos_next(1)) == (3, 9)
    batch = on.batch(IDS[3:], seq_id=[1, 1])
    assert batch.pos[:, :2].tolist() == [[9, 10]] * 3
    on.decode(batch)
    assert (on.pos_max(1), on.pos_next(1), on.pos_next(0)) == (10, 11, 0)
    on.rm(1, 9)
    assert on.pos_next(1) == 9
    on.cp(1, 0)
    assert on.pos_next(np.int64(0)) == 9
    on.rm(0)
    assert on.pos_next(0) == 0


def test_going_back_is_refused(on):
    decode_image(on, [0, 1])
    before = state(on)
    for token, embd, pos, fault in (
        (
            None,
            IMAGE[:1],
            [[2], [2], [2]],
            "sequence 1 starts at position 2, position 3 or a later one is needed",
        ),
        (IDS[3:4], None, [3], "sequence 1 starts at position 3, position 4 or a later one is needed"),
        (None, IMAGE[:2], [[5, 4], [5, 5], [5, 6]], "token 1 has position 4, its sequence already reached 5"),
        (
            None,
            IMAGE[:1],
            [[3], [-1], [3]],
            r"token 0 has position -1, a position in \[0, 1073741824\) is needed",
        ),
        (None, IMAGE[:1], [[3], [3], [2**30]], "token 0 has position 1073741824, a position in"),
    ):
        n = len(pos[0]) if embd is not None else 1
        with pytest.raises(InvalidBatchError, match=fault):
            on.decode(on.batch(token, embd=embd, pos=pos, seq_id=[1] * n))
    assert unchanged(on, before)


def test_positions_can_not_be_moved_and_the_rest_can(on):
    decode_image(on, list(range(12)))
    assert not on.can_shift
    before = state(on)
    for operation in (lambda: on.add(1, 0, -1, 1), lambda: on.div(1, 0, -1, 2), lambda: on.shift(1, 0, 2)):
        with pytest.raises(ValueError, match=r"a token has 3 positions here \(M-RoPE\), one is needed"):
            operation()
    assert unchanged(on, before)
    want = on.decode(on.batch(IDS[3:], seq_id=[1] * 2)).logits(-1)
    on.rm(1, 9)
    data = on.get_state(1)
    on.set_state(data, 0)
    assert (on.pos_max(0), on.pos_next(0)) == (3, 9)
    np.testing.assert_allclose(on.decode(on.batch(IDS[3:], seq_id=[0] * 2)).logits(-1), want, atol=1e-5)


@pytest.mark.slow
def test_generation_of_text_counts_up_and_warm_up_compiles_all_of_it():
    on = engine()
    on.clear()
    on.warmup()
    with forbid_compilations():
        found = on.generate([IDS, IDS[:2]], max_tokens=4, context_shift=True)
        on.decode(on.batch(IDS))
        assert on.pos_next(0) == 5
    ids = [*IDS]
    for _ in range(4):
        on.clear()
        ids.append(int(on.decode(on.batch(ids)).logits(-1).argmax()))
    assert list(found[0].tokens) == ids[5:]
