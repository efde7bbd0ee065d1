"""What Jupyter shows of a batch, a plan, a ubatch and cells: every row in it or counted, small, and never an error."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.svg import fills, texts, titles
from ubjax import Batch, BatchConfig, MemoryConfig
from ubjax.batch import ROW_EMBD, ROW_ID
from ubjax.buckets import Bucket
from ubjax.memory import Cells
from ubjax.pictures.boxes import NEUTRAL, PALETTE
from ubjax.split.plan import SplitPlan
from ubjax.ubatch import take_ubatch

CONFIG = BatchConfig(n_vocab=100, n_batch=4096, n_seq_max=256)
EXAMPLE = Batch.from_arrays(
    range(10, 16), seq_id=[0, 0, 0, 1, 1, 2], config=dataclasses.replace(CONFIG, n_seq_max=3), capacity=8
)
# order and offsets of split_equal(EXAMPLE, 4, sequential=True): 3 x 1, 2 x 1, 1 x 1
PLAN = SplitPlan(
    order=np.asarray([0, 3, 5, 1, 4, 2, 8, 8], np.int32),
    offset=np.asarray([0, 3, 5, 6, 6, 6, 6, 6, 6], np.int32),
    n_seqs=np.asarray([3, 2, 1, 0, 0, 0, 0, 0], np.int32),
    n_ubatches=np.asarray(3, np.int32),
    n_used=np.asarray(6, np.int32),
    equal_seqs=np.asarray(True),
    keeps_order=np.asarray(True),
)
MEMORY = MemoryConfig(n_cells=8, n_seq_max=3)


def ubatch(k=1):
    return take_ubatch(EXAMPLE, PLAN, np.int32(k), Bucket(n_blocks=2, n_block_rows=2, n_outputs=0))


def cells(**changes):
    """Sequence 0 at 0 and 1, sequences 0 and 2 share position 2, then a free cell and sequence 1."""
    empty = Cells.empty(MEMORY)
    pos = np.asarray([[0, 1, 2, -1, 5, -1, -1, -1]], np.int32)
    seq = np.asarray([[1, 1, 5, 0, 2, 0, 0, 0]], np.uint32)[..., None]
    k_pos = pos + np.asarray([[0, 0, 0, 0, 3, 0, 0, 0]], np.int32)
    return dataclasses.replace(empty, **{"pos": pos, "k_pos": k_pos, "seq": seq, **changes})


def test_a_batch_shows_each_token():
    markup = EXAMPLE._repr_html_()
    assert texts(markup)[0] == "Batch: 6 tokens of sequences 0-2, 1 output, room for 8"
    assert titles(markup) == [
        "token 0: id 10, sequence 0, position 0",
        "token 1: id 11, sequence 0, position 1",
        "token 2: id 12, sequence 0, position 2",
        "token 3: id 13, sequence 1, position 0",
        "token 4: id 14, sequence 1, position 1",
        "token 5: id 15, sequence 2, position 0, output",
        "padding",
    ]
    assert fills(markup) == [PALETTE[seq] for seq in (0, 0, 0, 1, 1, 2)]


def test_a_token_of_several_sequences_has_all_their_colours():
    batch = Batch.from_arrays([1, 2], seq_id=[[0, 2], [0, 1, 2, 3, 4, 9]], config=CONFIG)
    markup = batch._repr_html_()
    assert fills(markup) == [PALETTE[seq] for seq in (0, 2, 0, 1, 2, 3)]
    assert [title.split(", pos")[0] for title in titles(markup)] == [
        "token 0: id 1, sequences 0, 2",
        "token 1: id 2, sequences 0-4, 9",
    ]
    assert {"0,2", "0+5"} <= set(texts(markup))


def test_embedding_rows_and_sections_of_positions_are_named():
    config = BatchConfig(n_vocab=9, n_batch=4, n_pos=4, n_embd=2, allow_mixed=True)
    batch = Batch.from_arrays(
        [3, 0],
        embd=np.zeros((2, 2), np.float32),
        row_type=[ROW_ID, ROW_EMBD],
        pos=[[0, 5], [0, 1], [0, 2], [0, 0]],
        config=config,
    )
    assert titles(batch._repr_html_()) == [
        "token 0: id 3, sequence 0, position 0 / 0 / 0 / 0",
        "token 1: an embedding, sequence 0, position 5 / 1 / 2 / 0, output",
    ]


def test_a_plan_shows_the_rows_of_each_ubatch():
    markup = PLAN._repr_html_()
    seen = texts(markup)
    assert seen[0] == "SplitPlan: 3 ubatches of 6 tokens"
    assert [text for text in seen if text.startswith("ubatch")] == [
        "ubatch 0: 3 × 1",
        "ubatch 1: 2 × 1",
        "ubatch 2: 1 × 1",
    ]
    assert [text for text in seen if text.isdecimal()] == ["0", "3", "5", "1", "4", "2"]
    assert set(fills(markup)) == {NEUTRAL}


def test_a_ubatch_shows_the_padding_inside():
    markup = ubatch()._repr_html_()
    assert texts(markup)[0] == "Ubatch: 2 tokens in 2 × 2 rows, 2 of padding"
    assert titles(markup) == [
        "token 1: id 11, sequence 0, position 1",
        "token 4: id 14, sequence 1, position 1",
        "padding",
    ]


def test_cells_show_sequences_positions_head_and_shifts():
    markup = cells(head=np.asarray([3], np.int32))._repr_html_()
    assert texts(markup)[0] == "Cells: 8 cells, 4 used by sequences 0-2, 1 pending shift"
    assert titles(markup) == [
        "cell 0: sequence 0, position 0",
        "cell 1: sequence 0, position 1",
        "cell 2: sequences 0, 2, position 2",
        "cell 4: sequence 1, position 5, pending shift -3",
        "free",
        "head: the search for a slot starts at cell 3",
    ]
    assert "-3" in texts(markup)


def test_a_head_behind_the_last_cell_is_marked():
    assert titles(cells(head=np.asarray([8], np.int32))._repr_html_())[-1].endswith("cell 8")


def test_streams_are_lines_and_pending_copies_are_named():
    memory = MemoryConfig(n_cells=4, n_seq_max=2, unified=False)
    streams = dataclasses.replace(Cells.empty(memory), src=np.asarray([0, 0], np.int32))
    markup = streams._repr_html_()
    assert texts(markup)[:4] == [
        "Cells: 2 streams of 4 cells, all free",
        "stream 0",
        "stream 1",
        "takes over K/V of stream 0 before the next decode",
    ]


@pytest.mark.parametrize("make", [lambda: EXAMPLE, lambda: PLAN, ubatch, cells])
def test_pictures_need_values(make):
    whole = make()
    assert whole._repr_html_() == make()._repr_html_()  # nothing random, nothing counted on

    def look(x):
        assert x._repr_html_() is None
        assert repr(x)  # what is shown instead
        return x

    jax.eval_shape(look, whole)
    stacked = look(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), whole))
    jax.eval_shape(jax.vmap(look), stacked)
    look(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), whole))
    gone = jax.tree.map(jnp.array, whole)
    jax.tree.leaves(gone)[0].delete()
    assert gone._repr_html_() is None


def test_an_empty_batch_has_a_picture():
    batch = Batch.from_arrays([], config=CONFIG, capacity=64)
    markup = batch._repr_html_()
    assert texts(markup)[0] == "Batch: no tokens, room for 64"
    assert "… and 60 more rows of padding" in texts(markup)


def test_an_empty_plan_has_a_picture():
    none = dataclasses.replace(PLAN, n_ubatches=np.asarray(0, np.int32), n_used=np.asarray(0, np.int32))
    assert texts(none._repr_html_()) == ["SplitPlan: 0 ubatches of 0 tokens"]


def test_a_count_out_of_range_is_no_error():
    for n in (-3, 100):
        assert dataclasses.replace(EXAMPLE, n_tokens=np.asarray(n, np.int32))._repr_html_()


BIG = Batch.from_arrays(np.arange(4096) % 100, seq_id=np.arange(4096) % 256, config=CONFIG)


def big_ubatch(n_blocks, n_block_rows):
    """A hand-made ubatch of all 4,096 rows."""
    template = jax.tree.map(np.asarray, ubatch())
    names = ("token", "embd", "state", "type", "pos", "seq", "output")
    rows = {name: getattr(BIG, name) for name in names}
    bucket = Bucket(n_blocks=n_blocks, n_block_rows=n_block_rows, n_outputs=0)
    every = np.arange(4096, dtype=np.int32)
    return dataclasses.replace(
        template, **rows, valid=np.ones(4096, bool), batch_idx=every, place=every, bucket=bucket
    )


def big_cells(n_streams, n_cells):
    """Every cell in use, each by a sequence of its own as long as there are some."""
    memory = MemoryConfig(n_cells=n_cells, n_seq_max=256, unified=n_streams == 1)
    pos = np.broadcast_to(np.arange(n_cells, dtype=np.int32), (n_streams, n_cells))
    seq = np.zeros((n_streams, n_cells, 8), np.uint32)
    seq[..., 0] = 0xFFFFFFFF
    return dataclasses.replace(Cells.empty(memory), pos=pos, k_pos=np.zeros_like(pos), seq=seq)


def big_plan(rows):
    """A plan of 4,096 rows, so many in a ubatch."""
    n = 4096 // rows
    return SplitPlan(
        order=np.arange(4096, dtype=np.int32),
        offset=np.append(np.arange(n) * rows, np.full(4097 - n, 4096)).astype(np.int32),
        n_seqs=np.where(np.arange(4096) < n, rows, 0).astype(np.int32),
        n_ubatches=np.asarray(n, np.int32),
        n_used=np.asarray(4096, np.int32),
        equal_seqs=np.asarray(False),
        keeps_order=np.asarray(True),
    )


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (lambda: BIG, "… and 4,000 more tokens …"),
        (lambda: big_ubatch(1, 4096), "… and 4,000 more rows …"),
        (lambda: big_ubatch(256, 16), "… and 244 more blocks …"),
        (lambda: big_ubatch(2, 2048), "… 2,024 more …"),
        (lambda: big_cells(1, 16384), "… and 16,256 more cells, 16,256 of them used"),
        (lambda: big_cells(256, 64), "… and 248 more streams …"),
        (lambda: big_plan(1), "… and 4,090 more ubatches …"),
        (lambda: big_plan(2048), "… and 2,024 more rows …"),
    ],
)
def test_large_things_are_cut_and_counted(make, more):
    markup = make()._repr_html_()
    assert more in texts(markup)
    assert len(markup.encode()) < 80_000
