"""Stop strings: nothing of them gets out, everything else does, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.generate.stops import StopTail


def fed(stops, pieces):
    """Emitted pieces (the last is what the flush gives) and the stop that was found."""
    tail = StopTail(stops)
    return [*map(tail.feed, pieces), tail.flush()], tail.stopped


def test_what_may_become_a_stop_waits_as_in_the_docstring():
    pieces = ["the ", "E", "N", "TRY ", "EN", "D of"]
    assert fed(["END"], pieces) == (["the ", "", "", "ENTRY ", "", "", ""], "END")


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped"),
    [
        ([], ["a", "b"], "ab", None),
        (["bc"], ["a", "b"], "ab", None),  # the flush gives back what was held
        (["é"], ["caf", "é!"], "caf", "é"),
        (["b", "abc"], ["ab"], "a", "b"),  # complete first, although the other began earlier
        (["bc", "abc"], ["abc"], "", "abc"),  # complete at once: the longest
        (["aab"], ["aa", "ab"], "a", "aab"),  # the held part overlaps itself
    ],
)
def test_cases(stops, pieces, text, stopped):
    emitted, found = fed(stops, pieces)
    assert ("".join(emitted), found) == (text, stopped)


def oracle(stops, text):
    """The shortest beginning of the text that ends with a stop decides."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    stops=st.lists(st.text("abé", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abé", max_size=5), max_size=6),
)
def test_the_cut_does_not_matter_and_no_held_text_is_longer_than_needed(stops, pieces):
    text, stopped = oracle(stops, "".join(pieces))
    emitted, found = fed(stops, pieces)
    assert ("".join(emitted), found) == (text, stopped)
    for k in range(len(pieces)):
        held = text[len("".join(emitted[: k + 1])) :]
        seen = len("".join(pieces[: k + 1])) - len("".join(emitted[: k + 1]))
        if stopped is None and seen:
            assert any(stop.startswith(held[:seen]) for stop in stops)
