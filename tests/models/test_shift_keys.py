"""K rows turned on to other positions: equal to K computed there, and what is not shifted keeps its bits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.helpers import FULL, WINDOWED, Cache, decoder, random_weights, rows_of
from tests.models.oracle import Reference
from ubjax.models.decoder import Decoder
from ubjax.models.rope import rotation, shift_rows

TOKENS = [5, 1, 30, 7, 7, 2]
CONFIGS = {"factors": FULL, "windowed": WINDOWED}


def keys(cache):
    return [np.asarray(k) for kv in cache.kv for k in kv.k]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("by", [5, -7])
def test_shifted_keys_equal_those_computed_there(config, by):
    model = decoder(config)
    here, there = Cache(model), Cache(model)
    here.run([rows_of(TOKENS, start=8)])
    there.run([rows_of(TOKENS, start=8 + by)])
    # Cells beyond those that K holds have shifts too.
    shift = np.full((1, 20), by, np.int32)
    shifted = jax.jit(model.shift_keys)(here.kv, (shift,) * config.n_caches)
    found = [np.asarray(k) for kv in shifted for k in kv.k]
    assert len(found) == config.n_layers
    for before, after, want in zip(keys(here), found, keys(there), strict=True):
        assert np.abs(before - want)[..., :6, :].max() > 0.1
        np.testing.assert_allclose(after[..., :6, :], want[..., :6, :], atol=2e-5)
    for before, after in zip(here.kv, shifted, strict=True):
        np.testing.assert_array_equal(after.v, before.v)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_cells_without_a_shift_keep_their_bits(dtype):
    rng = np.random.default_rng(0)
    k = jnp.asarray(rng.normal(size=(2, 3, 4, 6)), dtype).at[0, 0, 1].set(jnp.nan).at[1, 0, 0].set(-0.0)
    shift = np.array([[0, 0, 3, 0], [0, -2, 0, 0]], np.int32)
    by = rotation(shift.reshape(1, -1), 4, 50.0)
    found = shift_rows(k, shift, by)
    assert found.dtype == dtype
    moved = np.broadcast_to((shift != 0)[:, None, :, None], k.shape)
    as_bits = {jnp.float32: np.uint32, jnp.bfloat16: np.uint16}[dtype]
    same = np.asarray(found).view(as_bits) == np.asarray(k).view(as_bits)
    assert same[~moved].all() and same[..., 4:].all() and not same[..., :4][moved[..., :4]].all()


def test_the_drawn_example():
    """Two streams of two cells, one head of a single pair; frequency 1: the angle is the shift."""
    k = np.array([[[[1, 0], [1, 0]]], [[[0, 1], [2, 0]]]], np.float32)
    shift = np.array([[0, 2], [1, -1]], np.int32)
    want = [[[[1, 0], [np.cos(2), np.sin(2)]]], [[[-np.sin(1), np.cos(1)], [2 * np.cos(1), -2 * np.sin(1)]]]]
    np.testing.assert_allclose(shift_rows(k, shift, rotation(shift.reshape(1, -1), 2, 10.0)), want, atol=1e-6)


def test_a_cache_without_layers_stays_without():
    config = dataclasses.replace(WINDOWED, n_layers=1, swa_layers=(True,))
    weights = {
        name: w for name, w in random_weights(WINDOWED).items() if not name.startswith(("blk.1", "blk.2"))
    }
    cache = Cache(Decoder.from_weights(config, weights.items()))
    logits = cache.run([rows_of(TOKENS)])
    np.testing.assert_allclose(logits, Reference(config, weights).logits(TOKENS), atol=1e-5)
    model = nnx.merge(*cache.split)
    for kv in (cache.kv, model.shift_keys(cache.kv, (np.ones((1, 16), np.int32),) * 2)):
        assert [len(rows.k) for rows in kv] == [len(rows.v) for rows in kv] == [0, 1]
