import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.split import cases, oracle
from ubjax import split_equal


def lengths_of(cut: oracle.Cut) -> list[tuple[int, int]]:
    return [(n_seqs, len(rows) // n_seqs) for rows, n_seqs in cut]


@pytest.mark.parametrize("sequential", [False, True])
def test_interleaved_three_by_three_is_sequence_major(sequential):
    plan = split_equal(oracle.batch_of([0, 1, 2] * 3), 9, sequential=sequential)
    assert plan.order.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert plan.offset.tolist() == [0, *[9] * 9]
    assert plan.n_seqs.tolist() == [3, *[0] * 8]
    assert plan.equal_seqs


def test_the_plan_drawn_in_its_docstring():
    plan = split_equal(oracle.batch_of([0, 0, 0, 1, 1, 2]), 4, sequential=True)
    assert plan.order.tolist() == [0, 3, 5, 1, 4, 2]
    assert plan.offset.tolist() == [0, 3, 5, 6, 6, 6, 6]
    assert plan.n_seqs.tolist() == [3, 2, 1, 0, 0, 0]


@pytest.mark.parametrize("sequential", [False, True])
def test_lengths_5_5_5_1_make_three_ubatches(sequential):
    batch = oracle.batch_of(np.repeat(np.arange(4), [5, 5, 5, 1]).tolist())
    assert lengths_of(oracle.cut_of(split_equal(batch, 8, sequential=sequential))) == [(4, 1), (3, 2), (3, 2)]


def test_one_token_sequences_never_exceed_the_limit():
    batch = oracle.batch_of(list(range(5)))
    assert lengths_of(oracle.cut_of(split_equal(batch, 4, sequential=False))) == [(4, 1), (1, 1)]


def test_runs_drawn_in_rectangles():
    plan = split_equal(oracle.batch_of([0, 0, 0, 0, 1, 1]), 4, sequential=False)
    assert oracle.cut_of(plan) == [([0, 1, 4, 5], 2), ([2, 3], 1)]


@pytest.mark.parametrize(
    ("ids", "cut"),
    [
        # 0 at row 0, then 1 at its row 3, 2 at row 4, none of 3 behind row 4
        ([0, 2, 3, 1, 2, 0, 1], [([0, 5, 3, 6, 1, 4], 3), ([2], 1)]),
        # ids descend by first appearance: every chain ends at once
        ([3, 2, 1, 0], [([0], 1), ([1], 1), ([2], 1), ([3], 1)]),
        # 1 is refused at row 0 of the second ubatch's scan only until 0 is taken
        ([1, 0, 1, 0], [([0, 2], 1), ([1, 3], 1)]),
        # ids that are not neighbours never share a ubatch
        ([0, 2, 0, 2], [([0, 2], 1), ([1, 3], 1)]),
    ],
)
def test_sequential_chains(ids, cut):
    assert oracle.equal([frozenset({s}) for s in ids], 9, sequential=True) == cut
    assert oracle.cut_of(split_equal(oracle.batch_of(ids), 9, sequential=True)) == cut


def test_a_set_refused_early_is_taken_later_in_the_same_scan():
    ids = [0, 2, 1, 2]  # row 1 comes before 1 is taken, row 3 behind it; the rows taken start with row 1
    assert oracle.cut_of(split_equal(oracle.batch_of(ids), 9, sequential=True)) == [([0, 2, 1], 3), ([3], 1)]


def test_sequential_refuses_a_row_in_several_sequences():
    plan = split_equal(oracle.batch_of([{0}, {1, 2}, {0}]), 4, sequential=True)
    assert oracle.cut_of(plan) == []
    assert int(plan.n_used) == 0


def test_overlapping_sets_can_turn_the_order_of_a_sequence_round():
    sets = [{0, 1}, {0}, {1}, {0, 1}]
    plan = split_equal(oracle.batch_of(sets), 4, sequential=False)
    assert oracle.cut_of(plan) == [([0, 3], 1), ([1, 2], 2)]
    assert not plan.keeps_order


@pytest.mark.parametrize(
    ("ids", "n_keep_tail", "cut"),
    [
        # the only set: 5 + 1 would strand 1 row of 6, K = 2 wants 2 left
        ([0] * 6, 2, [([0, 1, 2, 3], 1), ([4, 5], 1)]),
        # without the rule
        ([0] * 6, 0, [([0, 1, 2, 3, 4], 1), ([5], 1)]),
        # set 1 would be stranded with one row: put back, 0 goes alone and is used up
        ([0, 0, 1, 1, 1], 2, [([0, 1], 1), ([2, 3, 4], 1)]),
        # set 0 would be stranded itself: alone, to its end
        ([0, 0, 0, 1, 1], 2, [([0, 1, 2], 1), ([3, 4], 1)]),
    ],
)
def test_keep_tail(ids, n_keep_tail, cut):
    assert oracle.equal([frozenset({s}) for s in ids], 5, n_keep_tail, sequential=True) == cut
    for sequential in (False, True):
        assert oracle.cut_of(split_equal(oracle.batch_of(ids), 5, n_keep_tail, sequential=sequential)) == cut


@pytest.mark.parametrize("sequential", [False, True])
@given(sets=cases.any_sets, n_ubatch=st.integers(2, 26), n_keep_tail=st.integers(1, 6))
def test_keep_tail_equals_the_oracle_and_strands_nobody(sequential, sets, n_ubatch, n_keep_tail):
    n_keep_tail = min(n_keep_tail, n_ubatch - 1)
    batch = oracle.batch_of(sets, cases.N_SEQ_MAX, cases.CAPACITY)
    cut = oracle.cut_of(split_equal(batch, n_ubatch, n_keep_tail, sequential=sequential))
    assert cut == oracle.equal(sets, n_ubatch, n_keep_tail, sequential=sequential)
    left = {s: sets.count(s) for s in sets}
    for rows, n_seqs in cut:
        length = len(rows) // n_seqs
        for s in (sets[row] for row in rows[::length]):
            left[s] -= length
            assert left[s] == 0 or left[s] >= n_keep_tail


@pytest.mark.parametrize("sequential", [False, True])
@given(sets=cases.any_sets, n_ubatch=st.integers(1, 26), n_set_rows=st.integers(1, 4))
def test_a_limit_for_the_rows_of_a_set_equals_the_oracle(sequential, sets, n_ubatch, n_set_rows):
    batch = oracle.batch_of(sets, cases.N_SEQ_MAX, cases.CAPACITY)
    cut = oracle.cut_of(split_equal(batch, n_ubatch, 0, n_set_rows, sequential=sequential))
    assert cut == oracle.equal(sets, n_ubatch, 0, sequential=sequential, n_set_rows=n_set_rows)
    assert all(len(rows) <= n_seqs * n_set_rows for rows, n_seqs in cut)


@pytest.mark.parametrize("sequential", [False, True])
def test_a_limit_for_the_rows_of_a_set_out_of_range(sequential):
    batch = oracle.batch_of([0, 0, 0, 1])
    with pytest.raises(ValueError, match="n_set_rows is 0, a size in"):
        split_equal(batch, 4, 0, 0, sequential=sequential)
    assert oracle.cut_of(split_equal(batch, 4, 0, jnp.int32(0), sequential=sequential)) == []
    assert oracle.cut_of(split_equal(batch, 4, 1, 2, sequential=sequential)) == []  # not with a tail


@pytest.mark.parametrize("sequential", [False, True])
def test_keep_tail_out_of_range(sequential):
    batch = oracle.batch_of([0, 0])
    with pytest.raises(ValueError, match="n_keep_tail is 4, less than n_ubatch = 4 is needed"):
        split_equal(batch, 4, 4, sequential=sequential)
    with pytest.raises(ValueError, match="n_keep_tail is -1, a size in"):
        split_equal(batch, 4, -1, sequential=sequential)
    assert oracle.cut_of(split_equal(batch, jnp.int32(4), jnp.int32(4), sequential=sequential)) == []
    assert oracle.cut_of(split_equal(batch, 4, jnp.int32(-1), sequential=sequential)) == []


def test_a_capacity_beyond_the_sort_key():
    T = 2**23
    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(tuple(T if n == 2 else n for n in leaf.shape), leaf.dtype),
        oracle.batch_of([0, 1], n_seq_max=256),
    )
    with pytest.raises(ValueError, match="the capacity of the batch is 8388608, at most 8388607 rows"):
        jax.eval_shape(functools.partial(split_equal, sequential=False), batch, 4)


@pytest.mark.parametrize("sequential", [False, True])
def test_loops_run_once_per_ubatch_not_per_token(sequential):
    """The scans of fixed length in the program are the binary search alone."""
    T = 512
    batch = oracle.batch_of([0] * T)
    jaxpr = jax.make_jaxpr(lambda batch: split_equal(batch, 4, sequential=sequential))(batch)
    assert f"length={T}" not in str(jaxpr)


@given(order=st.permutations(range(12)))
def test_shuffled_ids_equal_the_oracle(order):
    sets = [frozenset({s % 6}) for s in order]
    for n_ubatch in (3, 12):
        expected = oracle.equal(sets, n_ubatch, sequential=True)
        assert oracle.cut_of(split_equal(oracle.batch_of(sets, 6), n_ubatch, sequential=True)) == expected
