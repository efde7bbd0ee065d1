"""The window is a ring of the last N tokens; the penalties have the defined values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import reference
from ubjax.sampling import LastTokens, SamplingParams, accept
from ubjax.sampling.penalties import penalize

INF = np.inf
jitted = jax.jit(penalize)


def i32(*values):
    return jnp.asarray(values, jnp.int32)


def test_the_drawn_ring():
    last = LastTokens.of([5, 7, 5], n_last=4)
    for token, expected in ((None, [5, 7, 5, -1]), (9, [5, 7, 5, 9]), (6, [6, 7, 5, 9]), (8, [6, 8, 5, 9])):
        last = last if token is None else accept(last, i32(0), i32(token))
        assert last.token.tolist() == [expected]
    assert last.count.tolist() == [6]


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(0, 12))
def test_a_prompt_is_the_same_as_its_tokens_one_by_one(tokens, cut):
    whole, parts = LastTokens.of(tokens, n_last=5), LastTokens.of(tokens[:cut], n_last=5)
    for token in tokens[cut:]:
        parts = accept(parts, i32(0), i32(token))
    assert parts.token.tolist() == whole.token.tolist() and parts.count.tolist() == whole.count.tolist()
    assert sorted(t for t in whole.token[0].tolist() if t >= 0) == sorted(tokens[-5:])


def test_rows_out_of_range_are_not_entered():
    last = accept(LastTokens.of((), 3, n_last=2), i32(2, 3, -1, 0), i32(10, 11, 12, 13))
    assert last.token.tolist() == [[13, -1], [-1, -1], [10, -1]] and last.count.tolist() == [1, 0, 1]


def test_a_window_of_nothing():
    last = LastTokens.of([1, 2], 2, n_last=0)
    assert last.token.shape == (2, 0) and accept(last, i32(0), i32(5)).token.shape == (2, 0)
    x = jnp.ones((2, 4))
    assert penalize(x, jnp.asarray(last.token), SamplingParams.of(2, repeat_penalty=9)).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("penalties", "expected"),
    [
        ((1, 0, 0), [2, -2, 0, 4, -INF, 3]),
        ((2, 0, 0), [1, -4, 0, 4, -INF, 3]),  # positive divided, negative multiplied
        ((1, 0.5, 0), [1.5, -2.5, -0.5, 4, -INF, 3]),  # once for a token that is there
        ((1, 0, 0.5), [1.5, -3.5, -0.5, 4, -INF, 3]),  # for each time
        ((2, 0.25, 0.5), [0.25, -5.75, -0.75, 4, -INF, 3]),
        ((0.5, -1, 0), [5, 0, 1, 4, -INF, 3]),  # rewards
    ],
)
def test_penalties_by_hand(penalties, expected):
    # token 0 once, 1 three times, 2 once, 4 once, an empty place, tokens that do not exist
    window = i32(1, 0, 1, -1, 2, 1, 4, 6, 99)[None]
    repeat, presence, frequency = penalties
    params = SamplingParams.of(repeat_penalty=repeat, presence_penalty=presence, frequency_penalty=frequency)
    x = jnp.asarray([[2, -2, 0, 4, -INF, 3]], jnp.float32)
    assert jitted(x, window, jax.device_put(params)).tolist() == [expected]


number = st.floats(-8, 8, width=32)


@given(
    st.lists(number, min_size=6, max_size=6),
    st.lists(st.integers(-1, 7), min_size=9, max_size=9),
    st.floats(0.125, 4, width=32),
    number,
    number,
)
def test_penalties_have_the_defined_values(x, window, repeat, presence, frequency):
    params = SamplingParams.of(repeat_penalty=repeat, presence_penalty=presence, frequency_penalty=frequency)
    found = jitted(jnp.asarray([x], jnp.float32), i32(*window)[None], jax.device_put(params))
    np.testing.assert_allclose(
        found[0], reference.penalized(x, window, repeat, presence, frequency), rtol=1e-5, atol=1e-5
    )


def test_rows_have_their_own_windows_and_overflow_stops_at_the_largest_number():
    x = jnp.asarray([[1, 3e38, -3e38]] * 3, jnp.float32)
    window = i32(0, 1, 2)[:, None]
    params = SamplingParams.of(3, repeat_penalty=[2, 0.5, 2])
    largest = float(np.finfo(np.float32).max)
    found = jitted(x, window, jax.device_put(params))
    assert found[0, 0] == 0.5 and found[1, 1] == largest and found[2, 2] == -INF
    assert found[0, 1:].tolist() == x[0, 1:].tolist() and found[2, :2].tolist() == x[2, :2].tolist()
