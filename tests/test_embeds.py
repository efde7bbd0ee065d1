"""Hidden rows and vectors of a decoder: the same decode gives logits and rows, whatever the split."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from tests.models.helpers import WINDOWED, decoder
from tests.test_encoder_engine import texts
from tests.tiny import CONFIG, Letters, one_capacity, tiny_engine
from ubjax import BucketLadder, Engine, EngineConfig, embeds
from ubjax.analysis.compiles import count_compilations, forbid_compilations
from ubjax.models.decoder import Decoder

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
    with pytest.raises(ValueError, match=r"an empty one is needed to embed a text \(rm empties one\)"):
        engine.embed("a")


def test_texts_are_dealt_out_to_as_few_batches_as_hold_them():
    long = [32] + [1] * 400  # the long one fills a batch alone
    groups = embeds._groups(long, n_seqs=4, n_tokens=32)
    assert (len(groups), groups[0]) == (101, [0])
    for lengths, n_seqs, n_tokens in ((long, 4, 32), ([9, 9, 9, 9], 4, 16), ([3] * 10, 256, 16), ([], 4, 8)):
        groups = embeds._groups(lengths, n_seqs, n_tokens)
        assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
        assert all(0 < len(group) <= n_seqs for group in groups)
        assert all(sum(lengths[i] for i in group) <= n_tokens for group in groups)
        least = max(-(-len(lengths) // n_seqs), -(-sum(lengths) // n_tokens))
        assert least <= len(groups) <= least + 1 or lengths == [9, 9, 9, 9]
        assert all(np.diff([lengths[i] for i in group]).max(initial=0) <= 0 for group in groups)


def test_a_text_that_fills_a_batch_does_not_spoil_the_others():
    engine = engine_of("streams")
    before = engine.usage.decodes
    engine.embed([[1] * 32] + [[2]] * 39)
    assert engine.usage.decodes - before == 11


@pytest.mark.slow
@pytest.mark.parametrize("kv_unified", [True, False])
def test_windows_and_several_ubatches(kv_unified):
    """A text longer than the windows and than a ubatch: its rows are those of its tokens one by one."""
    sizes = {"n_ctx": 32 if kv_unified else 64, "kv_pad": 16, "n_batch": 24, "n_ubatch": 7, "n_seq_max": 2}
    ladders = {"rows": BucketLadder((7,)), "n_outputs": BucketLadder((7,)), "n_kv": BucketLadder((32,))}
    config = EngineConfig(**sizes, kv_unified=kv_unified)
    engine = one_capacity(Engine(decoder(WINDOWED), None, config, **ladders))
    given = [np.random.default_rng(n).integers(0, WINDOWED.n_vocab, n).tolist() for n in (20, 3, 9)]
    alone = []
    for ids in given:
        engine.clear()
        alone.append(
            np.concatenate([engine.decode(engine.batch([i]), hidden=True).embeddings() for i in ids])
        )
    engine.clear()
    for kind, pool in (("mean", lambda x: x.mean(0)), ("last", lambda x: x[-1])):
        want = np.stack([pool(rows) for rows in alone])
        np.testing.assert_allclose(engine.embed(given, pooling=kind), want, atol=1e-5)
    batch = engine.batch(given[1] + given[0][:9], seq_id=[0] * 3 + [1] * 9, output=[True] * 12)
    outputs = engine.decode(batch, embd_all=True, hidden=True)  # streams: sequence by sequence
    np.testing.assert_allclose(outputs.embeddings(), np.concatenate([alone[1], alone[0][:9]]), atol=1e-5)
    engine.clear()
    silent = engine.decode(engine.batch(given[2], output=[False] * 9), hidden=True)
    assert len(silent) == 0
    np.testing.assert_allclose(silent.embeddings(), alone[2], atol=1e-5)


@pytest.mark.slow
def test_a_warm_up_with_hidden_rows_leaves_nothing_to_compile():
    """`embed` and hidden rows compile nothing, and without `hidden` the warm-up has none of their programs."""
    ladders = {"rows": BucketLadder((1, 4)), "n_outputs": BucketLadder((4,)), "n_kv": BucketLadder((16, 32))}
    sizes = EngineConfig(n_ctx=32, kv_pad=16, n_batch=12, n_ubatch=4, n_seq_max=2, kv_unified=True)
    model = Decoder(dataclasses.replace(CONFIG, norm_eps=3e-5), rngs=nnx.Rngs(0))  # programs of its own
    engine = Engine(model, Letters(), sizes, **ladders)
    assert not {p.function for p in engine.warmup().programs} & {"step_with_hidden", "pool_rows"}
    with pytest.raises(ValueError, match="hidden is 1, True or False is needed"):
        engine.warmup(hidden=1)
    report = engine.warmup(hidden=True)
    shapes = [p.shape for p in report.programs if p.function == "step_with_hidden"]
    assert shapes == [p.shape for p in report.programs if p.function == "step"]
    assert [p.shape for p in report.programs if p.function == "pool_rows"] == ["rows 1", "rows 4"]
    with count_compilations() as count, forbid_compilations():
        engine.embed(texts(12, longest=12), pooling="mean", normalize=True)
        engine.embed(["a", "bc"])
        for n in range(1, 13):
            engine.clear()
            outputs = engine.decode(engine.batch([1] * n, output=[i % 3 == 0 for i in range(n)]), hidden=True)
            outputs.embeddings()
            outputs.pooled("cls")
    assert count.total == 0


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
