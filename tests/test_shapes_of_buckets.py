"""The shapes that warm-up compiles are those that can occur, all and only they; other ladders are refused."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ubjax.buckets import Buckets
from ubjax.ladders import BucketLadder, RectangleLadder


def drawn_ladder(data, top):
    """Any ladder up to `top`."""
    return BucketLadder((*sorted(data.draw(st.sets(st.integers(1, top - 1)))), top) if top > 1 else (1,))


def drawn_buckets(data):
    """Small ladders of every kind: one stream or several, rows by a ladder or by shapes."""
    n_streams, n_cells = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    window = data.draw(st.one_of(st.none(), st.integers(1, n_cells)))
    caches = (n_cells,) if window is None else (n_cells, window)
    n_batch = data.draw(st.integers(1, n_streams * n_cells))
    n_ubatch = data.draw(st.integers(1, min(n_batch, 8)))
    rows = drawn_ladder(data, n_ubatch)
    if n_streams > 1 and data.draw(st.booleans()):
        shapes = data.draw(st.sets(st.tuples(st.integers(1, n_streams), st.integers(1, n_ubatch))))
        rows = RectangleLadder(n_ubatch, n_streams, tuple(shapes | {(n_streams, n_ubatch)}))
    ladders = {"n_kv": drawn_ladder(data, n_cells), "n_outputs": drawn_ladder(data, n_ubatch)}
    sizes = {"n_batch": n_batch, "n_ubatch": n_ubatch, "n_streams": n_streams, "n_cells": caches}
    buckets = Buckets.default(**sizes, kv_pad=1, rows=rows, **ladders)
    capacity = BucketLadder((n_batch - 1, n_batch) if n_batch > 1 else (1,))
    return dataclasses.replace(buckets, capacity=capacity)


def possible(buckets):
    """Every ubatch: sets, tokens of a set, outputs."""
    ubatches = range(1, buckets.rows.n_ubatch + 1)
    for n_seqs, n_tokens in itertools.product(range(1, buckets.rows.n_seqs + 1), ubatches):
        if n_seqs * n_tokens <= buckets.rows.n_ubatch and n_tokens <= min(own.top for own in buckets.n_kv):
            for n_outputs in range(n_seqs * n_tokens + 1):
                yield n_seqs, n_tokens, n_outputs


def bucket_of(buckets, n_seqs, n_tokens, n_outputs):
    return buckets.ubatch(
        n_tokens=n_seqs * n_tokens, n_seqs=n_seqs, n_outputs=n_outputs, equal_seqs=buckets.rows.n_seqs > 1
    )


@settings(max_examples=80)
@given(st.data())
def test_shapes_are_what_can_occur(data):
    buckets = drawn_buckets(data)
    n = len(buckets.n_kv)
    expected = {
        (bucket_of(buckets, n_seqs, n_tokens, n_outputs), buckets.pick_kv((needed, n_tokens)[:n]))
        for n_seqs, n_tokens, n_outputs in possible(buckets)
        for needed in range(n_tokens, buckets.n_kv[0].top + 1)
    }
    shapes = buckets.shapes()
    assert set(shapes) == expected and len(shapes) == len(expected)
    assert [bucket.n_rows for bucket, _ in shapes] == sorted(bucket.n_rows for bucket, _ in shapes)


def cuts(buckets, n_batch):
    """Row counts of the ubatches of a batch in one stream."""
    whole, rest = divmod(n_batch, buckets.rows.n_ubatch)
    return {buckets.rows.n_ubatch for _ in range(whole)} | ({rest} if rest else set())


@settings(max_examples=80)
@given(st.data())
def test_staged_pairs_are_what_can_occur(data):
    buckets = drawn_buckets(data)
    expected = {
        (buckets.capacity.pick(n_batch), bucket_of(buckets, n_seqs, n_tokens, n_outputs))
        for n_seqs, n_tokens, n_outputs in possible(buckets)
        for n_batch in range(n_seqs * n_tokens, buckets.capacity.top + 1)
        if buckets.rows.n_seqs > 1 or len(buckets.n_kv) > 1 or n_tokens in cuts(buckets, n_batch)
    }
    staged = buckets.staged()
    assert set(staged) == expected and len(staged) == len(expected)


SIZES = {"n_batch": 64, "n_ubatch": 32, "n_streams": 2, "n_cells": (64,), "kv_pad": 16}


def test_large_buckets_with_small_caches_are_left_out():
    buckets = Buckets.default(**SIZES | {"n_streams": 1}, n_outputs=BucketLadder((32,)))
    found = {(bucket.n_rows, bucket.n_outputs, n_kv) for bucket, (n_kv,) in buckets.shapes()}
    assert {n_kv for n_rows, _, n_kv in found if n_rows == 16} == {16, 32, 64}
    assert {n_kv for n_rows, _, n_kv in found if n_rows == 32} == {32, 64}
    assert {n_outputs for n_rows, n_outputs, _ in found if n_rows == 4} == {4}


def test_a_stream_shorter_than_a_ubatch_leaves_its_shapes_out():
    buckets = Buckets.default(**SIZES | {"n_cells": (16,), "kv_pad": 16, "n_batch": 32})
    assert {(b.n_blocks, b.n_block_rows) for b, _ in buckets.shapes()} == {
        *((blocks, rows) for blocks in (1, 2) for rows in (1, 2, 4, 8, 16))
    }


@pytest.mark.parametrize(
    ("ladders", "sentence"),
    [
        (
            {"rows": BucketLadder((1, 16))},
            "the ladder of rows of a ubatch ends at 16, n_ubatch is 32: a ladder up",
        ),
        ({"rows": BucketLadder((1, 64))}, "the ladder of rows of a ubatch ends at 64, n_ubatch is 32"),
        (
            {"rows": RectangleLadder(16, 2, ((2, 16),))},
            "the ladder of rows of a ubatch ends at 16, n_ubatch is 32",
        ),
        (
            {"rows": RectangleLadder(32, 1, ((1, 32),))},
            "the ladder 1x32 is for 1 sets, the cache has 2 streams: a ladder for 2 is needed",
        ),
        (
            {"rows": RectangleLadder(32, 2, ((3, 32),))},
            "the ladder 3x32 is for 3 sets, the cache has 2 streams",
        ),
        (
            {"n_kv": BucketLadder((32,))},
            "the ladder of attended cells ends at 32, a stream's number of cells is 64",
        ),
        ({"n_outputs": BucketLadder((64,))}, "the ladder of output rows ends at 64, n_ubatch is 32"),
    ],
)
def test_ladders_that_end_elsewhere_are_refused(ladders, sentence):
    with pytest.raises(ValueError, match=sentence):
        Buckets.default(**SIZES, **ladders)
