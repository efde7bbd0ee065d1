"""Requests refuse what can't be meant, by name."""

import numpy as np
import pytest

from ubjax.generate import Request, Sampling

INF = float("inf")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, a finite number of at least 0 is needed"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1, an integer"),
        ({"top_p": 1.5}, "top_p is 1.5, a number in"),
        ({"min_p": -1.0}, "min_p is -1.0"),
        ({"typical_p": 2.0}, "typical_p is 2.0"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0"),
        ({"presence_penalty": INF}, "presence_penalty is inf"),
        ({"frequency_penalty": -INF}, "frequency_penalty is -inf"),
        ({"seed": 2**32}, "seed is 4294967296"),
    ],
)
def test_sampling_is_checked_when_it_is_made(wanted, words):
    with pytest.raises(ValueError, match=words):
        Sampling(**wanted)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, at least 1 is needed"),
        ({"n": 0}, "n is 0, at least 1 is needed"),
        ({"logprobs": -1}, "logprobs is -1, None or at least 0"),
        ({"stop": ("a", "")}, "a stop string has 0 characters"),
    ],
)
def test_requests_are_checked_when_they_are_made(wanted, words):
    with pytest.raises(ValueError, match=words):
        Request(ids=(1,), **wanted)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"stop_tokens": frozenset({61})}, "stop_tokens names token 61, a token in \\[0, 61\\)"),
        ({"logprobs": 62}, "logprobs is 62, at most 61"),
        ({"sampling": Sampling(logit_bias={61: 1.0})}, "bias names token 61"),
        ({"sampling": Sampling(logit_bias={3: INF})}, "the bias of token 3 is inf"),
        ({"sampling": Sampling(allowed=[])}, "allowed names 0 of 61 tokens"),
        ({"sampling": Sampling(allowed=[-1])}, "allowed names token -1"),
        ({"sampling": Sampling(allowed=[3], logit_bias={3: -INF})}, "bans each of the allowed tokens"),
    ],
)
def test_tokens_are_checked_against_the_vocabulary(wanted, words):
    with pytest.raises(ValueError, match=words):
        Request(ids=(1,), **wanted).check(61)


def test_outputs_have_seeds_of_their_own_that_wrap_around():
    sampling = Sampling(seed=2**32 - 1, temperature=0.5)
    assert [int(sampling.params(i).seed[0]) for i in range(3)] == [2**32 - 1, 0, 1]
    assert sampling.params(2).temperature.tolist() == [0.5]


def test_room_for_biases_grows_in_powers_of_two():
    sizes = [Sampling(logit_bias=dict.fromkeys(range(n), 1.0)).n_bias for n in (0, 1, 16, 17, 32, 33)]
    assert sizes == [16, 16, 16, 32, 32, 64]
    assert np.asarray(Sampling(logit_bias={3: -1.5}).constraints(61).bias)[0, :2].tolist() == [-1.5, 0]
