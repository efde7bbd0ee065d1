"""Any cache, saved and loaded: the same bytes when saved again, the same logits of what comes next."""

import contextlib
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.saving.helpers import engine_of, put
from tests.tiny import CONFIG

S = 4
seqs, bounds = st.integers(0, S - 1), st.integers(-1, 12)
ids = st.lists(st.integers(0, CONFIG.n_vocab - 1), min_size=1, max_size=7)
operations = st.one_of(
    st.tuples(st.just("decode"), seqs, ids),
    st.tuples(st.just("decode"), seqs, ids),
    st.tuples(st.just("rm"), seqs, bounds, bounds),
    st.tuples(st.just("cp"), seqs, seqs, bounds, bounds),
    st.tuples(st.just("cp"), seqs, seqs, st.just(-1), st.just(-1)),
    st.tuples(st.just("add"), st.just(list(range(S))), bounds, bounds, st.integers(-3, 3)),
)


@functools.cache
def engine(kind, number):
    """Engines that keep what the last example left in them."""
    return engine_of(kind)


def filled(kind, todo):
    """An engine after these operations, as far as it takes them."""
    one = engine(kind, 0)
    one.clear()
    for name, *args in todo:
        with contextlib.suppress(ValueError):
            put(one, *args) if name == "decode" else getattr(one, name)(*args)
    return one


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unified", "window streams"])
@settings(max_examples=20)
@given(todo=st.lists(operations, min_size=2, max_size=9), seq=seqs)
def test_any_state(kind, todo, seq):
    first, second, third = filled(kind, todo), engine(kind, 1), engine(kind, 2)
    whole, own = first.get_state(), first.get_state(seq, [1])
    second.set_state(whole)
    assert second.get_state() == whole
    third.rm((seq + 1) % S)
    third.rm((seq + 2) % S)  # what the other two hold may lie anywhere
    third.set_state(own, seq)
    assert third.get_state(seq, [1]) == own == second.get_state(seq, [1])
    for s in range(S):
        assert (first.pos_min(s), first.pos_max(s)) == (second.pos_min(s), second.pos_max(s))
    if first.n_free_cells() and first.pos_max(seq) < first.memory.n_cells - 1:
        want = put(first, seq, [5])
        for other in (second, third):
            np.testing.assert_allclose(put(other, seq, [5]), want, rtol=0, atol=1e-5)
