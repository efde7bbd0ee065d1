from tests.split import oracle
from ubjax import split_seq


def test_the_drawn_example():
    plan = split_seq(oracle.batch_of([0, 1, 0, 0, 1]), 2)
    assert plan.order.tolist() == [0, 2, 1, 4, 3]
    assert plan.offset.tolist() == [0, 2, 4, 5, 5, 5]
    assert plan.n_seqs.tolist() == [1, 1, 1, 0, 0]
    assert plan.equal_seqs
    assert plan.keeps_order


def test_the_set_of_a_ubatch_only_shrinks():
    sets = [{0, 1}, {0}, {0, 1}, {0}, {1}]
    assert oracle.cut_of(split_seq(oracle.batch_of(sets), 9)) == [([0, 1, 3], 1), ([2, 4], 1)]


def test_a_later_row_before_an_earlier_one_is_told():
    plan = split_seq(oracle.batch_of([{0, 1}, {0}, {0, 1}, {0}]), 9)
    assert oracle.cut_of(plan) == [([0, 1, 3], 1), ([2], 1)]
    assert not plan.keeps_order
