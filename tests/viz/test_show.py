"""The way of one batch as a picture: what stands in it, what is refused, and how large it may grow."""

import dataclasses

import numpy as np
import pytest

from tests.svg import NAMESPACE, parse, texts, titles
from ubjax import Batch, BatchConfig, MemoryConfig, show
from ubjax.memory import Cells
from ubjax.pictures.boxes import PALETTE
from ubjax.viz.show import MASKS
from ubjax.viz.way import Way

CONFIG = BatchConfig(n_vocab=100, n_batch=4096, n_seq_max=256)
SMALL = dataclasses.replace(CONFIG, n_seq_max=4)


def make(seqs, **arrays):
    return Batch.from_arrays(range(len(seqs)), seq_id=seqs, config=SMALL, **arrays)


EXAMPLE = make([0] * 5 + [1] * 5 + [2] * 5 + [3])
SHARED = make([[0, 1]] * 2 + [[0]] * 7 + [[1]] * 6 + [[3]])  # as large, so that programs are shared


def headings(markup):
    return [text for text in texts(markup) if text[:3] in ("1  ", "2  ", "3  ", "4  ")]


def test_the_worked_example_from_batch_to_mask():
    markup = show(EXAMPLE, 8)._repr_html_()
    assert headings(markup) == [
        "1  Batch: 16 tokens of sequences 0-3, 1 output",
        "2  Ubatches: equal, n_ubatch 8: 3 ubatches, 4 of 20 rows are padding",
        "3  Cells after it: 4 streams of 8 cells, 16 used by sequences 0-3",
        "4  Masks: the cells that each row sees",
    ]
    shapes = [text for text in texts(markup) if text.startswith("ubatch")][:3]
    assert shapes == ["ubatch 0: 4 × 1", "ubatch 1: 3 × 2", "ubatch 2: 3 × 2"]
    seen = titles(markup)
    assert "token 15: id 15, sequence 3, position 0, output, cell 0 of stream 3" in seen
    assert "cell 4 of stream 2: sequence 2, position 4; token 14, ubatch 2" in seen
    assert "token 7: id 7, sequence 1, position 2: sees cells 0-2" in seen
    assert "cells 0-2: sequence 1, positions 0-2" in seen


def test_one_stream_for_all_under_simple():
    markup = show(EXAMPLE, 8, "simple")._repr_html_()
    assert headings(markup)[1:3] == [
        "2  Ubatches: simple, n_ubatch 8: 2 ubatches, 0 of 16 rows are padding",
        "3  Cells after it: 24 cells, 16 used by sequences 0-3",
    ]
    assert "token 9: id 9, sequence 1, position 4: sees cells 5-9" in titles(markup)


def test_texts_are_shown_with_their_tokens_and_escaped():
    words = ["<script>alert(1)</script>", "\x00", "日本", *"abcdefghijklm"]
    markup = show(EXAMPLE, 8, texts=words)._repr_html_()
    assert "token 0: id 0 '<script>alert(1)</script>', sequence 0, position 0" in titles(markup)
    assert "token 1: id 1 '\\x00', sequence 0, position 1" in titles(markup)
    assert "token 2: id 2 '日本', sequence 0, position 2: sees cells 0-2" in titles(markup)
    assert "<script" not in markup


def test_a_cache_with_gaps_is_filled_and_the_new_cells_are_underlined():
    memory = MemoryConfig(n_cells=24, n_seq_max=4)
    pos = np.full((1, 24), -1, np.int32)
    pos[0, [0, 1, 2, 5, 6]] = [0, 1, 2, 0, 1]
    seq = np.zeros((1, 24, 1), np.uint32)
    seq[0, [0, 1, 2, 5, 6], 0] = [1, 1, 1, 2, 2]
    cells = dataclasses.replace(Cells.empty(memory), pos=pos, k_pos=pos, seq=seq)
    batch = make([0] * 8, pos=np.arange(3, 11), capacity=16)
    markup = show(batch, 8, "simple", memory=memory, cells=cells)._repr_html_()
    seen = titles(markup)
    assert "cell 2: sequence 0, position 2" in seen  # as it was
    assert "cell 4: sequence 0, position 4; token 1, ubatch 0" in seen
    assert "cell 7: sequence 0, position 5; token 2, ubatch 0" in seen
    assert "token 7: id 7, sequence 0, position 10, output, cell 12" in seen
    assert "token 2: id 2, sequence 0, position 5: sees cells 0-4, 7" in seen
    lines = [rect for rect in parse(markup).iter(f"{NAMESPACE}rect") if rect.attrib.get("y") == "26"]
    assert len(lines) == 8


def test_tokens_of_several_sequences_share_cells():
    markup = show(SHARED, 8, "simple")._repr_html_()
    assert "3  Cells after it: 24 cells, 16 used by sequences 0-1, 3" in texts(markup)
    assert "cell 1: sequences 0-1, position 1; token 1, ubatch 0" in titles(markup)


def test_words_of_the_batch_need_not_be_those_of_the_memory():
    wide = Batch.from_arrays(range(16), seq_id=[0] * 5 + [1] * 5 + [2] * 5 + [3], config=CONFIG)
    assert wide.seq.shape[1] == 8
    assert show(wide, 8)._repr_html_() == show(EXAMPLE, 8)._repr_html_()


def test_a_split_that_fails_says_why():
    markup = show(SHARED, 8)._repr_html_()
    assert headings(markup)[1:] == [
        "2  Ubatches: equal, n_ubatch 8: 0 ubatches",
        "3  Cells: none were given out",
    ]
    assert "token 0 is in sequences 0-1" in " ".join(texts(markup))


def test_a_batch_without_room_changes_nothing():
    memory = MemoryConfig(n_cells=24, n_seq_max=4)
    full = dataclasses.replace(
        Cells.empty(memory),
        pos=np.arange(24, dtype=np.int32)[None],
        k_pos=np.arange(24, dtype=np.int32)[None],
        seq=np.full((1, 24, 1), 2, np.uint32),
    )
    picture = show(EXAMPLE, 8, "simple", memory=memory, cells=full)
    assert headings(picture._repr_html_())[2] == "3  Cells: none were given out"
    assert "ubatch 0" in " ".join(texts(picture._repr_html_()))
    way = Way(EXAMPLE, 8, "simple", memory, full, None)
    assert np.array_equal(way.after.pos, full.pos)
    assert way.written() == {}


def test_an_empty_batch_is_no_error():
    markup = show(make([], capacity=16), 8, "simple")._repr_html_()
    assert headings(markup)[0] == "1  Batch: no tokens, room for 16"


def test_a_file_can_be_written(tmp_path):
    picture = show(SHARED, 8)
    assert (tmp_path / "way.svg").exists() is False
    picture.to_svg(tmp_path / "way.svg")
    assert PALETTE[0] in (tmp_path / "way.svg").read_text(encoding="utf-8")


STREAMS = MemoryConfig(n_cells=8, n_seq_max=4, unified=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"strategy": "best"}, "the strategy is 'best', one of simple, equal, equal-any, seq is needed"),
        ({"n_ubatch": 0}, "n_ubatch is 0, a size in"),
        ({"n_ubatch": 2.5}, r"n_ubatch is 2\.5, an integer is needed"),
        ({"texts": ["a"]}, "there is 1 text, 16 are needed: one for each token"),
        ({"cells": Cells.empty(STREAMS)}, "without the memory they belong to"),
        (
            {"memory": STREAMS, "cells": Cells.empty(MemoryConfig(n_cells=8))},
            r"shape \[1, 8, 1\], \[NS, C, W\] = \[4, 8, 1\] is needed",
        ),
        ({"memory": STREAMS, "strategy": "simple"}, "simple mixes sequences: a unified one is needed"),
        ({"memory": STREAMS, "batch": SHARED}, "token 0 is in several sequences: a unified one is needed"),
        (
            {"memory": MemoryConfig(n_cells=8, n_seq_max=3), "strategy": "simple"},
            r"tokens of sequence 3, one in \[0, 3\) is needed",
        ),
        ({"batch": [1, 2]}, "a Batch is needed"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, sentence):
    arguments = {"batch": EXAMPLE, "n_ubatch": 8, **arguments}
    with pytest.raises(ValueError, match=sentence):
        show(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["simple", "equal"])
def test_large_batches_are_cut_and_counted(strategy):
    batch = Batch.from_arrays(np.arange(4096) % 100, seq_id=np.arange(4096) % 256, config=CONFIG)
    markup = show(batch, 256, strategy)._repr_html_()
    assert len(markup.encode()) < 150_000
    seen = texts(markup)
    assert "… and 4,048 more tokens …" in seen
    assert "… and 10 more ubatches …" in seen
    assert f"… and {16 - MASKS} more ubatches …" in seen
