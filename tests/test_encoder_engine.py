"""Batches through an encoder: packed in any way, row i belongs to text i; what can't be taken is refused at once."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import nnx

from tests.test_progress import Terminal, shown
from tests.tiny import ENCODER, Letters, tiny_encoder, tiny_encoder_engine
from ubjax import EncoderEngine, Engine, EngineConfig, InvalidBatchError
from ubjax.analysis.compiles import forbid_compilations
from ubjax.models.encoder import Encoder
from ubjax.pooling import Pooling


def texts(n, seed=0, longest=16):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, ENCODER.n_vocab, k).tolist() for k in rng.integers(1, longest + 1, n)]


def batch_of(engine, sequences, **arrays):
    seq_id = np.repeat(list(sequences), [len(ids) for ids in sequences.values()])
    return engine.batch(np.concatenate(list(sequences.values())), seq_id=seq_id, **arrays)


def test_an_engine_of_an_encoder():
    engine = Engine(tiny_encoder(), Letters(), EngineConfig(n_batch=32, n_ubatch=16, n_seq_max=8))
    assert isinstance(engine, EncoderEngine)
    assert repr(engine) == "EncoderEngine(8 sequences, n_batch 32, n_ubatch 16, no cache)"
    assert engine.embed("abc").shape == (1, 16)
    for call in (
        lambda: engine.decode(engine.batch([1])),
        lambda: engine.generate("a"),
        lambda: engine.stream("a"),
    ):
        with pytest.raises(ValueError, match=r"^the model is an encoder and .* embed"):
            call()
    assert Engine(tiny_encoder()).batch_config.n_seq_max == 256


def test_row_i_belongs_to_text_i_in_any_packing():
    given = texts(64)
    alone = tiny_encoder_engine(n_seq_max=1, n_batch=16)
    want = np.concatenate([alone.embed([ids], normalize=True) for ids in given])
    assert (want @ want.T < 0.999).sum() > 3000  # so that a row of another text shows
    for sizes in ({"n_ubatch": 16}, {"n_ubatch": 24, "n_batch": 32}, {"n_batch": 16, "n_seq_max": 3}):
        found = tiny_encoder_engine(**sizes).embed(given, normalize=True)
        np.testing.assert_allclose((found * want).sum(axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(found, want, atol=1e-5)
    order = np.random.default_rng(1).permutation(64)
    found = tiny_encoder_engine().embed([given[i] for i in order], normalize=True)
    np.testing.assert_allclose(found, want[order], atol=1e-5)


def test_sequence_7_of_8_with_two_tokens_and_rows_of_every_token():
    engine, given = tiny_encoder_engine(), texts(2, longest=9)
    given = {7: [3, 5], 2: given[0], 0: given[1]}
    alone = {seq: engine.encode(engine.batch(ids)).embeddings() for seq, ids in given.items()}
    tokens = [(seq, i) for seq, ids in given.items() for i in range(len(ids))]
    tokens.sort(key=lambda token: token[1])  # interleaved
    batch = engine.batch([given[s][i] for s, i in tokens], seq_id=[s for s, _ in tokens])
    outputs = engine.encode(batch)
    assert (len(outputs), outputs.seq_ids.tolist()) == (0, [0, 2, 7])
    for row, (seq, i) in zip(outputs.embeddings(), tokens, strict=True):
        np.testing.assert_allclose(row, alone[seq][i], atol=2e-6)
    for kind, pool in (("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0]), ("last", lambda x: x[-1])):
        want = np.stack([pool(alone[seq]) for seq in (0, 2, 7)])
        np.testing.assert_allclose(outputs.pooled(kind), want, atol=2e-6)
        lengths = np.linalg.norm(outputs.pooled(kind, normalize=True), axis=1)
        np.testing.assert_allclose(lengths, 1, atol=1e-6)
    head = tiny_encoder().rank(np.stack([alone[seq][0] for seq in (0, 2, 7)]))
    np.testing.assert_allclose(outputs.pooled("rank"), head, atol=2e-6)


def test_what_is_refused_before_any_work():
    engine = tiny_encoder_engine(Letters())
    before = dataclasses.replace(engine.usage)
    refused = [
        (
            lambda: batch_of(engine, {0: [1, 2], 3: [1] * 17}),
            "sequence 3 has 17 tokens, n_ubatch allows 16",
        ),
        (lambda: engine.batch([1, 2], seq_id=[{0, 1}, {1}]), "the split took 0 of 2 tokens"),
        (lambda: engine.batch([1, 61]), "token 1 has id 61, an id in"),
        (lambda: engine.batch([1] * 33), "the batch holds 33 tokens, n_batch allows 32"),
        (lambda: engine.batch([1], pos=[48]), r"token 0 has position 48, a position in \[0, 48\) is needed"),
        (lambda: engine.batch([1], state=[[2.0]]), r"token 0 has the type 2.0, one in \[0, 2\) is needed"),
    ]
    for make, words in refused:
        batch = make()
        with pytest.raises(ValueError, match=words):
            engine.encode(batch)
    with pytest.raises(InvalidBatchError, match="the batch holds 0 tokens"):
        engine.encode(engine.batch([], capacity=1))
    for given, options, words in (
        (["a", "b" * 17], {}, r"text 1 has 17 tokens, 1 to 16 \(n_ubatch\) are possible"),
        (["a", ""], {}, "text 1 has 0 tokens, 1 to 16"),
        ([[1], [1, 99]], {}, r"token 1 of text 1 has id 99, an id in \[0, 61\)"),
        ([[1.5]], {}, "token 0 of text 0 is 1.5, an integer is needed"),
        (5, {}, "texts"),
        (["a"], {"pooling": "none"}, "the pooling is 'none', one that gives a text one vector is needed"),
        (["a"], {"pooling": "max"}, "the pooling is 'max', one of none, mean, cls, last, rank is needed"),
        (["a"], {"normalize": 1}, "normalize is 1, True or False is needed"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.embed(given, **options)
    assert engine.usage == before
    with pytest.raises(ValueError, match="the engine has no tokenizer: token ids are needed, text was found"):
        tiny_encoder_engine().embed(["a"])
    long = tiny_encoder_engine(n_batch=64, n_ubatch=64)
    with pytest.raises(
        ValueError, match=r"text 0 has 49 tokens, 1 to 48 \(the positions that the model knows\)"
    ):
        long.embed([[1] * 49])
    plain = Encoder(dataclasses.replace(ENCODER, n_labels=0), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="no classification head"):
        EncoderEngine(plain, Letters()).embed(["a"], pooling="rank")


def test_a_configuration_of_ones_own_has_one_sequence_unless_it_says_more():
    engine = EncoderEngine(tiny_encoder(), Letters(), EngineConfig(n_batch=32, n_ubatch=16))
    assert repr(engine) == "EncoderEngine(1 sequence, n_batch 32, n_ubatch 16, no cache)"
    sentence = r"token 1 belongs to sequence 1, a sequence in \[0, 1\) is needed: n_seq_max is 1"
    with pytest.raises(InvalidBatchError, match=sentence):
        engine.batch([1, 2], seq_id=[0, 1])
    np.testing.assert_allclose(engine.embed(["ab", "c"])[1:], engine.embed("c"), atol=1e-5)
    assert engine.usage.decodes == 3  # texts come one by one


def test_texts_of_any_series_and_what_is_none():
    engine = tiny_encoder_engine(Letters())
    want = engine.embed(["ab", "c"])
    ids = [Letters().encode("ab"), Letters().encode("c")]
    series = (
        ("ab", "c"),
        iter(["ab", "c"]),
        np.array(["ab", "c"]),
        [np.str_("ab"), "c"],
        ids,
        ["ab", ids[1]],
    )
    for given in (
        *series,
        (np.array(x) for x in ids),
        [jnp.asarray(x) for x in ids],
        pd.Series(["ab", "c"], [5, 6]),
    ):
        np.testing.assert_array_equal(engine.embed(given), want)
    for alone in ("ab", ids[0], np.array(ids[0]), jnp.asarray(ids[0]), tuple(ids[0])):
        np.testing.assert_array_equal(engine.embed(alone), engine.embed(["ab"]))
    np.testing.assert_array_equal(engine.embed(want[:0]), np.zeros((0, 16)))
    for given, words in (
        (None, "texts is None, a text or a list of texts is needed"),
        (5, "texts is 5, a text or"),
        (b"ab", "texts is b'ab', a text or"),
        ({"ab"}, "texts is {'ab'}, a text or"),
        ({"ab": 1}, "texts is {'ab': 1}, a text or"),
        ({"ab": 1}.keys(), r"texts is dict_keys\(\['ab'\]\), a text or"),
        (np.array(3), r"texts is array\(3\), a text or"),
        ([None], "text 0 is None, a text or token ids are needed"),
        (["a", 5], "text 1 is 5, a text or"),
        ([b"ab"], "text 0 is b'ab', a text or"),
        (["a", {1, 2}], "text 1 is {1, 2}, a text or"),
        ([1.0], "text 0 is 1.0, a text or"),
        ([["a"]], "token 0 of text 0 is 'a', an integer is needed"),
        ([1, "a"], "token 1 of text 0 is 'a', an integer is needed"),
        ([True], "token 0 of text 0 is True, an integer is needed"),
        ([[2**40]], "token 0 of text 0 is 1099511627776, a 32-bit integer is needed"),
        ([[1], [-1]], "token 0 of text 1 has id -1, an id in"),
        ([[]], "text 0 has 0 tokens, 1 to 16"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            engine.embed(given)
    with pytest.raises(
        ValueError, match="the model's files have no prompts, the prompt 'query' was asked for"
    ):
        engine.embed("a", prompt_name="query")
    assert engine.embed("a", normalize=np.True_, pooling=np.str_("cls")).shape == (1, 16)


@pytest.mark.parametrize(
    ("n_batch", "n_ubatch", "n_seq_max"), [(7, 7, 3), (13, 5, 256), (5, 9, 1), (1, 1, 1)]
)
def test_odd_sizes(n_batch, n_ubatch, n_seq_max):
    engine = tiny_encoder_engine(n_batch=n_batch, n_ubatch=n_ubatch, n_seq_max=n_seq_max)
    given = texts(9, longest=engine.n_ubatch)
    want = np.concatenate([tiny_encoder_engine().embed([ids]) for ids in given])
    np.testing.assert_allclose(engine.embed(given), want, atol=1e-5)
    with pytest.raises(
        ValueError, match=rf"text 0 has {engine.n_ubatch + 1} tokens, 1 to {engine.n_ubatch} "
    ):
        engine.embed([[1] * (engine.n_ubatch + 1)])


def test_defaults_are_the_model_s_and_calls_say_otherwise():
    given = texts(3)
    model = tiny_encoder()
    engine = tiny_encoder_engine()
    assert engine.pooling == Pooling(kind="mean", normalize=False)
    engine.pooling = Pooling(kind="cls", normalize=True)
    np.testing.assert_array_equal(engine.embed(given), engine.embed(given, pooling="cls", normalize=True))
    assert model.pooling is None
    assert engine.embed([]).shape == (0, 16)
    assert engine.embed(given, pooling="rank", normalize=False).shape == (3, 1)
    heard = []
    engine.embed(texts(20), on_progress=lambda done, n: heard.append((done, n)))
    assert heard[-1] == (20, 20) and len(heard) > 2


def test_a_bar_on_a_terminal_when_it_takes_long(monkeypatch):
    engine, terminal = tiny_encoder_engine(), Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("ubjax.progress.SECONDS_UNSEEN", 1e9)
    engine.embed(texts(20))
    assert terminal.getvalue() == ""
    monkeypatch.setattr("ubjax.progress.SECONDS_UNSEEN", -1.0)
    engine.embed(texts(20))
    assert shown(terminal) == "embedding [####################] 20/20" and terminal.getvalue().endswith("\n")
    before = terminal.getvalue()
    engine.embed(texts(20), on_progress=lambda done, n: None)
    assert terminal.getvalue() == before
    run, left = engine._run, [2]

    def interrupted(batch):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return run(batch)

    monkeypatch.setattr(engine, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.embed(texts(20))
    assert terminal.getvalue().count("\n") == 2 and terminal.getvalue().endswith("\n")


def test_a_warm_engine_compiles_nothing():
    engine = tiny_encoder_engine(n_batch=32, n_ubatch=32)
    warmup = engine.warmup()
    names = {program.function for program in warmup.programs}
    assert names == {"plan_encode", "take_ubatch", "encode", "pool_rows", "rank"}
    with forbid_compilations():
        for seed in range(3):
            engine.embed(texts(30, seed, longest=32))
            engine.embed(texts(5, seed, longest=3), pooling="rank")
            engine.encode(engine.batch([1, 2], state=[[0.0], [1.0]])).pooled("cls")


def test_other_texts_compile_nothing_the_second_time():
    engine = tiny_encoder_engine(n_batch=64, n_ubatch=16)
    engine.embed(texts(40, 0))
    with forbid_compilations():
        engine.embed(texts(40, 1))


def test_counts():
    engine = tiny_encoder_engine()
    engine.encode(batch_of(engine, {0: [1] * 10, 1: [2] * 9, 2: [3] * 4}))
    assert engine.usage.decodes == 1
    assert (engine.usage.tokens, engine.usage.rows, engine.usage.buckets) == (23, 32, {"1x16|span 16": 2})
