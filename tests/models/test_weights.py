"""Tensors into parameters: the right rows, one copy, and errors that name the tensor."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.helpers import FULL, GROUPED, SINGLE_KEY_HEAD, WINDOWED, random_weights
from ubjax.config import WEIGHT_DTYPES
from ubjax.models.decoder import Decoder

WIDE = dataclasses.replace(GROUPED, n_embd=32)  # rows of blocks
CONFIGS = {"grouped": GROUPED, "full": FULL, "single": SINGLE_KEY_HEAD, "windowed": WINDOWED}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, "float16"], ids=str)
def test_parts_lie_over_one_another(dtype):
    weights = random_weights(SINGLE_KEY_HEAD)
    model = Decoder.from_weights(SINGLE_KEY_HEAD, weights.items(), dtype)
    layer = nnx.to_pure_dict(nnx.state(model))["layers"][1]
    stacked = np.concatenate([weights[f"blk.1.attn_{part}.weight"] for part in "qkv"])
    rows = model.layers[1].attn.qkv.weight.rows(np.arange(len(stacked), dtype=np.int32))
    np.testing.assert_array_equal(rows, stacked.astype(jnp.dtype(dtype)))
    biases = np.concatenate([np.zeros(24), weights["blk.1.attn_k.bias"], np.zeros(6)])
    np.testing.assert_array_equal(layer["attn"]["qkv"]["bias"], biases)
    biases = np.concatenate([np.zeros(24), weights["blk.1.ffn_up.bias"]])
    np.testing.assert_array_equal(layer["ffn"]["gate_up"]["bias"], biases)
    assert layer["attn"]["qkv"]["bias"].dtype == layer["attn_norm"]["weight"].dtype == jnp.float32


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_value_arrives_once_in_any_order(config):
    weights = list(random_weights(config).items())
    split = nnx.split(Decoder.from_weights(config, weights))
    turned = nnx.split(Decoder.from_weights(config, reversed(weights)))
    assert split[0] == turned[0]
    leaves = jax.tree.leaves(split[1])
    for a, b in zip(leaves, jax.tree.leaves(turned[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    # Biases that a stacked matrix gets for its other parts are zero.
    loaded = np.sort(np.concatenate([np.ravel(leaf) for leaf in leaves]))
    given = np.sort(np.concatenate([w.ravel() for _, w in weights]))
    np.testing.assert_array_equal(loaded[loaded != 0], given)


def test_tensors_are_taken_one_at_a_time():
    weights = random_weights(GROUPED)
    alive = []

    def stream():
        for name, value in weights.items():
            value = value.copy()
            yield name, value
            alive.append(value)
            value.fill(np.nan)  # the tensor is the caller's again once the next one is asked for

    model = Decoder.from_weights(GROUPED, stream())
    assert len(alive) == len(weights)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nnx.state(model)))


def test_a_tensor_of_another_shape_is_refused():
    weights = random_weights(GROUPED) | {"blk.1.attn_k.weight": np.zeros((24, 16), np.float32)}
    with pytest.raises(ValueError, match=r"'blk.1.attn_k.weight' has shape \[24, 16\], \[12, 16\] is needed"):
        Decoder.from_weights(GROUPED, weights.items())


def test_an_unknown_tensor_is_refused():
    weights = random_weights(GROUPED) | {"blk.2.attn_k.weight": np.zeros((12, 16), np.float32)}
    with pytest.raises(ValueError, match=r"'blk\.2\.attn_k\.weight' is not one that this model has"):
        Decoder.from_weights(GROUPED, weights.items())


def test_a_tensor_given_twice_is_refused():
    weights = random_weights(GROUPED)
    twice = [*weights.items(), ("output_norm.weight", weights["output_norm.weight"])]
    with pytest.raises(ValueError, match=r"'output_norm\.weight' was given twice"):
        Decoder.from_weights(GROUPED, twice)


def test_missing_tensors_are_named():
    weights = random_weights(GROUPED)
    some = [(n, w) for n, w in weights.items() if n not in ("token_embd.weight", "blk.0.ffn_up.weight")]
    with pytest.raises(ValueError, match=r"tensors are missing: token_embd.weight, blk.0.ffn_up.weight$"):
        Decoder.from_weights(GROUPED, some)
    with pytest.raises(ValueError, match=r"missing: token_embd.weight, .* and 16 more$"):
        Decoder.from_weights(GROUPED, ())


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float16", 1e5),
        ("q8_0", 1e7),  # its scale is above 65,504
        *((dtype, value) for dtype in ("int8", "q8_0") for value in (np.nan, np.inf, -np.inf)),
    ],
)
def test_numbers_that_a_dtype_cannot_keep_are_refused(dtype, value):
    weights = random_weights(WIDE)
    for name, which in (
        ("token_embd.weight", "the tensor 'token_embd.weight'"),
        (
            "blk.1.attn_k.weight",
            "one of the tensors 'blk.1.attn_q.weight', 'blk.1.attn_k.weight', 'blk.1.attn_v",
        ),
    ):
        rows = weights[name].copy()
        rows[3, 5] = value
        message = f"^{re.escape(which)}.* cannot be stored: {dtype} does not hold its largest number, {abs(value):g}: "
        with pytest.raises(ValueError, match=message.replace("+", r"\+")):
            Decoder.from_weights(WIDE, (weights | {name: rows}).items(), dtype)
        Decoder.from_weights(WIDE, (weights | {name: rows}).items())


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("value", [1e-45, 1.9e-43, 1e-39, 1e-37])
def test_numbers_that_are_next_to_nothing_are_kept_as_such(dtype, value):
    weights = {name: np.full_like(rows, value) for name, rows in random_weights(WIDE).items()}
    rows = Decoder.from_weights(WIDE, weights.items(), dtype).embedding.rows(np.arange(3, dtype=np.int32))
    half_step = 2.0**-134  # of bfloat16's smallest numbers
    assert np.isfinite(rows).all() and np.abs(rows).max() <= 1.01 * value + half_step


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_arrays_of_64_bits_are_stored_as_float32_ones_are(dtype):
    weights = random_weights(WIDE)
    want = jax.tree.leaves(nnx.state(Decoder.from_weights(WIDE, weights.items(), dtype)))
    model = Decoder.from_weights(WIDE, ((name, np.float64(w)) for name, w in weights.items()), dtype)
    for a, b in zip(jax.tree.leaves(nnx.state(model)), want, strict=True):
        np.testing.assert_array_equal(a, b)
    name = "blk.0.attn_output.weight"
    huge = weights | {name: weights[name] * np.float64(1e300)}
    with pytest.raises(ValueError, match=f"^the tensor '{name}' cannot be stored: {dtype} does not hold"):
        Decoder.from_weights(WIDE, huge.items(), dtype)
