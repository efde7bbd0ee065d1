"""take_ubatch: what lands where in a bucket, and what the padding holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.split import cases, oracle
from ubjax import Batch, BatchConfig, split_equal, split_seq, split_simple
from ubjax.batch import ROW_EMBD, ROW_ID, ROW_STATE
from ubjax.buckets import Bucket
from ubjax.ubatch import take_ubatch


def bucket(n_blocks: int, n_block_rows: int, n_outputs: int = 4) -> Bucket:
    return Bucket(n_blocks=n_blocks, n_block_rows=n_block_rows, n_outputs=n_outputs)


def test_the_drawn_example():
    plan = split_equal(oracle.batch_of([0, 1, 2, 0, 1, 2, 0, 2]), 6, sequential=True)
    assert plan.order.tolist()[:6] == [0, 3, 1, 4, 2, 5]
    batch = oracle.batch_of([0, 1, 2, 0, 1, 2, 0, 2])
    ubatch = take_ubatch(batch, plan, 0, bucket(4, 3))
    assert ubatch.batch_idx.tolist() == [0, 3, 8, 1, 4, 8, 2, 5, 8, 8, 8, 8]
    assert ubatch.place.tolist() == [0, 1, 8, 2, 3, 8, 4, 5, 8, 8, 8, 8]
    assert (int(ubatch.n_tokens), int(ubatch.n_seqs)) == (6, 3)


def media_batch(capacity: int = 7) -> Batch:
    """Six rows of three sequences with four positions each, no two numbers equal; some are embeddings."""
    config = BatchConfig(
        n_vocab=99, n_batch=9, n_seq_max=34, n_pos=4, n_embd=2, n_embd_state=3, allow_mixed=True
    )
    embedded = np.array([0, 1, 1, 0, 1, 0], bool)
    return Batch.from_arrays(
        np.arange(40, 46),
        embd=100 + np.arange(12.0).reshape(6, 2),
        state=200 + np.arange(18.0).reshape(6, 3),
        row_type=np.where(embedded, ROW_EMBD, ROW_ID),
        pos=1000 + np.arange(24).reshape(4, 6),
        seq_id=[[1], [1, 33], [0], [1], [0], [0]],
        output=[True, False, True, False, True, True],
        config=config,
        capacity=capacity,
    )


def test_every_field_and_its_padding():
    batch = media_batch()
    ubatch = take_ubatch(batch, split_simple(batch, 4), 1, bucket(1, 4, n_outputs=3))
    assert ubatch.batch_idx.tolist() == [4, 5, 7, 7]
    assert ubatch.place.tolist() == [4, 5, 7, 7]
    assert ubatch.valid.tolist() == [True, True, False, False]
    assert ubatch.token.tolist() == [0, 45, 0, 0]
    assert ubatch.type.tolist() == [ROW_EMBD | ROW_STATE, ROW_ID | ROW_STATE, 0, 0]
    assert ubatch.embd.tolist() == [[108, 109], [110, 111], [0, 0], [0, 0]]
    assert ubatch.state.tolist() == [[212, 213, 214], [215, 216, 217], [0, 0, 0], [0, 0, 0]]
    assert ubatch.seq.tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    assert ubatch.output.tolist() == [True, True, False, False]
    assert ubatch.out_rows.tolist() == [0, 1, 4]
    assert ubatch.seq_id_unq.tolist() == [0, *[64] * 63]
    assert ubatch.seq_idx.tolist() == [0, *[-1] * 63]
    assert (int(ubatch.n_tokens), int(ubatch.n_seqs), int(ubatch.n_seqs_unq)) == (2, 2, 1)


def test_sequences_are_sorted_and_know_their_place():
    batch = media_batch()
    ubatch = take_ubatch(batch, split_simple(batch, 6), 0, bucket(1, 8))
    assert ubatch.seq_id_unq.tolist()[:4] == [0, 1, 33, 64]
    assert int(ubatch.n_seqs_unq) == 3
    assert [int(ubatch.seq_idx[s]) for s in (0, 1, 2, 33, 63)] == [0, 1, -1, 2, -1]


def test_positions_stay_section_major_with_the_lengths_of_their_own():
    batch = media_batch()
    n_batch = int(batch.n_tokens)
    flat = np.asarray(batch.pos)[:, :n_batch].reshape(-1)
    plan = split_equal(batch, 4, sequential=False)
    for k in range(int(plan.n_ubatches)):
        ubatch = jax.tree.map(np.asarray, take_ubatch(batch, plan, k, bucket(4, 4)))
        rows, n = ubatch.batch_idx[ubatch.valid], int(ubatch.n_tokens)
        assert n < n_batch
        new = ubatch.pos[:, ubatch.valid].reshape(-1)
        for j in range(4):
            for i in range(n):
                assert new[j * n + i] == flat[j * n_batch + rows[i]]
        assert (ubatch.pos[:, ~ubatch.valid] == 0).all()


def test_blocks_before_the_first_are_padding():
    batch = oracle.batch_of([2, 3, 2, 3])
    plan = split_equal(batch, 8, sequential=True)
    ubatch = take_ubatch(batch, plan, 0, bucket(4, 3), first_block=2)
    assert ubatch.batch_idx.tolist() == [4] * 6 + [0, 2, 4, 1, 3, 4]
    assert ubatch.place.tolist() == [4] * 6 + [0, 1, 4, 2, 3, 4]


def test_one_sequence_set_fills_one_block():
    batch = oracle.batch_of([1, 0, 1])
    ubatch = take_ubatch(batch, split_seq(batch, 8), 0, bucket(1, 4))
    assert ubatch.batch_idx.tolist() == [0, 2, 3, 3]
    assert (int(ubatch.n_tokens), int(ubatch.n_seqs)) == (2, 1)


@pytest.mark.parametrize("k", [-1, 2, 3, 100])
def test_a_ubatch_that_is_not_there_is_padding(k):
    batch = oracle.batch_of([0, 1, 2])
    for plan in (split_simple(batch, 2), split_equal(batch, 2, sequential=True)):
        ubatch = take_ubatch(batch, plan, k, bucket(1, 2))
        assert not ubatch.valid.any()
        assert ubatch.batch_idx.tolist() == [3, 3]
        assert (int(ubatch.n_tokens), int(ubatch.n_seqs), int(ubatch.n_seqs_unq)) == (0, 0, 0)


def test_rows_without_room_are_left_out_and_missed():
    batch = oracle.batch_of([0, 1, 0, 1])
    plan = split_equal(batch, 4, sequential=True)
    for shape, rows in (((1, 2), [0, 2]), ((2, 1), [0, 1])):
        ubatch = take_ubatch(batch, plan, 0, bucket(*shape))
        assert ubatch.batch_idx.tolist() == rows
        assert int(ubatch.n_tokens) == 4 > ubatch.valid.sum()


def test_output_rows_beyond_the_bucket_are_left_out():
    batch = oracle.batch_of([0, 0, 0])
    batch = jax.tree.map(lambda leaf: np.ones_like(leaf) if leaf.dtype == bool else leaf, batch)
    plan = split_simple(batch, 3)
    assert take_ubatch(batch, plan, 0, bucket(1, 4, n_outputs=2)).out_rows.tolist() == [0, 1]
    assert take_ubatch(batch, plan, 0, bucket(1, 4, n_outputs=0)).out_rows.shape == (0,)


def test_padding_rows_of_the_batch_never_appear():
    clean = media_batch()
    padding = np.arange(7) >= 6
    poisoned = Batch(
        token=np.where(padding, 55, clean.token),
        embd=np.where(padding[:, None], np.nan, clean.embd),
        state=np.where(padding[:, None], np.nan, clean.state),
        type=np.where(padding, 7, clean.type),
        pos=np.where(padding[None], -9, clean.pos),
        seq=np.where(padding[:, None], np.uint32(2**32 - 1), clean.seq),
        output=clean.output | padding,
        order=clean.order,
        n_tokens=clean.n_tokens,
    )
    for k in (0, 1, 2):
        a, b = (take_ubatch(batch, split_simple(batch, 4), k, bucket(1, 8)) for batch in (clean, poisoned))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_array_equal(x, y)


@given(sets=cases.any_sets, n_ubatch=st.integers(1, 8))
def test_ubatches_together_are_the_batch(sets, n_ubatch):
    batch = oracle.batch_of(sets, cases.N_SEQ_MAX, cases.CAPACITY)
    for plan in (split_simple(batch, n_ubatch), split_equal(batch, n_ubatch, sequential=False)):
        ks = jnp.arange(cases.CAPACITY, dtype=jnp.int32)
        blocks = bucket(1, 8, 8) if not plan.equal_seqs else bucket(8, 8, 8)
        ubatches = jax.device_get(
            jax.vmap(lambda k, plan=plan, shape=blocks: take_ubatch(batch, plan, k, shape))(ks)
        )
        assert sorted(ubatches.batch_idx[ubatches.valid].tolist()) == list(range(len(sets)))
        assert ubatches.batch_idx[ubatches.valid].tolist() == np.asarray(plan.order)[: len(sets)].tolist()
        assert ubatches.token[ubatches.valid].tolist() == ubatches.batch_idx[ubatches.valid].tolist()
        assert ubatches.n_tokens.sum() == len(sets)
        shown = [
            rows[outputs[outputs < rows.size]]
            for rows, outputs in zip(ubatches.batch_idx, ubatches.out_rows, strict=True)
        ]
        assert np.concatenate(shown).tolist() == [len(sets) - 1]
