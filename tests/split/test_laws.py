"""Laws of all three splits, against the oracle and against themselves."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.split import cases, oracle
from ubjax import Batch, count_compilations, split_equal, split_seq, split_simple
from ubjax.split.plan import SplitPlan

SPLITS: dict[str, tuple[Callable[..., SplitPlan], Callable[..., oracle.Cut]]] = {
    "simple": (split_simple, oracle.simple),
    "equal": (
        functools.partial(split_equal, sequential=False),
        functools.partial(oracle.equal, sequential=False),
    ),
    "equal sequential": (
        functools.partial(split_equal, sequential=True),
        functools.partial(oracle.equal, sequential=True),
    ),
    "seq": (split_seq, oracle.seq),
}
all_splits = pytest.mark.parametrize(("split", "slow"), SPLITS.values(), ids=SPLITS.keys())


def batch_of(sets: list[Any]) -> Batch:
    return oracle.batch_of(sets, cases.N_SEQ_MAX, cases.CAPACITY)


def assert_same(a: SplitPlan, b: SplitPlan) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@all_splits
@given(sets=cases.any_sets, n_ubatch=cases.n_ubatch)
def test_equals_the_oracle(split, slow, sets, n_ubatch):
    assert oracle.cut_of(split(batch_of(sets), n_ubatch)) == slow(sets, n_ubatch)


@all_splits
@given(sets=cases.any_sets, n_ubatch=cases.n_ubatch)
def test_every_token_once_within_the_limit_and_order_told_truly(split, slow, sets, n_ubatch):
    plan = split(batch_of(sets), n_ubatch)
    cut = oracle.cut_of(plan)
    rows = sorted(row for ubatch, _ in cut for row in ubatch)
    refused = slow(sets, n_ubatch) == []
    assert rows == ([] if refused else list(range(len(sets))))
    assert int(plan.n_used) == len(rows)
    assert all(1 <= len(ubatch) <= n_ubatch for ubatch, _ in cut)
    assert bool(plan.keeps_order) == oracle.keeps_order(sets, cut)
    if plan.equal_seqs:
        assert all(len(ubatch) % n_seqs == 0 for ubatch, n_seqs in cut)


@all_splits
@given(sets=cases.disjoint, n_ubatch=cases.n_ubatch)
def test_disjoint_sets_keep_their_order(split, slow, sets, n_ubatch):
    assert oracle.keeps_order(sets, oracle.cut_of(split(batch_of(sets), n_ubatch)))


@all_splits
@settings(max_examples=20)
@given(sets=cases.any_sets)
def test_vmap_over_limits(split, slow, sets):
    batch, limits = batch_of(sets), [1, 2, 5, 24]
    plans = jax.vmap(lambda n: split(batch, n))(jnp.asarray(limits, jnp.int32))
    for i, n_ubatch in enumerate(limits):
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], plans), split(batch, n_ubatch))


@all_splits
def test_vmap_over_batches_with_and_without_overlap(split, slow):
    batches = [batch_of(sets) for sets in ([{0}, {1}, {0}, {1, 2}], [3, 1, 1, 3, 2, 30], [{0, 1}, {0}], [33])]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    plans = jax.vmap(lambda batch: split(batch, 3))(stacked)
    for i, batch in enumerate(batches):
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], plans), split(batch, 3))


@all_splits
def test_plain_equals_jit(split, slow):
    for sets in ([1, 0, 1], [{0, 1}, {1}, {0, 1}]):
        batch = oracle.batch_of(sets)
        with jax.disable_jit():
            plain = split(batch, 2)
        assert_same(plain, split(batch, 2))


@all_splits
def test_a_batch_made_inside_jit(split, slow):
    @jax.jit
    def decode_step(ids):
        rows = jnp.arange(4, dtype=jnp.int32)
        return split(
            Batch(
                token=ids,
                embd=jnp.zeros((4, 0)),
                state=jnp.zeros((4, 0)),
                type=jnp.ones_like(ids),
                pos=ids[None],
                seq=jnp.uint32(1) << rows.astype(jnp.uint32)[:, None],
                output=rows >= 0,
                order=rows,
                n_tokens=jnp.int32(3),
            ),
            2,
        )

    assert_same(decode_step(jnp.zeros(4, jnp.int32)), split(oracle.batch_of([0, 1, 2], capacity=4), 2))


@all_splits
@given(sets=cases.any_sets)
@settings(max_examples=20)
def test_padding_rows_are_never_looked_at(split, slow, sets):
    batch = batch_of(sets)
    rng = np.random.default_rng(len(sets))
    padding = np.arange(cases.CAPACITY) >= len(sets)
    poisoned = Batch(
        token=np.where(padding, 77, batch.token),
        embd=batch.embd,
        state=batch.state,
        type=np.where(padding, 7, batch.type),
        pos=np.where(padding[None], -5, batch.pos),
        seq=np.where(padding[:, None], rng.integers(0, 2**32, batch.seq.shape, np.uint32), batch.seq),
        output=batch.output | padding,
        order=batch.order,
        n_tokens=batch.n_tokens,
    )
    assert_same(split(poisoned, 4), split(batch, 4))


@all_splits
def test_one_program_for_every_limit(split, slow):
    batch = oracle.batch_of([0, 1, 0, 2, 2, 0, 1], capacity=19)
    with count_compilations() as count:
        cuts = [
            oracle.cut_of(split(batch, n)) for n in (1, 2, 3, np.int32(5), np.int64(7), jnp.int32(8), 512)
        ]
    assert count.total == 1
    assert [max(len(ubatch) for ubatch, _ in cut) for cut in cuts][:3] == [1, 2, 3]


@all_splits
def test_abandoned_half_way_and_begun_again_sees_all_tokens(split, slow):
    batch = oracle.batch_of([0, 1, 0, 1, 1])
    first = split(batch, 2)
    half = first.order[: first.offset[1]]
    assert len(half) < 5
    assert oracle.cut_of(split(batch, 2)) == oracle.cut_of(first)
    assert int(split(batch, 2).n_used) == 5


@all_splits
@pytest.mark.parametrize("n_ubatch", [0, -1, 2**31])
def test_a_limit_out_of_range(split, slow, n_ubatch):
    with pytest.raises(ValueError, match=f"n_ubatch is {n_ubatch}, a size in "):
        split(oracle.batch_of([0]), n_ubatch)


@all_splits
@pytest.mark.parametrize("sets", [[0, 1, 0], [{0, 1}, {1}]])
def test_a_limit_below_one_as_data_is_a_failed_split(split, slow, sets):
    plan = split(oracle.batch_of(sets), jnp.int32(0))
    assert oracle.cut_of(plan) == []
    assert int(plan.n_used) == 0


@all_splits
def test_no_callback(split, slow):
    batch = oracle.batch_of([{0}, {1, 2}])
    program = str(jax.make_jaxpr(lambda n: split(batch, n))(jnp.int32(2)))
    assert "select_n" in program
    assert "callback" not in program
    assert "callback" in str(
        jax.make_jaxpr(lambda n: jax.debug.callback(print, n))(1)
    )  # so it would be called
