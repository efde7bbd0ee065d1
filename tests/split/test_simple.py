from tests.split import oracle
from ubjax import Batch, BatchConfig, split_equal, split_simple


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


def test_a_plan_shows_its_ubatches():
    config = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=4)
    batch = Batch.from_arrays(range(16), seq_id=[0] * 5 + [1] * 5 + [2] * 5 + [3], config=config)
    assert repr(split_equal(batch, 8, sequential=True)) == (
        "SplitPlan(3 ubatches: 4x1, 3x2, 3x2; 16 tokens, order [0, 5, 10, 15, 1, 2, 6, 7, 11, 12, 3, 4, 8, 9, 13, 14])"
    )
    assert repr(split_simple(batch, 7)).startswith("SplitPlan(3 ubatches: 7, 7, 2; 16 tokens, order [0, 1, 2")
