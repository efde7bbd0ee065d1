"""Each cause of a new program is named; warm calls are silent; a ban names the culprit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from ubjax.analysis import (
    UnexpectedCompilationError,
    count_compilations,
    forbid_compilations,
    retraces,
    watch,
)
from ubjax.analysis.retraces import Cause

X = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _nothing_was_watched(monkeypatch):
    """The functions of these tests have the same code; none is to be a new object of an earlier test's."""
    monkeypatch.setattr(retraces, "_functions", {})


def causes_of(function, first, second):
    """The causes of the second call, each a pair (args, kwargs)."""
    watched = watch(function)
    with count_compilations() as count:
        for args, kwargs in (first, second, first, second):
            watched(*args, **kwargs)
    assert [retrace.call for retrace in watched.retraces] == [1, 2] and watched.calls == 4
    assert watched.retraces[0].causes == ()
    assert count.functions["step"].compiled == 2
    return [(cause.argument, cause.kind) for cause in watched.retraces[1].causes]


def step(x, y=None):
    return x["a"] + 1 if isinstance(x, dict) else jnp.sum(x)


def fresh():
    """A jitted function that no other test has compiled."""
    return jax.jit(lambda_step(step))


def lambda_step(inner):
    @functools.wraps(inner)
    def step(*args, **kwargs):
        return inner(*args, **kwargs)

    return step


def on(device):
    return jax.device_put(X, SingleDeviceSharding(jax.devices()[device]))


@pytest.mark.parametrize(
    ("first", "second", "causes"),
    [
        (X, np.ones(4, np.float32), [("x", "shape")]),
        (X, np.ones((3, 1), np.float32), [("x", "shape")]),
        (X, np.ones(3, np.int32), [("x", "dtype")]),
        (X, np.ones(2, np.int32), [("x", "shape"), ("x", "dtype")]),
        (1.0, jnp.float32(1), [("x", "weak type")]),
        (1.0, 1, [("x", "dtype")]),
        ({"a": X}, {"a": X[:2]}, [("x['a']", "shape")]),
        ({"a": X}, {"a": X, "b": X}, [("x", "pytree structure")]),
        ({"a": X, "b": None}, {"a": X, "b": X}, [("x['b']", "None or not")]),
        ((X, X), [X, X], [("x", "pytree structure")]),
    ],
)
def test_what_an_argument_changed(first, second, causes):
    def total(x):
        return jax.tree.reduce(lambda a, b: a + jnp.sum(b), x, jnp.float32(0))

    jitted = jax.jit(functools.wraps(step)(lambda x: total(x)))
    assert causes_of(jitted, ((first,), {}), ((second,), {})) == causes


def test_sharding_is_named():
    watched = watch(fresh())
    for x in (on(0), on(1), on(0), on(1)):
        watched(x)
    assert [retrace.call for retrace in watched.retraces] == [1, 2]
    [cause] = watched.retraces[1].causes
    assert (cause.argument, cause.kind) == ("x", "sharding") and "CpuDevice(id=1)" in cause.after


def test_none_or_an_array():
    assert causes_of(fresh(), ((X, None), {}), ((X, X), {})) == [("y", "None or not")]
    assert causes_of(fresh(), ((X,), {}), ((X, X), {})) == [("y", "given or not")]


def test_by_place_or_by_keyword():
    assert causes_of(fresh(), ((X, X), {}), ((X,), {"y": X})) == [("y", "place or keyword")]


def test_static_values():
    jitted = jax.jit(step_with_mode, static_argnames=("mode", "n"))
    watched = watch(jitted)
    for mode, n in (("a", 1), ("b", 1), ("b", 2**40), ("a", 1), ("b", 2**40)):
        watched(X, mode=mode, n=n)
    assert [str(cause) for retrace in watched.retraces for cause in retrace.causes] == [
        "mode: static value 'a' -> 'b'",
        "n: static value 1 -> 1099511627776",
    ]


def step_with_mode(x, *, mode, n, key=None):
    return jnp.sum(x) * (2 if mode == "a" else 3) + (n > 1)


def test_a_new_function_as_a_static_argument():
    jitted = watch(jax.jit(lambda x, key: key(x), static_argnames="key"))
    for _ in range(2):
        jitted(X, key=lambda x: x + 1)
    [cause] = jitted.retraces[1].causes
    assert (cause.argument, cause.kind) == ("key", "new function object")
    assert cause.before == cause.after and cause.before.startswith("<lambda> (test_retraces.py:")


def test_a_function_that_is_jitted_again():
    noted = []
    for scale in (2, 2):
        again = watch(jax.jit(functools.partial(scaled, scale)))
        assert again(X).sum() == again(X).sum() == 6
        noted += again.retraces
    assert noted[0].causes == ()
    assert noted[1].causes == (Cause("scaled", "new function object", "one of the same code", "this one"),)
    assert watch(jax.jit(scaled_once))(X, 1.0) == watch(jax.jit(scaled_once))(X, 1.0)
    same = watch(jax.jit(scaled_once))
    same(X, 1.0)
    assert same.retraces == []  # the same function object: jax still knows it


def scaled(scale, x):
    return scale * x


def scaled_once(x, scale):
    return jnp.sum(scale * x)


def test_the_nearest_call_is_compared():
    watched = watch(fresh())
    for x in (np.ones(3, np.float32), np.ones(5, np.int32), np.ones(7, np.float32)):
        watched(x)
    assert [str(cause) for cause in watched.retraces[2].causes] == ["x: shape (3,) -> (7,)"]
    jax.clear_caches()
    watched(np.ones(3, np.float32))
    [cause] = watched.retraces[3].causes
    assert cause.kind == "unknown" and "caches were cleared" in cause.after


def test_donated_arguments_are_described():
    watched = watch(jax.jit(lambda x: x + 1, donate_argnums=0))
    for n in (3, 4):
        watched(jnp.ones(n))
    assert [str(cause) for cause in watched.retraces[1].causes] == ["x: shape (3,) -> (4,)"]


def test_a_watched_function_keeps_its_face():
    watched = watch(fresh())
    assert getattr(watched, "__name__", "") == "step" and watched(X) == 3
    assert str(watched).splitlines() == [
        "step: 1 call, 1 program",
        "  call 1: step traced, step compiled: first call",
    ]
    assert jax.jit(lambda x: watched(x) + 1)(X) == 4  # inside another program


def test_a_ban_names_the_culprit():
    watched, two, three = watch(fresh()), jnp.ones(2), jnp.ones(3)
    watched(two)
    with forbid_compilations():
        watched(two)
        with pytest.raises(UnexpectedCompilationError) as caught:
            watched(three)
    assert caught.value.function == "step"
    assert str(caught.value) == (
        "step was compiled where no compilation is allowed: call 3: step traced: x: shape (2,) -> (3,)"
    )
    assert watched(three) == 3 and watched.retraces[-1].call == 4


def test_a_ban_names_what_is_not_watched():
    plain, x = fresh(), jnp.ones(6)
    with (
        forbid_compilations(),
        pytest.raises(UnexpectedCompilationError, match=r"^step was compiled where no"),
    ):
        plain(x)
    assert plain(x) == 6
    with forbid_compilations():
        plain(x)
    with pytest.raises(UnexpectedCompilationError, match=r"^cos was compiled"), forbid_compilations():
        jnp.cos(x)
