"""PlanView against hand-made plans: shapes, buckets, padding, order."""

import dataclasses

import numpy as np
import pytest

from ubjax import Batch, BatchConfig
from ubjax.buckets import Buckets
from ubjax.split import split_equal, split_seq, split_simple
from ubjax.viz.plan_view import BatchView, PlanView

CONFIG = BatchConfig(n_vocab=1, n_batch=64, n_seq_max=40)


def make(seqs, output=None):
    return Batch.from_arrays(
        np.zeros(len(seqs), np.int32), config=CONFIG, seq_id=seqs, output=output, capacity=64
    )


def view(plan, batch, n_ubatch=8, n_streams=40):
    buckets = Buckets.default(n_batch=64, n_ubatch=n_ubatch, n_streams=n_streams, n_cells=(1,), kv_pad=1)
    return PlanView(BatchView.of(batch), plan, buckets)


EXAMPLE = make([0] * 5 + [1] * 5 + [2] * 5 + [3])


def test_rectangles_of_the_worked_example():
    plan = view(split_equal(EXAMPLE, 8, sequential=True), EXAMPLE, n_streams=4)
    assert [(u.n_seqs, u.n_seq_tokens, u.n_tokens) for u in plan] == [(4, 1, 4), (3, 2, 6), (3, 2, 6)]
    assert [u.batch_idxs.tolist() for u in plan] == [
        [0, 5, 10, 15],
        [1, 2, 6, 7, 11, 12],
        [3, 4, 8, 9, 13, 14],
    ]
    assert [u.seq_id_unq.tolist() for u in plan] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert [(u.bucket.n_blocks, u.bucket.n_block_rows) for u in plan] == [(4, 1), (4, 2), (4, 2)]
    assert [u.n_outputs for u in plan] == [1, 0, 0]
    assert (plan.n_shapes, plan.n_buckets, plan.n_rows, plan.n_padded, plan.fill) == (2, 2, 20, 4, 0.8)


def test_an_unequal_ubatch_is_one_block():
    plan = view(split_simple(EXAMPLE, 6), EXAMPLE)
    assert [(u.n_seqs, u.n_seq_tokens, u.block_tokens) for u in plan] == [(6, 1, 6), (6, 1, 6), (4, 1, 4)]
    assert [(u.bucket.n_blocks, u.bucket.n_block_rows) for u in plan] == [(1, 8), (1, 8), (1, 4)]
    assert (plan.n_shapes, plan.n_buckets, plan.n_padded) == (2, 2, 4)


def test_different_shapes_may_share_a_bucket():
    batch = make([0] * 5 + [1] * 6 + [2] * 7)
    plan = view(split_seq(batch, 8), batch)
    assert (plan.n_shapes, plan.n_buckets, plan.n_rows) == (3, 1, 24)


def test_outputs_are_counted_by_ubatch():
    batch = make([0, 0, 1, 1, 1], output=[True, False, True, True, False])
    assert [u.n_outputs for u in view(split_seq(batch, 8), batch)] == [1, 2]


def test_the_sets_of_all_words_are_read():
    batch = make([[39, 0], [31, 32], [7]])
    host = BatchView.of(batch)
    assert host.sequences().tolist() == [0, 7, 31, 32, 39]
    assert host.sequences(np.asarray([1])).tolist() == [31, 32]
    assert host.first_seq.tolist() == [0, 31, 7]
    assert host.n_seqs.tolist() == [2, 2, 1]


def test_padding_of_the_batch_is_never_seen():
    garbage = EXAMPLE.seq.copy()
    garbage[16:] = 0xFFFFFFFF
    host = BatchView.of(dataclasses.replace(EXAMPLE, seq=garbage))
    assert host.n_tokens == 16
    assert host.sequences().tolist() == [0, 1, 2, 3]


def test_a_failed_split_has_no_ubatch():
    batch = make([[0, 1], [0], [1]])
    plan = view(split_equal(batch, 8, sequential=True), batch)
    assert (len(plan), plan.n_used, plan.n_shapes, plan.n_rows, plan.fill) == (0, 0, 0, 0, 0.0)
    with pytest.raises(IndexError, match="there is no ubatch 0, the plan has 0"):
        plan[0]


def test_the_row_that_breaks_the_order_is_named():
    # the chosen sets are {1, 2, 3} and {0}: token 4 of sequence 0 comes before token 3, whose set {0, 3} has to wait
    batch = make([[1, 2, 3], [1], [1], [0, 3], [0]])
    plan = view(split_equal(batch, 2, sequential=False), batch)
    assert [u.batch_idxs.tolist() for u in plan] == [[0, 4], [1, 3], [2]]
    assert not plan.keeps_order
    assert plan.first_disorder() == (0, 4, 3)
    kept = view(split_simple(batch, 2), batch)
    assert kept.keeps_order
    assert kept.first_disorder() is None


def test_same_cut_looks_at_rows_and_ubatches():
    equal = view(split_equal(EXAMPLE, 8, sequential=True), EXAMPLE)
    assert equal.same_cut(view(split_equal(EXAMPLE, 8, sequential=False), EXAMPLE))
    assert not equal.same_cut(view(split_simple(EXAMPLE, 8), EXAMPLE))
    assert not view(split_simple(EXAMPLE, 8), EXAMPLE).same_cut(view(split_simple(EXAMPLE, 4), EXAMPLE))
