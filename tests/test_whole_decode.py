"""A decode at once gives outputs, cells and K/V of a decode, with one program and one dispatch, or changes nothing."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import ubjax.engine_state
from benchmarks.hlo import copies_of
from tests.test_decode_loop import KINDS
from tests.tiny import CONFIG, one_capacity, state, unchanged
from ubjax import Engine, EngineConfig, NoSlotError, RectangleLadder, count_compilations
from ubjax.buckets import Bucket, Buckets
from ubjax.models.decoder import Decoder
from ubjax.status import DecodeError, InvalidBatchError

S = 4
SIZES = {"n_seq_max": S, "n_ubatch": 4, "n_batch": 16, "kv_pad": 48}
# Tokens of each sequence, batch after batch; with n_ubatch 4 they are cut into 4, 2, 2 ubatches or more.
ROUNDS = ((5, 5, 1, 3), (2, 2, 2, 2), (1, 0, 7, 0))


@functools.cache
def pair(kind):
    """Two engines of this kind: one decodes, the other one at once. Every ubatch has one bucket."""
    config, sizes = KINDS[kind]
    model, sizes = Decoder(config, rngs=nnx.Rngs(0)), EngineConfig(**SIZES, **sizes)
    rows = {"rows": [(1 if sizes.kv_unified else S, 4)]}
    return tuple(one_capacity(Engine(model, None, sizes, **rows)) for _ in range(2))


def batches(kind):
    """Random tokens, dealt in turn or sequence after sequence, most of them outputs: more than a ubatch has."""
    rng = np.random.default_rng(list(KINDS).index(kind))
    for n, lengths in enumerate(ROUNDS):
        seq_id = np.repeat(np.arange(S), lengths)
        seq_id = rng.permutation(seq_id) if n % 2 else seq_id
        output = rng.permutation(len(seq_id)) > 2
        yield {"token": rng.integers(0, CONFIG.n_vocab, len(seq_id)), "seq_id": seq_id, "output": output}


def compared(plain, at_once, arrays, atol):
    """One decode of each, their outputs, cells and K/V compared; what each cost."""
    before = plain.usage.copy(), at_once.usage.copy()
    want, found = plain.decode(plain.batch(**arrays)), at_once.decode_at_once(at_once.batch(**arrays))
    places = np.flatnonzero(arrays["output"])
    assert found.out_ids.tolist() == places.tolist() and len(found) == len(want)
    for i in places.tolist():
        np.testing.assert_allclose(found.logits(i), want.logits(i), rtol=0, atol=atol)
    for a, b in zip(state(plain), state(at_once), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=atol if a.dtype == np.float32 else 0)
    return plain.usage.since(before[0]), at_once.usage.since(before[1])


@pytest.mark.parametrize("kind", KINDS)
def test_in_one_bucket_every_bit_is_that_of_a_decode(kind):
    plain, at_once = pair(kind)
    for engine in (plain, at_once):
        engine.clear()
    for arrays in batches(kind):
        used, once = compared(plain, at_once, arrays, atol=0)
        assert used == once and once.ubatches > 1


@pytest.mark.slow
def test_ubatches_of_different_buckets_share_one_that_holds_them_all():
    config, sizes = KINDS["streams"]
    model, sizes = Decoder(config, rngs=nnx.Rngs(0)), EngineConfig(**SIZES, **sizes)
    plain, at_once = (one_capacity(Engine(model, None, sizes)) for _ in range(2))
    arrays = next(batches("streams"))  # 5, 5, 1 and 3 tokens: cut into 4x1, 2x2, 2x2 or the like
    used, once = compared(plain, at_once, arrays, atol=1e-4)
    assert len(used.buckets) > 1 and list(once.buckets) == ["4x4|kv 48|out 4"]
    assert (once.ubatches, once.tokens, once.outputs) == (used.ubatches, used.tokens, used.outputs)
    assert once.rows == 16 * once.ubatches > used.rows


def test_a_ladder_that_limits_the_rows_of_a_sequence_does_so_at_once_too():
    config, sizes = KINDS["streams"]
    model, sizes = Decoder(config, rngs=nnx.Rngs(0)), EngineConfig(**SIZES, **sizes)
    rows = RectangleLadder.single([(S, 1)], S)
    plain, at_once = (one_capacity(Engine(model, None, sizes, rows=rows)) for _ in range(2))
    used, once = compared(plain, at_once, {"token": np.arange(3), "output": np.ones(3, bool)}, atol=0)
    assert used == once and once.buckets == {"4x1|kv 48|out 4": 3}


@pytest.mark.parametrize("kind", ["unified", "windows in streams"])
def test_one_program_whatever_the_number_of_ubatches(kind):
    _, engine = pair(kind)
    engine.clear()

    def decode(n):
        seq_id = np.arange(n) % 2
        arrays = {"token": np.arange(n), "seq_id": seq_id, "output": np.arange(n) != 1}
        ubatches = engine.usage.ubatches
        engine.decode_at_once(engine.batch(**arrays))
        return engine.usage.ubatches - ubatches

    assert decode(16) == 4
    with count_compilations() as count:
        assert [decode(8), decode(12)] == [2, 3]
    assert count.total == 0, str(count)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["unified", "windows in streams"])
def test_kv_stays_in_its_place(monkeypatch, kind, rows):
    """Ubatches of one row or three: the program writes K/V where it lies and copies nothing of it.

    Not four, whose scores, turned round, would have the size of a head's keys.
    """
    _, engine = pair(kind)
    engine.clear()
    engine.decode_at_once(engine.batch([1, 2]))  # K/V is there now
    texts, of = [], ubjax.engine_state.whole_program

    def read(*made_of):
        def compiled(leaves, kv, *given):
            program = of(*made_of)
            made = program.lower(leaves, kv, *given).compile()
            texts.append((made.as_text(), made.memory_analysis().alias_size_in_bytes))
            return program(leaves, kv, *given)

        return compiled

    monkeypatch.setattr(ubjax.engine_state, "whole_program", read)
    shape = Bucket(n_blocks=1, n_block_rows=rows, n_outputs=rows)
    monkeypatch.setattr(Buckets, "whole", lambda *_, **__: (shape, 4))
    kv = vars(engine)["_kv"]
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(kv)]
    engine.decode_at_once(engine.batch([3] * rows))
    ((text, kept),) = texts
    assert copies_of(text, kv) == (0, 0) and kept == sum(own.nbytes for own in kv)
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(vars(engine)["_kv"])] == pointers


def test_it_is_one_dispatch(monkeypatch):
    _, engine = pair("unified")
    engine.clear()
    calls = []
    of = ubjax.engine_state.whole_program

    def counted(*made_of):
        return lambda *given: calls.append(0) or of(*made_of)(*given)

    monkeypatch.setattr(ubjax.engine_state, "whole_program", counted)
    monkeypatch.setattr(vars(engine)["_step"], "program", None)  # a step by itself would fail
    engine.decode_at_once(engine.batch(np.arange(14)))
    assert len(calls) == 1 and engine.pos_max(0) == 13


def test_what_is_refused_changes_nothing():
    _, engine = pair("unified")
    engine.clear()
    for _ in range(3):
        engine.decode_at_once(engine.batch(np.arange(15), seq_id=[0] * 15))
    before, usage = state(engine), engine.usage.copy()
    for arrays, error, words in (
        ({"token": [1] * 4}, NoSlotError, "ubatch 0 needs 4 cells of one stream, 3 are free"),
        ({"token": [1, 99]}, InvalidBatchError, "token 1 has id 99"),
        ({"token": [1], "pos": [5]}, InvalidBatchError, "sequence 0 starts at position 5"),
        ({"token": [1] * 17}, InvalidBatchError, "the batch holds 17 tokens, n_batch allows 16"),
    ):
        with pytest.raises(error, match=words):
            engine.decode_at_once(engine.batch(**arrays))
        assert unchanged(engine, before) and engine.usage == usage


@pytest.mark.parametrize("how", ["before", "lost", "late"])
def test_a_failed_program_leaves_all_or_an_empty_cache(monkeypatch, how):
    """It fails before it starts, with K/V taken over, or when its results are waited for; a shift is owed before."""
    _, engine = pair("unified")
    engine.clear()
    engine.decode_at_once(engine.batch(np.arange(8)))
    want = engine.decode(batch := engine.batch(np.arange(8))).logits(-1)
    engine.rm(0, 8)
    before, of = state(engine), ubjax.engine_state.whole_program

    def failing(leaves, kv, *given):
        if how == "late":
            logits, kv = of(*vars(engine)["_step"].structure, engine.caches)(leaves, kv, *given)
            logits.delete()
            return logits, kv
        if how == "lost":
            jax.tree.map(lambda x: x.delete(), kv)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(DecodeError) as caught:
        patch.setattr(ubjax.engine_state, "whole_program", lambda *_: failing)
        engine.decode_at_once(batch)
    if how == "before":
        assert caught.value.result == 2 and unchanged(engine, before)
    else:
        assert caught.value.result == -3 and engine.pos_max(0) == -1
        engine.decode_at_once(engine.batch(np.arange(8)))
    np.testing.assert_array_equal(engine.decode_at_once(batch).logits(-1), want)


def test_what_moved_sequences_owe_is_carried_out_first():
    plain, at_once = pair("streams")
    logits = []
    for engine, decode in ((plain, plain.decode), (at_once, at_once.decode_at_once)):
        engine.clear()
        decode(engine.batch(np.arange(12), seq_id=[0] * 6 + [1] * 6))
        engine.add(0, 0, -1, 5)
        engine.cp(1, 2)
        logits.append(decode(engine.batch([5, 6, 7, 8, 9, 1], seq_id=[0, 2, 2, 2, 2, 2])).logits(-1))
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-4)
    for a, b in zip(state(plain), state(at_once), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-4 if a.dtype == np.float32 else 0)
