"""Ladders pick the smallest size that holds and raise above the top."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.buckets import Bucket, BucketLadder, Buckets

BUCKETS = Buckets.default(n_batch=2048, n_ubatch=512, n_streams=6, n_cells=4096, kv_pad=256)


@pytest.mark.parametrize(
    ("ladder", "sizes"),
    [
        (BucketLadder.geometric(512, 64), (64, 128, 256, 512)),
        (BucketLadder.geometric(6), (1, 2, 4, 6)),
        (BucketLadder.geometric(1), (1,)),
        (BucketLadder.geometric(10, bottom=64), (10,)),
        (BUCKETS.n_outputs, (1, 8, 64, 512)),
        (BUCKETS.capacity, (64, 2048)),
        (BUCKETS.n_kv, (256, 512, 1024, 2048, 4096)),
    ],
)
def test_geometric_ladders_end_at_the_top(ladder, sizes):
    assert ladder.sizes == sizes


@given(st.integers(1, 3000), st.integers(1, 64), st.integers(2, 8), st.data())
def test_pick_is_the_smallest_that_holds(top, bottom, factor, data):
    ladder = BucketLadder.geometric(top, bottom, factor)
    n = data.draw(st.integers(0, top))
    size = ladder.pick(n)
    assert size >= n and all(other < n for other in ladder.sizes if other < size)


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 2), (3, 1)])
def test_sizes_must_ascend(sizes):
    with pytest.raises(ValueError, match="strictly ascending"):
        BucketLadder(sizes)


def test_above_the_top_is_an_error():
    with pytest.raises(
        ValueError, match=r"513 does not fit any bucket of .*: a size in \[0, 512\] is needed"
    ):
        BUCKETS.n_rows.pick(513)
    with pytest.raises(ValueError, match="-1 does not fit"):
        BUCKETS.n_rows.pick(-1)
    with pytest.raises(ValueError, match="sizes of at least 1"):
        BucketLadder.geometric(0)


def test_buckets_of_ubatches():
    equal = BUCKETS.ubatch(n_tokens=15, n_seqs=5, n_outputs=3, equal_seqs=True)
    assert equal == Bucket(n_blocks=6, n_block_rows=4, n_outputs=8) and equal.n_rows == 24
    flat = BUCKETS.ubatch(n_tokens=15, n_seqs=15, n_outputs=0, equal_seqs=False)
    assert flat == Bucket(n_blocks=1, n_block_rows=16, n_outputs=0)
    few = BUCKETS.ubatch(n_tokens=3, n_seqs=3, n_outputs=3, equal_seqs=False)
    assert few == Bucket(n_blocks=1, n_block_rows=4, n_outputs=4)  # outputs are cut at the rows
