"""The parts of a layer against numpy, in every formulation that a number of rows or a dtype selects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ubjax.models.layers import GatedFeedForward, Linear, RMSNorm
from ubjax.models.matrix import Panels, Rows


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("store", [Rows, Panels])
@pytest.mark.parametrize("n_rows", [1, 4, 32, 33])
def test_nothing_is_spread_out_over_rows_times_weights(n_rows, store):
    layer = GatedFeedForward(256, 512, in_bias=False, out_bias=False, store=store, rngs=nnx.Rngs(0))
    split = nnx.split(layer)
    forward = jax.jit(lambda state, x: nnx.merge(split[0], state)(x))
    memory = forward.lower(split[1], normal(n_rows, 256)).compile().memory_analysis()
    activations = 4 * n_rows * (256 + 2 * 1024)
    assert memory is not None and memory.temp_size_in_bytes < 4 * activations + 2**18


def test_a_bias_is_added():
    layer = Linear(12, 5, bias=True, store=Rows, rngs=nnx.Rngs(0))
    x, bias = normal(2, 12), np.arange(5, dtype=np.float32)
    without = layer(x)
    assert layer.bias is not None
    layer.bias.set_value(jnp.asarray(bias))
    np.testing.assert_allclose(layer(x), without + bias[None], atol=1e-6)


def test_norm_of_rows_and_of_nothing():
    norm = RMSNorm(4, 1e-5)
    norm.weight.set_value(jnp.asarray([1, 2, 3, 4], jnp.float32))
    found = norm(np.array([[1, -1, 1, -1], [0, 0, 0, 0]], np.float32))
    np.testing.assert_allclose(found, [[1, -2, 3, -4], [0, 0, 0, 0]], rtol=1e-5)


def test_feed_forward():
    layer = GatedFeedForward(12, 7, in_bias=True, out_bias=True, store=Rows, rngs=nnx.Rngs(0))
    x = normal(3, 12)
    gate, up = np.split(x @ np.asarray(layer.gate_up.weight.values[...]).T, 2, axis=1)
    want = (gate / (1 + np.exp(-gate)) * up) @ np.asarray(layer.down.weight.values[...]).T
    np.testing.assert_allclose(layer(x), want, atol=1e-5)
