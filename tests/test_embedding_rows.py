"""Rows that are embeddings or states: looked up or taken as they are, alone and mixed, and nothing else changes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG, one_capacity, state, unchanged
from ubjax import Batch, BatchConfig, BucketLadder, Engine, EngineConfig, InvalidBatchError, MemoryConfig
from ubjax.analysis import forbid_compilations
from ubjax.batch import ROW_EMBD, ROW_ID
from ubjax.buckets import Bucket
from ubjax.control import plan_decode, stage
from ubjax.memory.cells import Cells
from ubjax.memory.init_batch import CAUSAL
from ubjax.models.decoder import Decoder
from ubjax.step import Step

IDS = np.array([5, 1, 30, 7, 7, 2, 11, 9, 60, 0], np.int32)
SEQS = [0, 1, 0, 0, 1, 0, 1, 1, 0, 0]
# Looked-up embeddings are scaled, rows are not: what is looked up and what is given differ by that factor.
SCALED = dataclasses.replace(CONFIG, scale_embd=True)


@functools.cache
def model():
    return Decoder(SCALED, rngs=nnx.Rngs(0))


def table():
    return np.asarray(model().embedding[...]) * np.float32(SCALED.n_embd**0.5)


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

    def __call__(self, ubatch, kv, access):
        kind = np.full(ubatch.bucket.n_rows, ROW_EMBD, np.int32)
        return super().__call__(dataclasses.replace(ubatch, embd=ubatch.state, type=kind), kv, access)


def test_state_rows_are_at_the_models_hand():
    memory = MemoryConfig(n_cells=16, n_seq_max=2, unified=False)
    config = BatchConfig(n_vocab=61, n_batch=10, n_seq_max=2, n_embd_state=16)
    continued = Continued(SCALED, rngs=nnx.Rngs(0))

    def run(model, rows):
        step, cells, found = Step(model, (memory,)), (Cells.empty(memory),), {}
        batch = Batch.from_arrays(IDS, **rows, seq_id=SEQS, output=[True] * 10, config=config)
        prepared, _ = plan_decode(batch, cells, np.int32(8), CAUSAL, config, (memory,), 8)
        kv = step.new_kv((16,))
        for k in range(int(prepared.plan.n_ubatches)):
            at = (batch, prepared.plan, prepared.slot, np.int32(k), prepared.causal)
            staged = stage(prepared.cells, *at, Bucket(n_blocks=2, n_block_rows=4, n_outputs=8), (memory,))
            logits, kv = step(kv, staged)
            ubatch = jax.device_get(staged.ubatch)
            rows = ubatch.batch_idx[ubatch.out_rows[ubatch.out_rows < 8]]
            found |= dict(zip(rows.tolist(), np.asarray(logits), strict=False))
        return np.stack([found[i] for i in range(10)])

    want = run(Decoder(SCALED, rngs=nnx.Rngs(0)), {})
    np.testing.assert_allclose(run(continued, {"state": table()[IDS]}), want, atol=1e-5)
