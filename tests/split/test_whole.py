import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from tests.split import cases, oracle
from ubjax import split_whole


def first_fit(sets, n_ubatch):
    """Slow and plain: sequences by id, each into the first ubatch with room."""
    ubatches = []
    for seq in sorted({seq for ids in sets for seq in ids}):
        rows = [i for i, ids in enumerate(sets) if seq in ids]
        room = [ubatch for ubatch in ubatches if len(ubatch) + len(rows) <= n_ubatch]
        if room:
            room[0] += rows
        elif len(rows) <= n_ubatch:
            ubatches.append(rows)
    return ubatches


def test_the_drawn_example():
    plan = split_whole(oracle.batch_of([0, 0, 0, 1, 1, 1, 2], capacity=8), 4)
    assert plan.order.tolist() == [0, 1, 2, 6, 3, 4, 5, 8]
    assert plan.offset.tolist() == [0, 4, 7, 7, 7, 7, 7, 7, 7]
    assert plan.n_seqs.tolist() == [2, 1, 0, 0, 0, 0, 0, 0]
    assert (int(plan.n_ubatches), int(plan.n_used)) == (2, 7)
    assert plan.keeps_order and not plan.equal_seqs


@given(sets=cases.single, n_ubatch=cases.n_ubatch)
def test_whole_sequences_never_above_the_limit(sets, n_ubatch):
    plan = split_whole(oracle.batch_of(sets, n_seq_max=cases.N_SEQ_MAX, capacity=cases.CAPACITY), n_ubatch)
    cut = [list(rows) for rows, _ in oracle.cut_of(plan)]
    assert cut == first_fit(sets, n_ubatch)
    assert all(0 < len(rows) <= n_ubatch for rows in cut)
    assert int(plan.n_used) == sum(map(len, cut))


def test_what_can_not_be_packed():
    coupled = split_whole(oracle.batch_of([{0, 1}, {0}, {1}]), 4)
    assert (int(coupled.n_ubatches), int(coupled.n_used)) == (0, 0)
    too_long = split_whole(oracle.batch_of([0, 1, 1, 1]), 2)
    assert (int(too_long.n_ubatches), int(too_long.n_used)) == (1, 1)
    with pytest.raises(ValueError, match="n_ubatch is 0, a size in"):
        split_whole(oracle.batch_of([0]), 0)


def test_vmap_over_limits():
    batch, limits = oracle.batch_of([3, 1, 1, 3, 2, 3]), [1, 2, 3, 9]
    plans = jax.vmap(lambda n: split_whole(batch, n))(jnp.asarray(limits, jnp.int32))
    for i, n_ubatch in enumerate(limits):
        alone = split_whole(batch, n_ubatch)
        for one, many in zip(jax.tree.leaves(alone), jax.tree.leaves(plans), strict=True):
            np.testing.assert_array_equal(many[i], one)
