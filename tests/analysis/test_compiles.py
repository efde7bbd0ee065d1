"""The counter counts each new program once and warm calls never; jax's event names are as expected."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from ubjax.analysis import CompileCount, count_compilations, events


def test_new_shapes_count_and_warm_calls_do_not():
    @jax.jit
    def triple(x):
        return x * 3

    two, three = jnp.ones(2), jnp.ones(3)
    with count_compilations() as count:
        for x in (two, three, two, three):
            triple(x)
    assert count.by_name == {"triple": 2} and count.total == 2 and count.seconds > 0
    assert count.functions["triple"].traced == count.functions["triple"].compiled == 2
    assert str(count).startswith("2 compilations in ") and "triple x2" in str(count)
    assert "<td>triple</td><td>2</td><td>2</td><td>0</td>" in count._repr_html_()
    with count_compilations() as warm:
        triple(two)
    assert warm.total == 0 and warm.functions == {}


def test_tracing_alone_is_no_compilation():
    @jax.jit
    def negate(x):
        return -x

    with count_compilations() as count:
        jax.eval_shape(negate, jax.ShapeDtypeStruct((5,), jnp.float32))
    assert count.functions["negate"].traced == 1 and count.total == 0 and count.by_name == {}


def test_programs_of_the_persistent_cache_are_told_apart(tmp_path):
    @jax.jit
    def stored(x):
        return x * 7 + 1

    options = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in options]
    x = jnp.ones(5)
    compilation_cache.reset_cache()
    try:
        for name, value in zip(options, (str(tmp_path), 0.0), strict=True):
            jax.config.update(name, value)
        with count_compilations() as cold:
            stored(x)
        jax.clear_caches()
        with count_compilations() as warm:
            stored(x)
    finally:
        for name, value in zip(options, before, strict=True):
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert (cold.functions["stored"].compiled, cold.functions["stored"].cached) == (1, 0)
    assert (warm.functions["stored"].compiled, warm.functions["stored"].cached) == (0, 1)
    assert warm.total == 1 and warm.cached == 1 and "1 from the persistent cache" in str(warm)


def test_other_threads_count_too():
    x = jnp.ones(8)
    with count_compilations() as count:
        thread = threading.Thread(target=jax.jit(lambda x: x - 8), args=(x,))
        thread.start()
        thread.join()
    assert count.by_name == {"<lambda>": 1}


def test_counts_add_up():
    whole, x = CompileCount(), jnp.ones(9)
    for k in (9, 10):
        with count_compilations() as part:
            jax.jit(lambda x, k=k: x * k)(x)
        whole.include(part)
    assert whole.by_name == {"<lambda>": 2} and whole.seconds > part.seconds


def test_counting_ends_with_the_block_even_after_an_error():
    with pytest.raises(RuntimeError), count_compilations() as count:
        raise RuntimeError("inside")
    jax.jit(lambda x: x + 5)(jnp.ones(5))
    assert count.total == 0


def test_nested_blocks_count_alike():
    with count_compilations() as outer, count_compilations() as inner:
        jax.jit(lambda x: x + 6)(jnp.ones(6))
    assert outer.total == inner.total > 0


def test_a_jax_with_other_events_is_refused(monkeypatch):
    monkeypatch.setattr(events, "_STAGES", {"/jax/some/other/event": "compiled"})
    events._try_events.cache_clear()
    with (
        pytest.raises(RuntimeError, match=r"^jax .* reported nothing for a new program"),
        count_compilations(),
    ):
        pass
    events._try_events.cache_clear()
