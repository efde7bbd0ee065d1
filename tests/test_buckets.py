"""Ladders pick the smallest size that holds and raise above the top."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import tiny_model
from ubjax import Engine, EngineConfig
from ubjax.buckets import Bucket, Buckets, EncoderBuckets
from ubjax.ladders import BucketLadder, RectangleLadder

BUCKETS = Buckets.default(n_batch=2048, n_ubatch=512, n_streams=6, n_cells=(4096, 1024), kv_pad=256)


@pytest.mark.parametrize(
    ("ladder", "sizes"),
    [
        (BucketLadder.geometric(512, 64), (64, 128, 256, 512)),
        (BucketLadder.geometric(6), (1, 2, 4, 6)),
        (BucketLadder.geometric(1), (1,)),
        (BucketLadder.geometric(10, bottom=64), (10,)),
        (BUCKETS.n_outputs, (8, 64, 512)),
        (BUCKETS.capacity, (512, 2048)),
        (BUCKETS.n_kv[0], (256, 512, 1024, 2048, 4096)),
        (BUCKETS.n_kv[1], (256, 512, 1024)),
    ],
)
def test_geometric_ladders_end_at_the_top(ladder, sizes):
    assert ladder.sizes == sizes


def test_a_window_cache_grows_with_the_full_one_as_far_as_it_goes():
    assert BUCKETS.kv_sizes() == ((256, 256), (512, 512), (1024, 1024), (2048, 1024), (4096, 1024))
    assert [BUCKETS.pick_kv(needed) for needed in ((0, 0), (257, 256), (100, 300), (1025, 1024))] == [
        *((256, 256), (512, 512), (512, 512), (2048, 1024))
    ]
    with pytest.raises(ValueError, match="4097 does not fit any bucket"):
        BUCKETS.pick_kv((4097, 1))


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
        BUCKETS.n_outputs.pick(513)
    with pytest.raises(ValueError, match="-1 does not fit"):
        BUCKETS.n_outputs.pick(-1)
    with pytest.raises(ValueError, match="sizes of at least 1"):
        BucketLadder.geometric(0)


def test_buckets_of_ubatches():
    equal = BUCKETS.ubatch(n_tokens=15, n_seqs=5, n_outputs=3, equal_seqs=True)
    assert equal == Bucket(n_blocks=6, n_block_rows=4, n_outputs=8) and equal.n_rows == 24
    flat = BUCKETS.ubatch(n_tokens=15, n_seqs=15, n_outputs=0, equal_seqs=False)
    assert flat == Bucket(n_blocks=1, n_block_rows=16, n_outputs=8)  # none wanted is no bucket of its own
    few = BUCKETS.ubatch(n_tokens=3, n_seqs=3, n_outputs=3, equal_seqs=False)
    assert few == Bucket(n_blocks=1, n_block_rows=4, n_outputs=4)  # outputs are cut at the rows


@pytest.mark.parametrize(
    ("ladder", "sizes"),
    [
        (BucketLadder.linear(512, 4), (128, 256, 384, 512)),
        (BucketLadder.linear(10, 4), (3, 5, 8, 10)),
        (BucketLadder.linear(2, 8), (1, 2)),
        (BucketLadder.gapped(20, 8), (1, 2, 4, 8, 16, 20)),
        (BucketLadder.gapped(4, 8), (1, 2, 4)),
        (BucketLadder.gapped(3, 1), (1, 2, 3)),
    ],
)
def test_linear_and_gapped_ladders(ladder, sizes):
    assert ladder.sizes == sizes


@given(st.integers(1, 600), st.integers(1, 70))
def test_every_kind_of_ladder_ends_at_the_top(top, number):
    for ladder in (BucketLadder.linear(top, number), BucketLadder.gapped(top, number)):
        assert ladder.top == top
    assert len(BucketLadder.linear(top, number).sizes) == min(top, number)


@pytest.mark.parametrize(
    ("top", "n_seqs", "sizes"),
    [
        (512, 1, (1, 16, 64, 128, 256, 512)),
        (512, 8, (1, 2, 8, 32, 64, 128, 256, 512)),
        (512, 12, (1, 3, 12, 48, 64, 128, 256, 512)),
        (512, 64, (1, 4, 16, 32, 64, 128, 256, 512)),
        (48, 100, (1, 3, 12, 25, 48)),
        (32, 8, (1, 2, 8, 32)),
        (1, 1, (1,)),
    ],
)
def test_rows_have_a_size_for_one_token_of_each_sequence(top, n_seqs, sizes):
    assert BucketLadder.rows(top, n_seqs).sizes == sizes
    given_rows = Buckets.default(
        n_batch=top, n_ubatch=top, n_streams=1, n_cells=(1,), kv_pad=1, rows=BucketLadder.rows(top, n_seqs)
    )
    assert given_rows.rows.rectangles == tuple((1, size) for size in sizes)
    assert given_rows.capacity.sizes == (top,)


def test_rows_of_nothing_are_an_error():
    with pytest.raises(ValueError, match="rows for 0 sequences up to 8: sizes of at least 1 are needed"):
        BucketLadder.rows(8, 0)


@given(st.integers(1, 8), st.integers(1, 40))
def test_a_grid_picks_as_its_two_ladders_do(n_seqs, n_ubatch):
    sets, rows = BucketLadder.geometric(n_seqs), BucketLadder.geometric(n_ubatch)
    grid = RectangleLadder.grid(sets, rows)
    possible = [(s, t) for s in range(1, n_seqs + 1) for t in range(1, n_ubatch // s + 1)]
    picked = [grid.pick(*shape) for shape in possible]
    assert picked == [(sets.pick(s), rows.pick(t)) for s, t in possible]
    assert grid.shapes() == tuple(sorted(set(picked)))


def test_dead_pairs_of_a_grid_are_left_out():
    grid = RectangleLadder.grid(BucketLadder.geometric(4), BucketLadder.geometric(8))
    assert str(RectangleLadder(8, 4, grid.shapes())) == "1x1,1x2,1x4,1x8,2x1,2x2,2x4,4x1,4x2"
    assert (4, 4) in grid.rectangles and (4, 4) not in grid.shapes()


@pytest.mark.parametrize("shape", [(5, 1), (3, 3), (0, 1), (1, 9), (1, -1)])
def test_rectangles_that_cannot_occur_are_an_error(shape):
    grid = RectangleLadder.grid(BucketLadder.geometric(4), BucketLadder.geometric(8))
    with pytest.raises(ValueError, match=f"{shape[0]} x {shape[1]} rows do not fit any shape"):
        grid.pick(*shape)


def test_a_rectangle_ladder_holds_everything_or_is_refused():
    assert RectangleLadder(8, 4, ((4, 4), (1, 8))).pick(2, 2) == (4, 4)
    sentence = "2 x 4 rows do not fit any shape of 1x8,4x2: 2x4 is needed too, or an n_ubatch below 8"
    with pytest.raises(ValueError, match=sentence):
        RectangleLadder(8, 4, ((4, 2), (1, 8)))
    with pytest.raises(ValueError, match="sizes of at least 1 are needed"):
        RectangleLadder(0, 1, ((1, 1),))


@pytest.mark.parametrize("rows", ["4x3", [(4, 3)], [[np.int64(4), 3]], RectangleLadder(12, 4, ((4, 3),), 3)])
def test_one_shape_holds_every_ubatch_of_a_split_that_keeps_to_it(rows):
    ladder = RectangleLadder.single(rows, 4)
    assert ladder == RectangleLadder(12, 4, ((4, 3),), 3)
    possible = np.stack(ladder.ubatches(), axis=1).tolist()
    assert {ladder.pick(*ubatch) for ubatch in possible} == {(4, 3)} == {*ladder.shapes()}
    assert len(possible) == 12
    with pytest.raises(ValueError, match="1 x 4 rows do not fit any shape"):
        ladder.pick(1, 4)


def test_one_bucket_for_everything():
    buckets = Buckets.single(64, 4, 256, rows="4x3")
    (bucket, n_kv), *more = buckets.shapes()
    assert (bucket.n_blocks, bucket.n_block_rows, bucket.n_outputs, n_kv, more) == (4, 3, 12, (256,), [])
    assert buckets.staged() == ((12, bucket), (64, bucket))
    assert Buckets.single(64, 4, 256, rows="4x3", n_kv=[256], n_outputs="12") == buckets


SIZES = {"n_batch": 64, "n_ubatch": 64, "n_streams": 1, "n_cells": (256,), "kv_pad": 16}


@pytest.mark.parametrize(
    "rows", ["1,8", " 1, 8 ", [1, 8], (np.int64(1), 8), "1x1,1x8", [(1, 1), (1, 8)], [[1, 1], [1, 8]]]
)
def test_ladders_written_by_hand_end_at_the_top(rows):
    buckets = Buckets.default(**SIZES, rows=rows, n_kv="32,128", n_outputs=[4])
    assert buckets.rows.shapes() == ((1, 1), (1, 8), (1, 64))
    assert buckets.n_kv[0].sizes == (32, 128, 256) and buckets.n_outputs.sizes == (4, 64)


def test_an_engine_takes_a_ladder_as_it_is_printed():
    engine = Engine(
        tiny_model(), None, EngineConfig(n_ctx=64, kv_pad=16, n_ubatch=16, n_seq_max=2), rows="1x4,2x1"
    )
    assert engine.buckets.rows.shapes() == ((1, 4), (1, 16), (2, 1), (2, 8))


@pytest.mark.parametrize("rows", ["pow3", "", [], [1.5, 8], 8, [1, (1, 2)], [(1, 2, 3)], ["1", "8"], [True]])
def test_what_is_no_ladder_is_refused(rows):
    for name in ("rows", "n_kv"):
        with pytest.raises(
            ValueError, match="is no ladder: sizes such as 1,8,64 or shapes n_seqs x n_seq_tokens"
        ):
            Buckets.default(**SIZES, **{name: rows})
    with pytest.raises(ValueError, match="the sizes '1x8' are shapes: sizes such as 1,8,64 are needed"):
        Buckets.default(**SIZES, n_outputs="1x8")


def test_sizes_are_whole_numbers():
    with pytest.raises(ValueError, match=r"bucket sizes \(1.5, 16\): .* whole numbers, is needed"):
        BucketLadder((1.5, 16))
    assert BucketLadder((np.int32(2), 4)).sizes == (2, 4)


def test_one_bucket_for_all_ubatches_of_a_batch():
    sizes = {
        "n_batch": 32,
        "n_ubatch": 8,
        "n_streams": 4,
        "n_cells": (64,),
        "kv_pad": 16,
        "n_outputs": [1, 8],
    }
    buckets = Buckets.default(**sizes)
    ubatches = {"n_tokens": [4, 3, 7], "n_seqs": [4, 1, 1]}
    bucket, n_outputs = buckets.whole(**ubatches, n_outputs=[0, 1, 1], equal_seqs=True)
    assert bucket == Bucket(n_blocks=4, n_block_rows=8, n_outputs=1) and n_outputs == 8
    bucket, n_outputs = buckets.whole(**ubatches, n_outputs=[4, 1, 7], equal_seqs=True)
    assert bucket == Bucket(n_blocks=4, n_block_rows=8, n_outputs=8) and n_outputs == 32
    assert buckets.whole(n_tokens=[8, 8], n_seqs=[8, 8], n_outputs=[0, 0], equal_seqs=False)[1] == 1


def test_buckets_of_an_encoder():
    buckets = EncoderBuckets.default(n_batch=1024, n_ubatch=512)
    assert buckets.capacity.sizes == (512, 1024)
    rows = {n: buckets.ubatch(n, n)[0].n_rows for n in (1, 16, 17, 64, 65, 256, 257, 512)}
    assert rows == {1: 16, 16: 16, 17: 64, 64: 64, 65: 256, 256: 256, 257: 512, 512: 512}
    spans = {n: buckets.ubatch(500, n)[1] for n in (1, 32, 33, 64, 65, 128, 129, 500)}
    assert spans == {1: 32, 32: 32, 33: 64, 64: 64, 65: 128, 128: 128, 129: 512, 500: 512}
    assert buckets.ubatch(3, 2, n_ubatches=2) == buckets.ubatch(512, 2)
    found = {
        buckets.ubatch(n, longest, k) for n in range(1, 513) for longest in range(1, n + 1) for k in (1, 2)
    }
    assert set(buckets.shapes()) == found
    with pytest.raises(ValueError, match="the ladder of rows of a ubatch ends at 64, n_ubatch is 512"):
        EncoderBuckets.default(n_batch=1024, n_ubatch=512, rows=BucketLadder((64,)))
