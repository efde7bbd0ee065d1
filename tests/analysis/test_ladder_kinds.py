"""Ladders by name: each kind builds the sizes it says, for one dimension and two."""

import pytest

from ubjax.analysis.ladder_kinds import ladder_text, parse_ladder, parse_ladders


@pytest.mark.parametrize(
    ("text", "n_ubatch", "sizes"),
    [
        ("pow2", 12, (1, 2, 4, 8, 12)),
        ("pow2+gap:8", 32, (1, 2, 4, 8, 16, 24, 32)),
        ("pow2+gap:6", 16, (1, 2, 4, 6, 12, 16)),
        ("pow2+gap", 256, (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)),
        ("linear:4", 512, (128, 256, 384, 512)),
        ("linear:8", 3, (1, 2, 3)),
        ("1,8,64,512", 512, (1, 8, 64, 512)),
        ("1,8,64,512", 128, (1, 8, 64, 128)),
        (" 8 ", 32, (8, 32)),
    ],
)
def test_kinds_of_one_dimension(text, n_ubatch, sizes):
    kind = parse_ladder(text)
    ladder = kind.build(n_ubatch)
    assert kind.text == text.strip() and not kind.needs_traffic
    assert ladder.shapes() == tuple((1, size) for size in sizes)
    assert kind.sizes(n_ubatch).sizes == sizes


def test_kinds_of_two_dimensions():
    assert parse_ladder("pow2").build(8, 4).shapes() == (
        *((1, rows) for rows in (1, 2, 4, 8)),
        *((2, rows) for rows in (1, 2, 4)),
        *((4, rows) for rows in (1, 2)),
    )
    assert parse_ladder("3").build(8, 4).shapes() == ((3, 3), (3, 8), (4, 3))
    assert parse_ladder("1x8,4x4,9x1").build(8, 4).shapes() == ((1, 8), (4, 1), (4, 4))


def test_fitted_kinds():
    histogram = {(1, 3): 5, (1, 7): 5, (1, 1): 2}
    assert parse_ladder("opt:2").build(8, 1, histogram).shapes() == ((1, 3), (1, 8))
    assert parse_ladder("opt").build(8, 1, histogram).shapes() == (
        (1, 3),
        (1, 7),
        (1, 8),
    )  # pow2 uses 1, 4, 8
    both = parse_ladder("opt:3").build(8, 2, histogram | {(2, 1): 50})
    assert (2, 1) in both.shapes() and len(both.shapes()) == 3
    with pytest.raises(ValueError, match="a histogram of shapes is needed"):
        parse_ladder("opt:2").build(8)
    with pytest.raises(ValueError, match="the number of sets is needed"):
        parse_ladder("opt:2").build(8, 1, {(2, 1): 1})
    with pytest.raises(ValueError, match="the ladder opt has no sizes without traffic"):
        parse_ladder("opt").sizes(8)


@pytest.mark.parametrize(
    "text", ["", "pow3", "pow2:3", "linear", "linear:x", "opt:", "opt:-1", "1,,2", "1x", "1x2,3", "pow2+gap:"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="is no ladder: pow2, pow2"):
        parse_ladder(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("opt:0", "the ladder opt:0 has the number 0"),
        ("8,4", "strictly ascending"),
        ("0,4", "all positive"),
        ("1x0,4x1", "'1x0,4x1' has a shape without rows: sizes of at least 1 are needed"),
    ],
)
def test_impossible_numbers_are_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_ladder(text)


def test_shapes_are_completed_as_sizes_are():
    assert parse_ladder("1x8,4x2").build(8, 4).shapes() == ((1, 8), (2, 4), (4, 2))
    assert parse_ladder("1x64,8x1").build(512).shapes() == ((1, 1), (1, 64), (1, 512))
    wide = parse_ladder("1x64,8x1").build(512, 32).shapes()
    assert wide == ((1, 64), (1, 512), (2, 256), (4, 170), (8, 1), (8, 102), (16, 56), (32, 30))


def test_several_ladders_between_commas():
    kinds = parse_ladders("pow2,opt:8,1,8,64,linear:4,1x8,4x2,3")
    assert [kind.text for kind in kinds] == ["pow2", "opt:8", "1,8,64", "linear:4", "1x8,4x2", "3"]


@pytest.mark.parametrize("text", ["pow2", "linear:3", "7", "3x5,4x2,1x8,2x4"])
def test_a_built_ladder_is_read_again(text):
    for n_seqs in (1, 4):
        ladder = parse_ladder(text).build(8, n_seqs)
        again = parse_ladder(ladder_text(ladder)).build(8, n_seqs)
        assert again.shapes() == ladder.shapes()
        assert all(
            again.pick(s, t) == ladder.pick(s, t) for s in range(1, n_seqs + 1) for t in range(1, 8 // s + 1)
        )
