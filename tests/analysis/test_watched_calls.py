"""What a watched function remembers of its calls: those that compiled nothing, statics, all differences in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ubjax.analysis import retraces, watch

X = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _nothing_was_watched(monkeypatch):
    """The functions of these tests have the same code; none is to be a new object of an earlier test's."""
    monkeypatch.setattr(retraces, "_functions", {})


def fresh():
    """A jitted function that no other test has compiled."""

    def step(x, y=None):
        return x["a"] + 1 if isinstance(x, dict) else jnp.sum(x)

    return jax.jit(step)


def test_a_function_that_is_jitted_anew_in_each_call():
    watched = watch(lambda x: jax.jit(lambda z: z * 4)(x))
    watched(X), watched(X)
    assert [retrace.call for retrace in watched.retraces] == [1, 2]
    assert str(watched.retraces[1]) == (
        "call 2: <lambda> traced, <lambda> compiled: <lambda>: new function object one that had these arguments -> "
        "one jitted anew in each call (or given other shapes inside)"
    )
    jax.clear_caches()
    watched(X)
    [cause] = watched.retraces[2].causes
    assert cause.kind == "unknown" and "caches were cleared" in cause.after
    watched(X)
    assert watched.retraces[3].causes[0].kind == "new function object"


def test_calls_that_compiled_nothing_are_compared_too():
    warm = fresh()
    warm(X)
    watched = watch(warm)
    watched(X), watched(np.ones(4, np.float32))
    assert [str(retrace).rpartition("compiled: ")[2] for retrace in watched.retraces] == [
        "x: shape (3,) -> (4,)"
    ]
    again = watch(warm)  # as in another test
    again(np.ones(5, np.float32))
    assert [str(cause) for cause in again.retraces[0].causes] == ["x: shape (4,) -> (5,)"]


@pytest.mark.parametrize("by_keyword", [True, False])
def test_all_causes_of_the_nearest_call_are_named(by_keyword):
    jitted = jax.jit(lambda x, n: jnp.sum(x) * n, static_argnames="n")
    watched = watch(jitted)
    for x, n in ((X, 1), (X, 2), (X, 1.0), (np.ones(4, np.float32), 3)):
        watched(x, n=n) if by_keyword else watched(x, n)
    assert [[str(cause) for cause in retrace.causes] for retrace in watched.retraces] == [
        [],
        ["n: static value 1 -> 2"],
        ["n: static value 2 -> 1.0"],
        ["x: shape (3,) -> (4,)", "n: static value 1.0 -> 3"],
    ]


def test_static_parts_of_an_argument():
    watched = watch(jax.jit(lambda x, sizes: jnp.sum(x) * sizes[0], static_argnums=1))
    for sizes in ((1, 2), (1, 3), (1, "a")):
        watched(X, sizes)
    assert [str(cause) for retrace in watched.retraces for cause in retrace.causes] == [
        "sizes[1]: static value 2 -> 3",
        "sizes[1]: static value 3 -> 'a'",
    ]


def test_shapes_that_depend_on_values():
    watched = watch(lambda x: jnp.nonzero(x)[0] * 2)
    for x in (np.float32([1, 0, 1, 0, 0, 0, 0]), np.float32([1, 1, 1, 0, 1, 0, 0])):
        watched(x)
    [cause] = watched.retraces[1].causes
    assert cause.kind == "shape" and cause.after == "other ones, which depend on values"


def test_other_wrappers_and_transformations():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    watched = watch(nnx.jit(lambda model, x, n: n * model(x), static_argnames="n"))
    for rows in (2, 5):
        watched(model, np.ones((rows, 3), np.float32), n=1)
    assert str(watched.retraces[1]).endswith(" compiled: x: shape (2, 3) -> (5, 3)")
    inside = watch(fresh())
    inside(jnp.ones(3))
    jax.vmap(inside)(jnp.ones((2, 3)))
    assert [str(cause) for cause in inside.retraces[1].causes] == ["x: transformation none -> BatchTracer"]


def test_warm_calls_are_not_looked_at_twice(monkeypatch):
    watched = watch(fresh())
    watched(X), watched(X)
    monkeypatch.setattr(retraces, "signature_of", None)
    assert watched(X) == 3


def test_numbers_that_are_no_static_arguments_cause_nothing():
    watched = watch(jax.jit(lambda x, n: jnp.sum(x) * n))
    for x, n in ((X, 1), (X, 2), (X, 3.0), (np.ones(4, np.float32), 5.0)):
        watched(x, n)
    assert [[str(cause) for cause in retrace.causes] for retrace in watched.retraces] == [
        [],
        ["n: dtype int32 -> float32"],
        ["x: shape (3,) -> (4,)"],
    ]


def test_causes_in_words():
    watched = watch(fresh())
    for args, kwargs in (((X,), {}), ((X, X), {}), ((X,), {"y": X}), (({"a": X}, X), {})):
        watched(*args, **kwargs)
    assert [str(cause) for retrace in watched.retraces[1:] for cause in retrace.causes] == [
        "y: not given (default None) -> array",
        "y: by place -> by keyword",
        "x: pytree structure array -> dict {'a': array}",
    ]
    assert repr(watched) == str(watched)


def test_what_is_no_function_is_refused():
    with pytest.raises(
        ValueError, match=r"^watch was given 3: a function, jitted or one that calls some, is needed$"
    ):
        watch(3)


def test_a_number_whose_value_made_a_program_is_static():
    watched = watch(jax.jit(lambda x, n, k: jnp.sum(x) * n + k, static_argnums=1))
    for n, k in ((1, 2), (1, 3), (2, 3), (2.0, 3)):
        watched(X, n, k)
    assert [str(cause) for retrace in watched.retraces for cause in retrace.causes] == [
        "n: static value 1 -> 2",
        "n: static value 2 -> 2.0",
    ]
