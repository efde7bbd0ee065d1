"""Sheets: texts can't break out of the markup, files stand alone, extents hold what was drawn."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.svg import parse, texts, titles
from ubjax.pictures.boxes import NEUTRAL, PALETTE, colour_of, draw_box, draw_free, draw_padding
from ubjax.pictures.sheet import DARK, Sheet, escape, text_width


def box(**arguments):
    sheet = Sheet()
    draw_box(sheet, 0, 0, **{"figure": "7", "title": "a token", **arguments})
    return sheet.picture("a box")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\"quoted' & <b>", "\"quoted' & <b>"),
        ("日本語 é 🙂", "日本語 é 🙂"),
        ("\x00\x1b[31m\ud800\ufffe\r\n\t", "��[31m�����"),
        ("]]><!--", "]]><!--"),
        ("x" * 1000, "x" * 299 + "…"),
    ],
)
def test_texts_stay_texts(text, seen):
    markup = box(title=text)._repr_html_()
    assert titles(markup) == [seen]
    assert "<script" not in markup


@given(st.text(max_size=40))
@settings(max_examples=50)
def test_any_text_gives_well_formed_markup(text):
    sheet = Sheet()
    sheet.text(0, 10, text)
    draw_box(sheet, 0, 20, figure=text, title=text, badge=text)
    picture = sheet.picture(text)
    parse(picture._repr_html_())
    ET.fromstring(picture.to_svg())


def test_escape_cuts_what_is_too_long():
    assert escape("a" * 80) == "a" * 80
    assert escape("a" * 81) == "a" * 79 + "…"
    assert escape("<" * 5, 3) == "&lt;&lt;…"


def test_inline_pictures_take_the_colour_of_the_page():
    root = parse(box()._repr_html_())
    assert root.attrib["fill"] == "currentColor"
    assert root.attrib["aria-label"] == "a box"


def test_the_text_of_a_picture_is_what_it_shows():
    assert repr(box()) == "Picture(width=32, height=30, label='a box')"


def test_a_file_knows_light_and_dark(tmp_path):
    path = tmp_path / "box.svg"
    text = box().to_svg(path)
    assert path.read_text(encoding="utf-8") == text
    assert ET.fromstring(text).attrib["viewBox"].startswith("-12 -12 ")
    assert "prefers-color-scheme:dark" in text


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*PALETTE, NEUTRAL])
def test_dark_text_is_easy_to_read_on_every_fill(colour):
    assert (luminance(colour) + 0.05) / (luminance(DARK) + 0.05) > 4.5  # WCAG AA


def test_a_sequence_keeps_its_colour():
    assert [colour_of(seq) for seq in (0, 7, 8, 255)] == [PALETTE[0], PALETTE[7], PALETTE[0], PALETTE[7]]
    assert len(set(PALETTE)) == len(PALETTE)


def test_long_figures_are_set_smaller():
    sizes = [box(figure="9" * n)._repr_html_().split("</text>")[0].rpartition("<text")[2] for n in (2, 6, 9)]
    assert ["font-size" in size for size in sizes] == [False, True, True]


def test_sheets_grow_with_what_is_placed_on_them():
    inner, outer = Sheet(), Sheet()
    draw_padding(inner, [(0, 0), (34, 0)])
    draw_free(inner, [(68, 0)])
    assert (inner.width, inner.height) == (100, 30)
    outer.flow([inner, inner, inner], room=250)
    assert (outer.width, outer.height) == (228, 74)
    outer.below(inner)
    assert outer.height == 74 + 8 + 30
    outer.below(Sheet())
    assert outer.height == 112


def test_nothing_is_drawn_for_no_boxes():
    sheet = Sheet()
    draw_padding(sheet, [])
    draw_free(sheet, [])
    assert (sheet.width, sheet.height, texts(sheet.picture("nothing")._repr_html_())) == (0, 0, [])


def test_wide_characters_count_as_wide():
    assert text_width("日本") > text_width("ab")
