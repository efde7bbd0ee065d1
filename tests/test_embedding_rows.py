"""Rows that are embeddings or states: looked up or taken as they are, alone and mixed, and nothing else changes."""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG, one_capacity, state, unchanged
from ubjax import BucketLadder, Engine, EngineConfig, InvalidBatchError
from ubjax.analysis import forbid_compilations
from ubjax.batch import ROW_EMBD, ROW_ID
from ubjax.models.decoder import Decoder

IDS = np.array([5, 1, 30, 7, 7, 2, 11, 9, 60, 0], np.int32)
SEQS = [0, 1, 0, 0, 1, 0, 1, 1, 0, 0]
# Looked-up embeddings are scaled, rows are not: what is looked up and what is given differ by that factor.
SCALED = dataclasses.replace(CONFIG, scale_embd=True)


@functools.cache
def model():
    return Decoder(SCALED, rngs=nnx.Rngs(0))


def table():
    ids = np.arange(SCALED.n_vocab, dtype=np.int32)
    return np.asarray(model().embedding.rows(ids)) * np.float32(SCALED.n_embd**0.5)


@functools.cache
def engine(kv_unified):
    sizes = {
        "n_ctx": 32,
        "kv_pad": 16,
        "n_batch": 16,
        "n_ubatch": 4,
        "n_seq_max": 2,
        "kv_unified": kv_unified,
    }
    ladders = {"rows": BucketLadder((4,)), "n_outputs": BucketLadder((4,))}
    cells = BucketLadder((32 if kv_unified else 16,))
    return one_capacity(Engine(model(), None, EngineConfig(**sizes), n_kv=cells, **ladders))


def logits_of(on, **content):
    """The logits of all rows, decoded into an empty cache."""
    on.clear()
    outputs = on.decode(on.batch(**content, seq_id=SEQS, output=[True] * len(IDS)))
    return np.stack([outputs.logits(i) for i in range(len(IDS))])


@pytest.mark.parametrize("kv_unified", [True, False])
def test_rows_of_the_table_give_what_their_ids_give(kv_unified):
    on = engine(kv_unified)
    want = logits_of(on, token=IDS)
    assert np.ptp(want) > 1
    np.testing.assert_allclose(logits_of(on, embd=table()[IDS]), want, atol=1e-5)
    mixed = np.where(np.arange(len(IDS)) % 3 == 0, ROW_EMBD, ROW_ID)
    embd = np.where(mixed[:, None] == ROW_EMBD, table()[IDS], 1e6)  # of an id row, looked at by nobody
    token = np.where(mixed == ROW_ID, IDS, 0)
    np.testing.assert_allclose(logits_of(on, token=token, embd=embd, row_type=mixed), want, atol=1e-5)
    builder = on.builder()
    for i, (token, seq) in enumerate(zip(IDS, SEQS, strict=True)):
        row = {"embd": table()[token]} if i % 2 else {"id": token}
        builder.add_token(seq, output=True, **row)
    on.clear()
    outputs = on.decode(builder.build())
    np.testing.assert_allclose([outputs.logits(i) for i in range(len(IDS))], want, atol=1e-5)


def test_a_model_may_take_one_kind_alone():
    on = engine(False)
    on.clear()
    on.decode(on.batch(IDS[:2]))
    before, config = state(on), on.batch_config
    kind = [ROW_ID, ROW_EMBD]
    batch = on.batch(IDS[:2], embd=table()[IDS[:2]], row_type=kind)
    on.batch_config = dataclasses.replace(config, allow_mixed=False)
    with pytest.raises(
        InvalidBatchError, match="token 1: this model takes id rows or embedding rows in one batch"
    ):
        on.decode(batch)
    assert unchanged(on, before)
    on.batch_config = config
    on.decode(batch)
    with pytest.raises(ValueError, match=r"the embedding rows have shape \[2, 3\], \[2, 16\] is needed"):
        on.batch(embd=np.zeros((2, 3)))


@pytest.mark.slow
def test_a_warm_up_with_embedding_rows_leaves_nothing_to_compile():
    on = engine(False)
    report = on.warmup(embd=True)
    assert {program.shape for program in report.programs} >= {"batch 16|embd 16", "2x4|kv 16|out 4|embd 16"}
    with forbid_compilations():
        logits_of(on, token=IDS)
        logits_of(on, embd=table()[IDS])
        on.decode(on.batch(IDS[:2], embd=table()[IDS[:2]], row_type=[ROW_ID, ROW_EMBD]), causal=False)
        on.decode(on.batch(IDS[:2], seq_id=[0, 1], output=[True] * 2), embd_all=True)


class Continued(Decoder):
    """A decoder whose rows come from the hidden states of another one, as heads that draft tokens do."""

    n_embd_state = 16

    def __call__(self, ubatch, kv, access):
        kind = np.full(ubatch.bucket.n_rows, ROW_EMBD, np.int32)
        return super().__call__(dataclasses.replace(ubatch, embd=ubatch.state, type=kind), kv, access)


@functools.cache
def continued(kv_unified):
    """An engine on it, of the sizes and ladders of `engine`."""
    other = engine(kv_unified)
    sizes = EngineConfig(n_ctx=32, kv_pad=16, n_batch=16, n_ubatch=4, n_seq_max=2, kv_unified=kv_unified)
    ladders = {"rows": BucketLadder((4,)), "n_outputs": BucketLadder((4,))}
    return one_capacity(
        Engine(Continued(SCALED, rngs=nnx.Rngs(0)), None, sizes, n_kv=other.buckets.n_kv[0], **ladders)
    )


@pytest.mark.parametrize("kv_unified", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_state_rows_are_at_the_models_hand(kv_unified):
    on, want = continued(kv_unified), logits_of(engine(kv_unified), token=IDS)
    rows = {"token": np.zeros_like(IDS), "state": table()[IDS]}
    np.testing.assert_allclose(logits_of(on, **rows), want, atol=1e-5)
    builder = on.builder()
    for token, seq in zip(IDS, SEQS, strict=True):
        builder.add_token(seq, id=0, state=table()[token], output=True)
    on.clear()
    outputs = on.decode(builder.build())
    np.testing.assert_allclose([outputs.logits(i) for i in range(len(IDS))], want, atol=1e-5)


def test_state_rows_that_are_refused():
    on = continued(True)
    on.clear()
    before = state(on)
    for rows, words in (
        (np.zeros((2, 15)), r"the hidden-state rows have shape \[2, 15\], \[2, 16\] is needed"),
        (np.full((2, 16), np.nan), r"the hidden-state rows hold nan at \[0, 0\], finite float32 numbers are"),
        ([[1.0] * 16, [1.0]], "the hidden-state rows can't be read: "),
    ):
        with pytest.raises(ValueError, match=words):
            on.batch([1, 2], state=rows)
    builder = on.builder()
    builder.add_token(0, id=1, state=np.zeros(16))
    builder.add_token(0, id=1)
    with pytest.raises(InvalidBatchError, match="token 1 differs from the others: 1 row with a hidden state"):
        builder.build()
    with pytest.raises(ValueError, match=r"the hidden-state rows have shape \[1, 16\], \[1, 0\] is needed"):
        engine(True).batch([1], state=np.zeros((1, 16)))
    assert unchanged(on, before)


def test_rows_that_are_refused():
    on = engine(True)
    for rows, words in (
        (
            np.full((2, 16), np.inf),
            r"the embedding rows hold inf at \[0, 0\], finite float32 numbers are needed",
        ),
        (np.full((2, 16), 1e39), "the embedding rows hold inf"),
        ([[1.0] * 16, [1.0]], "the embedding rows can't be read: "),
        ([["a"] * 16], "the embedding rows have dtype <U1, real numbers are needed"),
        ([[None] * 16], "the embedding rows have dtype object, real numbers are needed"),
        (np.ones((2, 16), bool), "the embedding rows have dtype bool, real numbers are needed"),
        (np.ones((2, 16, 1)), r"the embedding rows have shape \[2, 16, 1\], \[2, 16\] is needed"),
        (5, "embd is 5, an array or a list is needed"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            on.batch(embd=rows)
    with pytest.raises(ValueError, match="row_type of token 0 is 2, bits of 1"):
        on.batch([1], row_type=[ROW_EMBD])
    on.clear()
    for kind, words in (
        ([0, 1], "token 0 has neither an id nor"),
        ([3, 1], "token 1 differs from the others"),
    ):
        with pytest.raises(InvalidBatchError, match=words):
            on.decode(on.batch([1, 2], embd=np.ones((2, 16)), row_type=kind))


@pytest.mark.slow
def test_a_warm_up_is_for_state_rows_too():
    on = continued(True)
    on.clear()
    shapes = {program.shape for program in on.warmup().programs}
    assert shapes >= {"batch 16", "batch 16|state 16", "1x4|kv 32|out 4|state 16"}
    with forbid_compilations():
        logits_of(on, token=IDS, state=table()[IDS])
