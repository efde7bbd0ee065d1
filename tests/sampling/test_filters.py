"""The kept sets are exactly those of the definitions, on ties and extremes as well."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.sampling import reference
from ubjax.sampling import filters

INF = math.inf
V = 11
FILTER = {name: jax.jit(getattr(filters, name)) for name in ("top_k", "typical", "top_p", "min_p")}
values = st.one_of(
    st.sampled_from([-INF, -80.0, -2.0, -0.0, 0.0, 0.5, 1.0, 2.0, 2.0, 7.25]),
    st.floats(-9, 9, width=32, allow_subnormal=False),
)
rows = st.lists(values, min_size=V, max_size=V).filter(lambda x: max(x) > -INF)
shares = st.one_of(
    st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), st.floats(0, 1, width=32, allow_subnormal=False)
)


def kept(name, x, parameter):
    """The kept tokens of each row; what is kept must be unchanged."""
    x = np.asarray(x, np.float32)
    dtype = np.int32 if name == "top_k" else np.float32
    out = np.asarray(FILTER[name](jnp.asarray(x), jnp.asarray(parameter, dtype)))
    assert ((out == x) | (out == -INF)).all()
    return [set(np.flatnonzero(row > -INF).tolist()) for row in out]


@pytest.mark.parametrize(
    ("name", "logits", "parameter", "expected"),
    [
        ("top_k", [2, 3, 3, 1], 1, {1}),
        ("top_k", [2, 3, 3, 1], 2, {1, 2}),
        ("top_k", [2, 3, 3, 1], 3, {0, 1, 2}),
        ("top_k", [5, 5, 5, 5], 2, {0, 1}),
        ("top_k", [0.0, -0.0, 0.0, -1], 2, {0, 1}),
        ("top_k", [2, 3, 3, 1], 0, {0, 1, 2, 3}),
        ("top_k", [2, 3, 3, 1], 4, {0, 1, 2, 3}),
        ("top_k", [2, 3, 3, 1], 2**31 - 1, {0, 1, 2, 3}),
        ("top_k", [-INF, 3, -INF, -INF], 3, {1}),
        ("top_k", [3e38, -3e38, 3e38, 0], 3, {0, 2, 3}),
        ("top_p", [5, 5, 5, 5], 0.5, {0, 1}),  # reached with the second, exactly
        ("top_p", [5, 5, 5, 5], 0.51, {0, 1, 2}),
        ("top_p", [5, 5, 5, 5], 0.0, {0}),
        ("top_p", [5, 5, 5, 5], 1.0, {0, 1, 2, 3}),
        ("top_p", [0, 100, 0, 0], 0.999, {1}),
        ("top_p", [-INF, 1, 1, -INF], 0.5, {1}),
        ("top_p", [3e38, -3e38, 3e38, 0], 0.9, {0, 2}),
        ("min_p", [5, 4, 5, 3], 1.0, {0, 2}),
        ("min_p", [5, 4, 5, 3], 0.0, {0, 1, 2, 3}),
        ("min_p", [0, -1, -2, -3], 0.2, {0, 1}),  # e^-1 = 0.37, e^-2 = 0.14
        ("min_p", [-INF, 1, -INF, 1], 0.5, {1, 3}),
        ("typical", [5, 5, 5, 5], 0.5, {0, 1, 2}),  # exceeded only with the third
        ("typical", [5, 5, 5, 5], 0.0, {0}),
        ("typical", [5, 5, 5, 5], 1.0, {0, 1, 2, 3}),
        ("typical", [-INF, 1, -INF, -INF], 0.3, {1}),
        ("typical", [3e38, -3e38, 3e38, 0], 0.9, {0, 2}),
        # p = 0.4 once and 0.2 three times: entropy 1.33, surprise 0.92 and 1.61: the most likely one goes
        ("typical", [math.log(2), 0, 0, 0], 0.5, {1, 2, 3}),
    ],
)
def test_kept_by_hand(name, logits, parameter, expected):
    nothing = [-INF] * 4  # disturbs no other row
    assert kept(name, [nothing, logits], [parameter] * 2)[1] == expected


@given(rows, st.integers(0, V + 2))
def test_top_k_keeps_the_defined_set(x, k):
    assert kept("top_k", [x], [k]) == [reference.kept_top_k(x, k)]


@pytest.mark.parametrize("name", ["top_p", "min_p", "typical"])
@given(x=rows, p=shares)
def test_shares_keep_the_defined_set(name, x, p):
    expected, slack = getattr(reference, f"kept_{name}")(x, p)
    assume(slack > 1e-5)  # closer than that float32 may decide the other way
    assert kept(name, [x], [p]) == [expected]


@given(rows, shares, st.integers(1, 3))
def test_one_token_is_always_kept(x, p, k):
    for name, parameter in (("top_p", p), ("min_p", p), ("typical", p), ("top_k", k)):
        assert len(kept(name, [x], [parameter])[0]) >= 1


def test_rows_have_their_own_parameters():
    x = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float32)
    for name, parameter in (
        ("top_k", [0, 1, 7, 299, 300]),
        ("top_p", [1, 0.1, 0.5, 0.9, 0]),
        ("min_p", [0, 0.1, 0.5, 0.9, 1]),
        ("typical", [1, 0.1, 0.5, 0.9, 0]),
    ):
        together = kept(name, x, parameter)
        assert together == [kept(name, x[[i] * 5], [parameter[i]] * 5)[0] for i in range(5)]
        p = [np.float32(q).item() if name != "top_k" else q for q in parameter]
        for i, expected in enumerate(
            getattr(reference, f"kept_{name}")(x[i].tolist(), p[i]) for i in range(5)
        ):
            assert together[i] == (expected if name == "top_k" else expected[0])
