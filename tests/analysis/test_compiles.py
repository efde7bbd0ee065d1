"""The counter counts each new program once and warm calls never; jax's event names are as expected."""

import collections

import jax
import jax.numpy as jnp
import pytest

from ubjax.analysis import CompileCount, count_compilations


def test_new_shapes_count_and_warm_calls_do_not():
    @jax.jit
    def triple(x):
        return x * 3

    two, three = jnp.ones(2), jnp.ones(3)
    with count_compilations() as count:
        for x in (two, three, two, three):
            triple(x)
    assert count.by_name == {"triple": 2} and count.total == 2 and count.seconds > 0
    assert str(count).startswith("2 compilations in ") and "triple x2" in str(count)
    with count_compilations() as warm:
        triple(two)
    assert warm.total == 0


def test_counts_add_up():
    whole = CompileCount(collections.Counter({"step": 1}), 0.5)
    whole.add(CompileCount(collections.Counter({"step": 2, "stage": 1}), 1.0))
    assert whole == CompileCount(collections.Counter({"step": 3, "stage": 1}), 1.5) and whole.total == 4


def test_counting_ends_with_the_block_even_after_an_error():
    with pytest.raises(RuntimeError), count_compilations() as count:
        raise RuntimeError("inside")
    jax.jit(lambda x: x + 5)(jnp.ones(5))
    assert count.total == 0


def test_nested_blocks_count_alike():
    with count_compilations() as outer, count_compilations() as inner:
        jax.jit(lambda x: x + 6)(jnp.ones(6))
    assert outer.total == inner.total > 0
