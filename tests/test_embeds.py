"""Hidden rows and vectors of a decoder: the same decode gives logits and rows, whatever the split."""

import numpy as np
import pytest

from tests.test_encoder_engine import texts
from tests.tiny import Letters, tiny_engine
from ubjax.analysis.compiles import forbid_compilations

SIZES = {"unified": {"kv_unified": True, "n_ctx": 64}, "streams": {"n_ctx": 128, "kv_pad": 32}}


def engine_of(kind, **more):
    return tiny_engine(Letters(), n_seq_max=4, n_batch=32, n_ubatch=8, **SIZES[kind], **more)


GIVEN = {0: [5, 9, 2, 7, 1, 3, 3, 8, 4], 3: [4, 4], 1: [6, 2, 8, 1]}


def rows_alone(engine):
    """The hidden rows of each sequence in a decode of its own, token by token."""
    found = {}
    for seq, ids in GIVEN.items():
        engine.clear()
        found[seq] = np.concatenate(
            [engine.decode(engine.batch([i], seq_id=[seq]), hidden=True).embeddings() for i in ids]
        )
    engine.clear()
    return found


@pytest.mark.parametrize("kind", SIZES)
def test_logits_and_rows_of_one_decode(kind):
    engine = engine_of(kind)
    alone = rows_alone(engine)
    tokens = sorted(
        ((s, i) for s, ids in GIVEN.items() for i in range(len(ids))), key=lambda token: token[::-1]
    )
    arrays = {"seq_id": [s for s, _ in tokens], "output": [i % 2 == 0 for _, i in tokens]}
    ids = [GIVEN[s][i] for s, i in tokens]
    outputs = engine.decode(engine.batch(ids, **arrays), hidden=True)
    engine.clear()
    plain = engine.decode(engine.batch(ids, **arrays))
    for i, (_, k) in enumerate(tokens):
        if k % 2 == 0:
            np.testing.assert_allclose(outputs.logits(i), plain.logits(i), atol=1e-6)
    for row, (seq, i) in zip(outputs.embeddings(), tokens, strict=True):
        np.testing.assert_allclose(row, alone[seq][i], atol=1e-5)
    assert outputs.seq_ids.tolist() == [0, 1, 3]
    for name, pool in (("mean", lambda x: x.mean(0)), ("last", lambda x: x[-1]), ("cls", lambda x: x[0])):
        want = np.stack([pool(alone[seq]) for seq in (0, 1, 3)])
        np.testing.assert_allclose(outputs.pooled(name), want, atol=1e-5)
    with pytest.raises(ValueError, match=r"there are no hidden rows: decode\(batch, hidden=True\) is needed"):
        plain.embeddings()
    with pytest.raises(ValueError, match="no classification head"):
        outputs.pooled("rank")


def test_a_token_of_two_sequences_counts_in_both():
    engine = engine_of("unified")
    batch = engine.batch([5, 9, 2, 7], seq_id=[{0, 1}, {0, 1}, {0}, {1}], pos=[0, 1, 2, 2])
    outputs = engine.decode(batch, hidden=True)
    rows = outputs.embeddings()
    want = [rows[[0, 1, 2]].mean(0), rows[[0, 1, 3]].mean(0)]
    np.testing.assert_allclose(outputs.pooled("mean"), want, atol=1e-6)
    np.testing.assert_array_equal(outputs.pooled("last"), rows[[2, 3]])


@pytest.mark.parametrize("kind", SIZES)
def test_texts_share_batches_and_leave_other_sequences_alone(kind):
    engine, given = engine_of(kind), texts(12, longest=9)
    want = np.concatenate([engine.embed([ids]) for ids in given])
    engine.decode(engine.batch([5, 9, 2], seq_id=[2] * 3))
    found = engine.embed(given, normalize=False)
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert [engine.pos_max(seq) for seq in range(4)] == [-1, -1, 2, -1]
    length = np.linalg.norm(engine.embed(given, pooling="mean", normalize=True), axis=1)
    np.testing.assert_allclose(length, 1, atol=1e-6)
    with forbid_compilations():
        engine.embed(texts(12, longest=9)[::-1])


def test_what_is_refused():
    engine = engine_of("unified")
    with pytest.raises(ValueError, match="the model is a decoder and can't encode"):
        engine.encode(engine.batch([1]))
    with pytest.raises(ValueError, match=r"text 0 has 33 tokens, 1 to 32 \(n_batch\) are possible"):
        engine.embed("a" * 33)
    engine.decode(engine.batch([1] * 32, seq_id=[0] * 32))
    engine.decode(engine.batch([1] * 16, seq_id=[1] * 16))
    with pytest.raises(ValueError, match=r"text 1 has 17 tokens, 1 to 16 \(the cells that are free\)"):
        engine.embed(["a", "a" * 17])
    with pytest.raises(ValueError, match="hidden is 'yes', True or False is needed"):
        engine.decode(engine.batch([1]), hidden="yes")
    with pytest.raises(ValueError, match="the model has no classification head"):
        engine.rerank("a", ["b"])
    engine.decode(engine.batch([1, 1], seq_id=[2, 3]))
    with pytest.raises(ValueError, match="every sequence is in use, an empty one is needed to embed a text"):
        engine.embed("a")


def test_kept_sequences_are_given_up_and_a_failure_leaves_nothing(monkeypatch):
    engine = engine_of("unified", prefix_cache=True)
    engine.generate([1, 2, 3], max_tokens=1)
    assert engine.embed([[1, 2, 3]] * 4).shape == (4, 16)
    assert engine.n_free_cells() == 64

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(vars(engine)["_step"], "hidden_program", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.embed([[1, 2, 3]])
    assert [engine.pos_max(seq) for seq in range(4)] == [-1] * 4
