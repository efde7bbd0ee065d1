from tests.split import oracle
from ubjax import split_simple


def test_the_drawn_example():
    plan = split_simple(oracle.batch_of([0, 0, 1, 1, 0], capacity=6), 2)
    assert plan.order.tolist() == [0, 1, 2, 3, 4, 6]
    assert plan.offset.tolist() == [0, 2, 4, 5, 5, 5, 5]
    assert plan.n_seqs.tolist() == [2, 2, 1, 0, 0, 0]
    assert (int(plan.n_ubatches), int(plan.n_used)) == (3, 5)
    assert not plan.equal_seqs
    assert plan.keeps_order


def test_a_limit_beyond_the_batch_does_not_overflow():
    plan = split_simple(oracle.batch_of([0] * 3000), 2**31 - 1)
    assert [len(rows) for rows, _ in oracle.cut_of(plan)] == [3000]


def test_no_tokens():
    assert oracle.cut_of(split_simple(oracle.batch_of([], capacity=3), 2)) == []
