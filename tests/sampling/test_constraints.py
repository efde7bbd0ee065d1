"""Biases and allowed tokens: words, sums, bans, and what is refused."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.sampling import Constraints, pack_allowed, set_sequence
from ubjax.sampling.constraints import constrain

INF = np.inf


def test_the_drawn_example():
    found = set_sequence(
        Constraints.of(34, 2, n_bias=2), 1, Constraints.of(34, n_bias=2, bias={2: -1.5}, allowed=[0, 2, 33])
    )
    assert found.allowed.tolist() == [[0xFFFFFFFF, 0xFFFFFFFF], [0b101, 0b10]]
    assert found.bias_token.tolist() == [[34, 34], [2, 34]] and found.bias.tolist() == [[0, 0], [-1.5, 0]]
    x = np.asarray(constrain(jnp.ones((2, 34)), found))
    assert (x[0] == 1).all()
    assert x[1, [0, 2, 33]].tolist() == [1, -0.5, 1] and (np.delete(x[1], [0, 2, 33]) == -INF).all()


def host_words(flags):
    allowed = np.asarray([*flags, True])  # at least one
    words = Constraints.of(71, allowed=allowed).allowed[0]
    return [*words[:2].tolist(), int(words[2]) - 64]


@given(st.lists(st.booleans(), min_size=70, max_size=70))
def test_flags_come_back_from_words(flags):
    words = np.asarray(pack_allowed(jnp.asarray(flags)))
    assert words.shape == (3,) and words.tolist() == host_words(flags)
    assert [(int(words[v // 32]) >> (v % 32)) & 1 == 1 for v in range(70)] == flags
    assert int(words[2]) >> 6 == 0


def test_ids_and_flags_say_the_same():
    flags = np.zeros(40, bool)
    flags[[3, 39]] = True
    assert (
        Constraints.of(40, allowed=flags).allowed.tolist()
        == Constraints.of(40, allowed={39, 3}).allowed.tolist()
        == [[8, 128]]
    )


def test_biases_add_up_and_ban_and_never_overflow():
    rows = Constraints(
        bias_token=np.asarray([[1, 1, 4], [0, 2, -1], [0, 1, 9]], np.int32),
        bias=np.asarray([[1, 2, 100], [-INF, 50, 100], [3e38, -3e38, 100]], np.float32),
        allowed=np.full((3, 1), 0xFFFFFFFF, np.uint32),
    )
    logits = jnp.asarray([[0, 0, 0, 0], [5, 5, -INF, 5], [3e38, 3e38, 0, 0]], jnp.float32)
    largest = float(np.finfo(np.float32).max)
    assert constrain(logits, rows).tolist() == [
        [0, 3, 0, 0],
        [-INF, 5, -INF, 5],
        [largest, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"bias": {4: 1.0}}, "bias names token 4, a token in [0, 4) is needed"),
        ({"bias": {-1: 1.0}}, "bias names token -1, a token in [0, 4) is needed"),
        ({"bias": {1: np.nan}}, "the bias of token 1 is nan, a finite number or -inf is needed"),
        ({"bias": {1: INF}}, "the bias of token 1 is inf, a finite number or -inf is needed"),
        ({"bias": {0: 1.0, 1: 1.0, 2: 1.0}}, "bias names 3 tokens, at most n_bias = 2 are possible"),
        ({"allowed": [0, 4]}, "allowed names token 4, a token in [0, 4) is needed"),
        ({"allowed": np.asarray([0.5])}, "allowed names token 0.5, a token in [0, 4) is needed"),
        ({"allowed": []}, "allowed names 0 of 4 tokens, at least 1 is needed"),
        ({"allowed": [False] * 4}, "allowed names 0 of 4 tokens, at least 1 is needed"),
        ({"allowed": [True] * 3}, "allowed has shape (3,), flags of shape (4,) are needed"),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Constraints.of(4, n_bias=2, **arguments)


def test_words_of_another_vocabulary_are_refused():
    sentence = "allowed has 1 words for each sequence, 2 are needed for 33 tokens"
    with pytest.raises(ValueError, match=f"^{sentence}"):
        constrain(jnp.ones((1, 33)), Constraints.of(32))
