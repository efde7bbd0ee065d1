import jax
import numpy as np
from hypothesis import given

from tests.split import cases, oracle
from ubjax.split.groups import are_disjoint, by_first_seq, by_set


def test_the_drawn_example():
    batch = oracle.batch_of([1, 0, 1, 1, 0], capacity=6)
    groups = by_first_seq(batch.seq, batch.order, batch.n_tokens)
    assert groups.rows.tolist() == [1, 4, 0, 2, 3, 5]
    assert groups.start.tolist() == [0, 2, *[5] * 30]
    assert groups.end.tolist() == [2, *[5] * 31]
    assert groups.of_row.tolist() == [1, 0, 1, 1, 0, 32]


@jax.jit
def disjoint(batch):
    return are_disjoint(batch.seq, by_first_seq(batch.seq, batch.order, batch.n_tokens))


@given(sets=cases.any_sets)
def test_disjoint_means_every_two_sets_equal_or_apart(sets):
    batch = oracle.batch_of(sets, cases.N_SEQ_MAX, cases.CAPACITY)
    assert bool(disjoint(batch)) == all(a == b or not a & b for a in sets for b in sets)


@given(sets=cases.any_sets)
def test_groups_by_set_are_the_rows_of_equal_sets_in_order(sets):
    batch = oracle.batch_of(sets, cases.N_SEQ_MAX, cases.CAPACITY)
    groups = jax.tree.map(np.asarray, jax.jit(by_set)(batch.seq, batch.n_tokens))
    found = [
        groups.rows[start:end].tolist()
        for start, end in zip(groups.start, groups.end, strict=True)
        if start < end
    ]
    assert sorted(found) == sorted([i for i, s in enumerate(sets) if s == wanted] for wanted in set(sets))
    for group, (start, end) in enumerate(zip(groups.start, groups.end, strict=True)):
        assert (groups.of_row[groups.rows[start:end]] == group).all()
