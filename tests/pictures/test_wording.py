"""Runs of numbers, cuts and sets in words."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ubjax.pictures.wording import amount, count, ends, ids_of, noun, ranges


@example([0, 100, 100, 0, 0], 13)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(10, 60))
def test_ranges_are_true_and_short(numbers, room):
    whole = ranges(numbers, 10_000)
    pairs = [text.split("-") for text in whole.split()]
    assert [n for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)] == numbers
    short = ranges(numbers, room)
    assert len(short) <= room
    if short != whole:
        assert len(whole) > room
        start, end = short.split(" .. ")
        assert whole.startswith(start)
        assert whole.endswith(end)


@given(st.integers(0, 1000), st.integers(2, 100))
def test_ends_show_all_or_exactly_as_many_as_asked(n, shown):
    first, last = ends(n, shown)
    assert (first, last) == (n, 0) if n <= shown else (first + last == shown and first >= last >= 1)


def test_ids_of_all_words_are_read():
    assert ids_of(np.asarray([1 << 31 | 1, 0, 1], np.uint32)).tolist() == [0, 31, 64]
    assert ids_of(np.zeros(8, np.uint32)).tolist() == []


@pytest.mark.parametrize(("n", "text"), [(0, "0 cells"), (1, "1 cell"), (16384, "16,384 cells")])
def test_counts_have_their_noun(n, text):
    assert count(n, "cell") == text
    assert amount(n, "cell") == text.replace(",", "")
    assert noun(n, "is", "are") == ("is" if n == 1 else "are")
