"""Row arithmetic: right, monotone, and to the same bits in any company."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.sampling.rows import first_true, log_sum_exp, row_sum

INT32 = np.iinfo(np.int32)
summed, log_summed = jax.jit(row_sum), jax.jit(log_sum_exp)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 256, 1000])
def test_a_sum_leaves_nothing_out(n):
    x = np.arange(1, 2 * n + 1, dtype=np.float32).reshape(2, n)  # integers: exact in any order
    assert row_sum(jnp.asarray(x)).tolist() == x.sum(axis=1).tolist()


def test_a_row_has_the_same_sum_in_any_company():
    x = np.exp(np.random.default_rng(2).normal(0, 3, (16, 3001))).astype(np.float32)
    together = np.asarray(summed(x)), np.asarray(log_summed(x))[:, 0]
    np.testing.assert_allclose(together[0], x.astype(float).sum(axis=1), rtol=1e-6)
    for n in (1, 3, 8):
        for i in range(0, 16 - n + 1, 3):
            assert summed(x[i : i + n]).tolist() == together[0][i : i + n].tolist()
            assert log_summed(x[i : i + n])[:, 0].tolist() == together[1][i : i + n].tolist()


@given(st.lists(st.floats(0, 2**20, width=32, allow_subnormal=False), min_size=37, max_size=37))
def test_the_sum_of_a_longer_prefix_is_never_less(weights):
    prefixes = np.tril(np.ones((37, 37), np.float32)) * np.asarray(weights, np.float32)
    sums = np.asarray(summed(prefixes))
    assert (np.diff(sums) >= 0).all()


def test_log_sum_exp_of_extremes():
    x = jnp.asarray([[-np.inf] * 3, [3e38, 3e38, -3e38], [-1000, -1000, -np.inf]], jnp.float32)
    np.testing.assert_allclose(log_sum_exp(x)[:, 0], [-np.inf, 3e38, -1000 + np.log(2)], rtol=1e-6)


@given(*[st.integers(int(INT32.min), int(INT32.max))] * 3)
def test_the_first_true_value_is_found_in_all_of_int32(a, b, edge):
    low, high = min(a, b), max(a, b)
    found = search(
        *(jnp.asarray([n, n], jnp.int32) for n in (low, high)), jnp.asarray([edge, low], jnp.int32)
    )
    assert found.tolist() == [min(max(edge, low), high), low]


@jax.jit
def search(low, high, edge):
    return first_true(low, high, lambda i: i >= edge)
