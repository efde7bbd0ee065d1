"""Draws follow the softmax, depend on seed and position alone, and greedy is the first of the best."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import reference
from ubjax.sampling import greedy, token_key
from ubjax.sampling.draw import BLOCK, draw
from ubjax.sampling.rows import usable

jitted = jax.jit(draw)
N = 8192


def draws(x, temperature, seed=3, first=0):
    """N tokens of one row of logits, at N positions."""
    rows = jnp.broadcast_to(jnp.asarray(x, jnp.float32), (N, len(x)))
    pos = jnp.arange(first, first + N, dtype=jnp.int32)
    return np.asarray(jitted(rows, jnp.full(N, temperature, jnp.float32), jnp.full(N, seed, jnp.uint32), pos))


LOGITS = np.random.default_rng(1).normal(0, 1.5, 300).astype(np.float32)  # two blocks, the second one short


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_tokens_are_distributed_as_the_softmax(temperature):
    tokens = np.concatenate([draws(LOGITS, temperature, first=i * N) for i in range(3)])
    observed = np.bincount(tokens, minlength=300)
    p = reference.probabilities((LOGITS.astype(float) / temperature).tolist())
    value, degrees = reference.chi_square(observed.tolist(), p)
    assert degrees > 20 and value < reference.critical(degrees)
    wrong = reference.probabilities((LOGITS.astype(float) / (1.5 * temperature)).tolist())
    value, degrees = reference.chi_square(observed.tolist(), wrong)
    assert value > reference.critical(degrees)  # the test would notice


def test_neighbouring_positions_and_seeds_are_independent():
    x = np.zeros(4)
    for other in (draws(x, 1.0, seed=3, first=1), draws(x, 1.0, seed=4), draws(x, 1.0, seed=3 + 2**31)):
        pairs = np.bincount(4 * draws(x, 1.0, seed=3) + other, minlength=16)
        value, degrees = reference.chi_square(pairs.tolist(), [1 / 16] * 16)
        assert degrees == 15 and value < reference.critical(15)


def test_the_critical_value_is_that_of_the_tables():
    assert reference.critical(15) == pytest.approx(37.697, rel=5e-3)
    assert reference.critical(100) == pytest.approx(149.449, rel=5e-3)


@pytest.mark.parametrize("token", [0, BLOCK - 1, BLOCK, 299])
def test_only_what_is_left_is_drawn(token):
    x = np.full(300, -np.inf)
    x[token] = -1000.0
    assert (draws(x, 0.5) == token).all()
    x[7] = -1000.0
    assert set(draws(x, 0.5).tolist()) == {7, token}


def test_extreme_temperatures():
    x = [1.0, 2.0, 2.0, 0.0]
    assert set(draws(x, 1.2e-38).tolist()) == {1, 2}
    assert np.bincount(draws(x, 3e38), minlength=4).min() > N / 5
    assert set(draws([-3e38, 3e38], 1e-3).tolist()) == {1}


def test_the_key_is_that_of_seed_and_position():
    expected = jax.random.key_data(jax.random.fold_in(jax.random.key(7, impl="threefry2x32"), 41))
    with jax.default_prng_impl("rbg"):
        found = jax.random.key_data(token_key(jnp.uint32(7), 41))
    assert found.tolist() == expected.tolist()


def test_logits_of_half_precision_become_float32():
    x = usable(jnp.asarray([1.5, jnp.nan, jnp.inf, -jnp.inf], jnp.bfloat16))
    assert x.dtype == jnp.float32
    assert x.tolist() == [1.5, -np.inf, float(np.finfo(np.float32).max), -np.inf]


def test_greedy_by_hand():
    x = jnp.asarray([[1, 3, 3, 2], [jnp.nan, -1, jnp.nan, -1], [-jnp.inf] * 4, [0, jnp.inf, 3e38, 0]])
    assert greedy(x).tolist() == [1, 1, 0, 1]
    assert greedy(x[0]).tolist() == 1
    assert greedy(x[None]).tolist() == [[1, 1, 0, 1]]


@given(st.lists(st.integers(-3, 3), min_size=9, max_size=9))
def test_greedy_is_the_first_maximum(x):
    assert int(greedy(jnp.asarray(x, jnp.float32))) == x.index(max(x))
