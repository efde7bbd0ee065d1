"""Positions of text and images, and what a caller may get wrong."""

import numpy as np
import pytest

from ubjax import mrope_positions


def test_an_image_of_2_x_6_spans_six_positions():
    pos = mrope_positions([3, (2, 6), 1])
    assert pos[0].tolist() == [0, 1, 2, *[3] * 12, 9]
    assert pos[1].tolist() == [0, 1, 2, *[3] * 6, *[4] * 6, 9]
    assert pos[2].tolist() == [0, 1, 2, *range(3, 9), *range(3, 9), 9]


def test_four_sections_and_a_start():
    parts = [(3, 1), np.int64(0), (1, 1), 2]
    assert mrope_positions(iter(parts), start=np.int32(7), n_pos=4).tolist() == [
        [7, 7, 7, 10, 11, 12],
        [7, 8, 9, 10, 11, 12],
        [7, 7, 7, 10, 11, 12],
        [0] * 6,
    ]


def test_nothing_has_no_positions():
    assert mrope_positions([]).shape == (3, 0)


@pytest.mark.parametrize(
    ("parts", "sizes", "fault"),
    [
        ([1, -2], {}, "part 1 has -2 tokens of text, at least 0 are needed"),
        ([1.5], {}, "part 0 is 1.5, an integer is needed"),
        ([(2, 3, 4)], {}, r"part 0 has 3 numbers, \(rows, columns\) of an image are needed"),
        ([(2, 0)], {}, "part 0 is an image of 2 x 0 tokens, at least 1 x 1 is needed"),
        ([(2, "a")], {}, "a side of part 0 is 'a', an integer is needed"),
        ([1], {"start": -1}, "start is -1, at least 0 is needed"),
        ([2**24 + 1], {}, "part 0 has 16777217 tokens, at most 16777216 are possible"),
        ([1, (2**20, 2**20)], {}, "part 1 has 1099511627776 tokens, at most 16777216 are possible"),
        ([3], {"start": 2**31 - 2}, "part 0 reaches position 2147483648, at most 2147483646 is possible"),
        ([1], {"n_pos": 1}, "n_pos is 1, 3 or 4 is needed"),
    ],
)
def test_what_is_no_part_is_refused(parts, sizes, fault):
    with pytest.raises(ValueError, match=fault):
        mrope_positions(parts, **sizes)
