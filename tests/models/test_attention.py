"""Writing rows into cells and attending them, against loops in numpy."""

import jax
import numpy as np
import pytest

from ubjax.models.attention import CellAccess, _in_tiles, attend, write_rows

# One stream, two key heads, four cells of width 1; rows 0, 1, 2 go to cells 3, 1 and nowhere (cell 4 of 4):
#   head 0    [. . . .]  ->  [.  11  .  10]
#   head 1    [. . . .]  ->  [.  21  .  20]
ROWS = np.array([[10, 20], [11, 21], [12, 22]], np.float32)[..., None]
WRITTEN = np.array([[[0, 11, 0, 10], [0, 21, 0, 20]]], np.float32)[..., None]


def access_of(slot, stream, mask, valid, first_stream=0):
    return CellAccess(
        slot=np.array(slot, np.int32),
        stream=np.array(stream, np.int32),
        first_stream=np.array(first_stream, np.int32),
        mask=mask,
        valid=valid,
    )


def test_the_drawn_example():
    access = access_of([3, 1, 4], [0, 0, 0], np.ones((1, 3, 4), bool), np.ones((1, 4), bool))
    cache = np.zeros((1, 2, 4, 1), np.float32)
    np.testing.assert_array_equal(write_rows(cache, ROWS, access), WRITTEN)
    assert not cache.any()


@pytest.mark.parametrize("slot", [4, 1000, 2**31 - 1])
def test_slots_beyond_the_cells_are_dropped(slot):
    access = access_of([slot] * 3, [0, 1, 1], np.ones((1, 3, 4), bool), np.ones((1, 4), bool))
    cache = np.random.default_rng(0).normal(size=(2, 2, 4, 1)).astype(np.float32)
    np.testing.assert_array_equal(write_rows(cache, ROWS, access), cache)


def dense(q, k, v, seen):
    """One row of queries [H, D] over the cells `seen` of k, v [Hk, C, D]."""
    out = np.zeros_like(q)
    for h in range(len(q)):
        shared = h * len(k) // len(q)
        score = k[shared, seen] @ q[h] / np.sqrt(q.shape[1])
        weight = np.exp(score - score.max())
        out[h] = weight @ v[shared, seen] / weight.sum()
    return out


SHAPES = {
    "one stream": (1, 1, 0),
    "one stream, rows in blocks": (1, 3, 0),
    "all streams": (3, 3, 0),
    "some streams": (5, 3, 1),
    "the last streams": (5, 3, 2),
}


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_loops_with_nan_in_cells_that_hold_nothing(shape, n_kv_heads):
    n_streams, n_blocks, first = shape
    length, n_cells, d, rng = 4, 7, 3, np.random.default_rng(0)
    q = rng.normal(size=(n_blocks * length, 4, d)).astype(np.float32)
    k, v = rng.normal(size=(2, n_streams, n_kv_heads, n_cells, d)).astype(np.float32)
    valid = rng.random((n_streams, n_cells)) < 0.7
    k[~valid[:, None].repeat(n_kv_heads, 1)] = v[~valid[:, None].repeat(n_kv_heads, 1)] = np.nan
    stream = [0] * n_blocks if n_streams == 1 else list(range(first, first + n_blocks))
    mask = (rng.random((n_blocks, length, n_cells)) < 0.5) & valid[stream][:, None]
    mask[0, 2] = False  # a row that sees nothing
    read = valid[:1] if n_streams == 1 else valid[stream]
    access = access_of([99] * len(q), [0] * len(q), mask, read, first)
    found = np.asarray(attend(q, k, v, access)).reshape(n_blocks, length, 4, d)
    assert np.isfinite(found).all()
    for b in range(n_blocks):
        for t in range(length):
            if mask[b, t].any():
                seen = np.flatnonzero(mask[b, t])
                want = dense(q[b * length + t], k[stream[b]], v[stream[b]], seen)
                np.testing.assert_allclose(found[b, t], want, atol=1e-5)


TILES = {
    "a tile a quarter of the cells": (512, 512, 0),
    "one tile, all cells but three": (40, 257, 214),
    "behind others": (256, 512, 130),
}


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("shape", TILES.values(), ids=TILES)
def test_rows_in_tiles_equal_all_cells_at_once(shape, cap):
    """Rows of a prompt behind `used` cells of others; one row sees nothing, cells that hold nothing are NaN."""
    length, n_cells, used = shape
    d, groups, rng = 4, 2, np.random.default_rng(1)
    q = rng.normal(size=(length, groups, d)).astype(np.float32)
    k, v = rng.normal(size=(2, 1, 1, n_cells, d)).astype(np.float32)
    valid = np.arange(n_cells)[None] < used + length
    k[0, 0, ~valid[0]] = v[0, 0, ~valid[0]] = np.nan
    mask = np.tri(length, n_cells, used, dtype=bool)[None] & valid[:, None]
    mask[0, :, :used:2] = mask[0, 3] = False
    access = access_of([n_cells] * length, [0] * length, mask, valid)
    found = np.asarray(attend(q, k, v, access, cap=cap))
    assert _in_tiles(mask.shape) and np.isfinite(found).all()
    score = np.einsum("lhd,cd->lhc", q, np.where(valid[0][:, None], k[0, 0], 0)) / np.sqrt(d)
    score = score if cap is None else cap * np.tanh(score / cap)
    weight = np.exp(score) * mask[0][:, None]
    want = weight @ np.where(valid[0][:, None], v[0, 0], 0)
    rows = np.arange(length) != 3
    np.testing.assert_allclose(
        found[rows], (want / weight.sum(-1, keepdims=True).clip(1e-9))[rows], atol=1e-5
    )


@pytest.mark.parametrize(("n_rows", "n_kv_heads"), [(32, 2), (40, 1)])
def test_company_in_a_tile_changes_no_bit(n_rows, n_kv_heads):
    """A later cell that another row of the tile sees takes all rows over more cells: the same bits."""
    n_cells, d, rng = 512, 64, np.random.default_rng(2)
    q = rng.normal(size=(n_rows, 2, d)).astype(np.float32)
    k, v = rng.normal(size=(2, 1, n_kv_heads, n_cells, d)).astype(np.float32)
    mask = np.broadcast_to(np.arange(n_cells) < 100, (1, n_rows, n_cells)).copy()
    run, bits = jax.jit(attend), []
    for last in (99, 200, 300, 511):
        mask[0, -1, last] = True
        access = access_of([n_cells] * n_rows, [0] * n_rows, mask, np.ones((1, n_cells), bool))
        bits.append(np.asarray(run(q, k, v, access))[:-1].view(np.uint32))
    for others in bits[1:]:
        np.testing.assert_array_equal(others, bits[0])
