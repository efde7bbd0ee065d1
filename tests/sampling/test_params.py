"""Parameters: ranges, defaults, one row set."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest

from ubjax.sampling import Constraints, LastTokens, SamplingParams, set_sequence


def test_the_defaults_are_greedy_and_off():
    found = {f.name: getattr(SamplingParams.of(2), f.name) for f in dataclasses.fields(SamplingParams)}
    assert {name: x.tolist() for name, x in found.items()} == {
        "temperature": [0, 0],
        "top_k": [0, 0],
        "typical_p": [1, 1],
        "top_p": [1, 1],
        "min_p": [0, 0],
        "repeat_penalty": [1, 1],
        "presence_penalty": [0, 0],
        "frequency_penalty": [0, 0],
        "seed": [0, 0],
    }
    assert {x.dtype for x in found.values()} == {np.dtype(t) for t in ("float32", "int32", "uint32")}


def test_one_value_or_one_for_each_sequence():
    params = SamplingParams.of(3, top_k=40, seed=[1, 2**32 - 1, 3], presence_penalty=-2)
    assert params.top_k.tolist() == [40, 40, 40] and params.seed.tolist() == [1, 4294967295, 3]
    assert params.presence_penalty.tolist() == [-2, -2, -2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"temperature": -0.5}, "temperature is -0.5, a finite number of at least 0 is needed"),
        ({"temperature": np.inf}, "temperature is inf, a finite number of at least 0 is needed"),
        ({"temperature": 1e39}, "temperature is 1e+39, a finite number of at least 0 is needed"),
        (
            {"temperature": [0, np.nan]},
            "temperature of sequence 1 is nan, a finite number of at least 0 is needed",
        ),
        ({"temperature": "hot"}, "temperature is 'hot', a finite number of at least 0 is needed"),
        ({"temperature": None}, "temperature is None, a finite number of at least 0 is needed"),
        ({"top_k": -1}, "top_k is -1, an integer in [0, 2^31) is needed"),
        ({"top_k": 2**31}, "top_k is 2147483648, an integer in [0, 2^31) is needed"),
        ({"top_k": 40.0}, "top_k is 40.0, an integer in [0, 2^31) is needed"),
        ({"top_k": True}, "top_k is True, an integer in [0, 2^31) is needed"),
        ({"top_p": 1.01}, "top_p is 1.01, a number in [0, 1] is needed"),
        ({"min_p": [0.1, -0.1]}, "min_p of sequence 1 is -0.1, a number in [0, 1] is needed"),
        ({"typical_p": 2}, "typical_p is 2, a number in [0, 1] is needed"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0, a finite number above 0 is needed"),
        ({"repeat_penalty": -1.1}, "repeat_penalty is -1.1, a finite number above 0 is needed"),
        ({"presence_penalty": np.nan}, "presence_penalty is nan, a finite number is needed"),
        ({"frequency_penalty": -np.inf}, "frequency_penalty is -inf, a finite number is needed"),
        ({"seed": -1}, "seed is -1, an integer in [0, 2^32) is needed"),
        ({"seed": [0, 2**32]}, "seed of sequence 1 is 4294967296, an integer in [0, 2^32) is needed"),
        ({"seed": 0.5}, "seed is 0.5, an integer in [0, 2^32) is needed"),
        ({"top_p": [1, 1, 1]}, "top_p has shape (3,), one value or shape (2,) is needed"),
    ],
)
def test_what_is_out_of_range_is_named(arguments, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        SamplingParams.of(2, **arguments)


def test_the_row_of_one_sequence_is_set_in_every_pytree():
    everything = (SamplingParams.of(3), Constraints.of(40, 3, n_bias=1), LastTokens.of([], 3, n_last=2))
    one = (
        SamplingParams.of(temperature=0.5, seed=7),
        Constraints.of(40, n_bias=1, bias={3: 1.5}, allowed=[0, 39]),
        LastTokens.of([4, 5, 6], n_last=2),
    )
    params, constraints, last = set_sequence(everything, 1, one)
    assert params.temperature.tolist() == [0, 0.5, 0] and params.seed.tolist() == [0, 7, 0]
    assert constraints.bias_token.tolist() == [[40], [3], [40]] and constraints.bias.tolist() == [
        [0],
        [1.5],
        [0],
    ]
    assert constraints.allowed.tolist() == [[2**32 - 1] * 2, [1, 128], [2**32 - 1] * 2]
    assert last.token.tolist() == [[-1, -1], [6, 5], [-1, -1]] and last.count.tolist() == [0, 3, 0]


@pytest.mark.parametrize("seq", [-1, 3])
def test_no_row_is_set_for_a_sequence_out_of_range(seq):
    params = set_sequence(SamplingParams.of(3), jnp.int32(seq), SamplingParams.of(seed=9))
    assert params.seed.tolist() == [0, 0, 0]
