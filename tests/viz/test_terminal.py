"""Drawings of plans, character by character, and the laws that long ones keep."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ubjax import Batch, BatchConfig
from ubjax.buckets import Buckets
from ubjax.split import split_equal, split_seq, split_simple
from ubjax.viz import terminal
from ubjax.viz.plan_view import BatchView, PlanView
from ubjax.viz.terminal import PALETTE, Canvas, Ink

ANSI = re.compile("\x1b\\[[0-9;]*m")
PLAIN = Ink(colour=False)


def draw(seqs, split, *, n_ubatch=8, ink=PLAIN, width=80, capacity=64):
    """The line of the batch and the lines of one of its plans."""
    n_seq_max = 1 + max(max(ids) if isinstance(ids, list) else ids for ids in seqs)
    config = BatchConfig(n_vocab=1, n_batch=capacity, n_seq_max=n_seq_max)
    batch = Batch.from_arrays(np.zeros(len(seqs), np.int32), config=config, seq_id=seqs, capacity=capacity)
    buckets = Buckets.default(
        n_batch=capacity, n_ubatch=n_ubatch, n_streams=n_seq_max, n_cells=(1,), kv_pad=1
    )
    view = BatchView.of(batch)
    canvas = Canvas(view, ink, width)
    return [canvas.rows_of_batch(), *canvas.plan(PlanView(view, split(batch, n_ubatch), buckets))]


def equal(batch, n_ubatch):
    return split_equal(batch, n_ubatch, sequential=True)


EXAMPLE = [0] * 5 + [1] * 5 + [2] * 5 + [3]


def test_the_drawing_in_the_docstring():
    drawn = draw(EXAMPLE, equal)
    assert drawn[0] == "batch 0000011111222223"
    documented = [line[4:] for line in str(terminal.__doc__).splitlines() if line.startswith("     ")]
    assert len(documented) == 7
    assert drawn[1:] == documented


def test_one_sequence_in_a_ubatch():
    assert draw(EXAMPLE, split_seq)[1:] == [
        "  ubatch  tokens  seqs x len  padded  out  sequences  batch rows",
        "       0       5       1 x 5   1 x 8    0  0          0-4",
        "       1       5       1 x 5   1 x 8    0  1          5-9",
        "       2       5       1 x 5   1 x 8    0  2          10-14",
        "       3       1       1 x 1   1 x 1    1  3          15",
        "       0  00000...",
        "       1  11111...",
        "       2  22222...",
        "       3  3",
    ]


def test_labels_of_two_digits_and_tokens_of_several_sequences():
    drawn = draw([[0, 10], [0], [11]], split_simple)
    assert drawn[0] == "batch   0+   0  11"
    assert drawn[2:] == [
        "       0       3       3 x 1       4    1  0 10-11    0-2",
        "       0    0+   0  11 ...",
    ]


def test_short_rectangles_have_their_padding_inside():
    drawn = draw([0] * 3 + [1] * 3 + [2] * 3, equal, n_ubatch=16)
    assert drawn[-1] == "       0  000.|111.|222."


def test_no_ubatch_no_lines():
    assert draw([[0, 1], [0]], equal) == ["batch  0+  0"]


def test_colours_repeat_what_the_text_says():
    for split in (equal, split_simple, split_seq):
        plain = draw(EXAMPLE, split)
        coloured = draw(EXAMPLE, split, ink=Ink(colour=True))
        assert [ANSI.sub("", line) for line in coloured] == plain
        assert coloured != plain
    reset = "\x1b[0m"
    first, second = (f"\x1b[38;5;16;48;5;{PALETTE[s]}m" for s in (0, 1))
    assert (
        draw([0, 0, 0, 1], split_seq, ink=Ink(colour=True))[4]
        == f"       0  {first}000{reset}\x1b[2m.{reset}"
    )
    assert draw([0, 1], split_simple, ink=Ink(colour=True))[0] == f"batch {first}0{reset}{second}1{reset}"


@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize(
    ("environ", "allowed"),
    [
        ({"TERM": "xterm"}, True),
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "0", "TERM": "xterm"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(tty, environ, allowed):
    assert Ink.of(terminal=tty, encoding="utf-8", environ=environ).colour == (tty and allowed)


@pytest.mark.parametrize(
    ("encoding", "hatch"), [("utf-8", "░"), ("ascii", "."), ("cp437", "░"), ("latin-1", ".")]
)
def test_the_hatch_can_be_encoded(encoding, hatch):
    assert Ink.of(terminal=False, encoding=encoding, environ={}).hatch == hatch


def test_a_long_prompt_is_shortened():
    drawn = draw([0] * 2000, split_simple, capacity=2000)
    assert drawn[0] == f"batch {'0' * 48}<1937 more>{'0' * 15}"
    table, cells = drawn[2:10], drawn[10:]
    assert [line.split()[0] for line in table] == ["0", "1", "2", "3", "4", "..", "248", "249"]
    assert [line.split()[0] for line in cells] == ["0", "1", "2", "3", "4", "..", "248", "249"]
    assert table[5] == cells[5] == "      ..  243 more ubatches"
    assert table[7].split()[-1] == "1992-1999"


def test_a_plan_of_eight_is_shown_whole():
    assert "more" not in "".join(draw(list(range(8)), split_seq))
    assert sum("2 more ubatches" in line for line in draw(list(range(9)), split_seq)) == 2


def test_wide_rectangles_lose_blocks_in_the_middle():
    seqs = list(range(32)) * 2
    kept = "  0  0|  1  1|  2  2|  3  3|  4  4|  5  5"
    assert draw(seqs, equal, n_ubatch=64)[-1] == f"       0  {kept}|<25 more blocks>| 31 31"


@st.composite
def batches(draw_):
    n_seqs = draw_(st.integers(1, 12))
    return draw_(st.lists(st.integers(0, n_seqs - 1), min_size=1, max_size=64))


@given(batches(), st.sampled_from([1, 3, 8, 64]), st.sampled_from([80, 100, 200]))
@settings(max_examples=40)
def test_every_row_is_drawn_or_counted_and_lines_fit(seqs, n_ubatch, width):
    for split in (equal, split_simple, split_seq):
        lines = draw(seqs, split, n_ubatch=n_ubatch, width=width)
        assert max(map(len, lines)) <= width
        head = lines.index(next(line for line in lines if line.startswith("  ubatch")))
        half = (len(lines) - head - 1) // 2
        table, cells = lines[head + 1 : head + 1 + half], lines[head + 1 + half :]
        size = 3 if max(seqs) > 9 else 1
        for entry, drawn in zip(table, cells, strict=True):
            if "more ubatches" in entry:
                assert entry == drawn
            else:
                assert rows_drawn(drawn[10:], size) == padded_rows(entry)


def padded_rows(entry):
    """The rows of the bucket, `4 x 2` or `8`, in a line of the table."""
    bucket = re.match(r" +\d+ +\d+ +\d+ x \d+ +(\d+)(?: x (\d+))?", entry)
    assert bucket is not None
    return int(bucket[1]) * int(bucket[2] or 1)


def rows_drawn(text, size):
    """Cells in a line plus those that its gaps stand for."""
    blocks = text.split("|")
    per_block = [
        (len(re.sub(r"<\d+ more>", "", block)) // size) + sum(map(int, re.findall(r"<(\d+) more>", block)))
        for block in blocks
        if "blocks" not in block
    ]
    hidden = sum(map(int, re.findall(r"<(\d+) more blocks>", text)))
    assert len(set(per_block)) == 1
    return per_block[0] * (len(per_block) + hidden)
