"""context_shift: what is removed and by how much the rest moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.memory.context import context_shift


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((32, 0, 1, 32), ((0, 16), -16)),
        ((32, 4, 1, 32), ((4, 18), -14)),
        ((31, 4, 1, 32), ((4, 4), 0)),  # there is room
        ((32, 4, 20, 32), ((4, 24), -20)),  # half is not enough
        ((33, 0, 0, 32), ((0, 16), -16)),
        ((7, 9, 1, 32), ((7, 7), 0)),
        ((0, 0, 5, 5), ((0, 0), 0)),
    ],
)
def test_the_older_half_behind_what_is_kept_goes(sizes, expected):
    assert context_shift(*sizes) == expected


@pytest.mark.parametrize("n_keep", [32, 40])
def test_nothing_can_go_when_all_is_kept(n_keep):
    assert context_shift(32, n_keep, 0, 32) == ((32, 32), 0)
    with pytest.raises(
        ValueError, match=r"1 token never fits behind the 32 that are kept: .* holds 32, 33 are needed"
    ):
        context_shift(32, n_keep, 1, 32)


def test_what_never_fits_is_refused():
    with pytest.raises(ValueError, match="40 tokens never fit behind the 2"):
        context_shift(8, 2, 40, 32)
    with pytest.raises(ValueError, match="n_keep is -1, at least 0 is needed"):
        context_shift(8, -1, 1, 32)


@given(*[st.integers(0, 50)] * 4)
def test_afterwards_there_is_room(n_past, n_keep, n_new, n_ctx):
    try:
        (p0, p1), delta = context_shift(n_past, n_keep, n_new, n_ctx)
    except ValueError:
        assert min(n_keep, n_past) + n_new > n_ctx
        return
    assert p0 == min(n_keep, n_past) <= p1 <= n_past and delta == p0 - p1
    assert n_past + delta + n_new <= n_ctx
