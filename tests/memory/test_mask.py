"""Masks against the rule written out per row and cell, and the cells they are taken from."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.helpers import batch_of, cells_of, seqs_in
from tests.memory.oracle import masked
from ubjax.buckets import Bucket
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.init_batch import init_batch
from ubjax.memory.mask import attention_mask, cell_valid
from ubjax.memory.slots import apply_slot
from ubjax.split import split_equal, split_simple
from ubjax.ubatch import take_ubatch

C = 6
CONFIGS = [
    MemoryConfig(n_cells=C, n_seq_max=40),
    MemoryConfig(n_cells=C, n_seq_max=40, n_swa=3, swa_type=SwaType.STANDARD),
    MemoryConfig(n_cells=C, n_seq_max=40, n_swa=3, swa_type=SwaType.CHUNKED),
    MemoryConfig(n_cells=C, n_seq_max=40, n_swa=3, swa_type=SwaType.SYMMETRIC),
    MemoryConfig(n_cells=C, n_seq_max=40, n_pos=3),
]
SEQS = (0, 1, 35)


def visible(cells, stream, cell, row, config, causal):
    """Whether a row (P positions, sequences) sees a cell."""
    positions, seqs = row
    pos, at = int(cells.pos[stream, cell]), positions[0]
    if pos < 0 or min(seqs) not in seqs_in(cells)[stream][cell]:
        return False
    if causal and pos > at:
        return False
    if causal and config.n_pos > 1 and pos == at and tuple(cells.ext[stream, cell]) > tuple(positions[1:3]):
        return False
    return not masked(pos, at, config.n_swa, config.swa_type)


def with_positions(batch, rows):
    """The batch with image positions as they are (rows with an id would repeat their first one)."""
    pos = np.zeros(batch.pos.shape, np.int32)
    for i, (positions, _) in enumerate(rows):
        pos[:, i] = positions
    return dataclasses.replace(batch, pos=pos)


small = st.integers(0, 3)
points = st.tuples(small, small, small)
members = st.sets(st.sampled_from(SEQS), min_size=1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("config", CONFIGS)
@settings(max_examples=25)
@given(
    held=st.dictionaries(st.integers(0, C - 1), st.tuples(points, members)),
    rows=st.lists(st.tuples(points, members), min_size=1, max_size=4),
)
def test_a_mask_is_the_rule(config, causal, held, rows):
    rows = [(positions[: config.n_pos], seqs) for positions, seqs in rows]
    batch = with_positions(batch_of([(p[0], s) for p, s in rows], 40, 5, config.n_pos), rows)
    cells = cells_of(config, [{i: (p[0], s) for i, (p, s) in held.items()}])
    for i, (positions, _) in held.items():
        cells.ext[0, i] = positions[1:] if config.n_pos > 1 else ()
    ubatch = take_ubatch(batch, split_simple(batch, 5), 0, Bucket(n_blocks=1, n_block_rows=5, n_outputs=5))
    mask = np.asarray(attention_mask(cells, ubatch, 5, config, causal=causal))
    assert mask.shape == (1, 5, 5)
    for i, j in itertools.product(range(len(rows)), range(5)):
        assert mask[0, i, j] == visible(cells, 0, j, rows[i], config, causal), (i, j)
    assert not mask[0, len(rows) :].any()


def test_the_drawn_example():
    config = MemoryConfig(n_cells=5, n_seq_max=2)
    cells = cells_of(config, [{0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (0, 1)}])
    batch = batch_of([(1, 0), (2, 0)], 2, 3)
    ubatch = take_ubatch(batch, split_simple(batch, 2), 0, Bucket(n_blocks=1, n_block_rows=3, n_outputs=1))
    mask = attention_mask(cells, ubatch, 5, config)
    assert mask.astype(int).tolist() == [[[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]]
    # the same rows as three blocks of one
    blocks = dataclasses.replace(ubatch, bucket=Bucket(n_blocks=3, n_block_rows=1, n_outputs=1))
    assert attention_mask(cells, blocks, 5, config).tolist() == mask.reshape(3, 1, 5).tolist()
    assert cell_valid(cells, 3, 5, config).tolist() == [[True] * 4 + [False]]


@pytest.mark.parametrize(("first_stream", "first_block"), [(1, 0), (0, 1)])
def test_blocks_read_consecutive_streams(first_stream, first_block):
    """Streams 1 and 2 take part; the bucket has three blocks, so one of them is padding."""
    config = MemoryConfig(n_cells=3, n_seq_max=4, unified=False)
    cells = cells_of(config, [{i: (i + 2 * s, s) for i in range(3)} for s in range(4)])
    batch = batch_of([(3, 1), (2, 1), (6, 2), (4, 2)], 4, 5)
    bucket = Bucket(n_blocks=3, n_block_rows=2, n_outputs=1)
    ubatch = take_ubatch(batch, split_equal(batch, 4, sequential=True), 0, bucket, first_block)
    mask = attention_mask(cells, ubatch, 3, config, first_stream).astype(int)
    # stream 1 holds positions 2, 3, 4 and stream 2 holds 4, 5, 6
    assert mask[first_block].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert mask[first_block + 1].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert not mask[2 - 2 * first_block].any()
    assert cell_valid(cells, 2, 2, config, 1).tolist() == [[True] * 2] * 2


def test_masks_see_the_cells_as_of_their_ubatch():
    """W = 4, six cells with positions 2..7, tokens 8..11: the second ubatch takes the cells of 4 and 5."""
    config = MemoryConfig(n_cells=6, n_swa=4, swa_type=SwaType.STANDARD)
    cells = cells_of(config, [{i: (i + 2, 0) for i in range(6)}])
    batch = batch_of([(p, 0) for p in range(8, 12)], 1, 4)
    prepared = init_batch((cells,), batch, 2, (config,), max_rows=2)
    seen = []
    for k in range(2):
        cells = apply_slot(cells, batch, prepared.plan, prepared.slot[0], k, config)
        ubatch = take_ubatch(batch, prepared.plan, k, Bucket(n_blocks=1, n_block_rows=2, n_outputs=1))
        mask = np.asarray(attention_mask(cells, ubatch, 6, config))[0]
        seen += [sorted(np.asarray(cells.pos)[0, row].tolist()) for row in mask]
    assert seen == [[5, 6, 7, 8], [6, 7, 8, 9], [7, 8, 9, 10], [8, 9, 10, 11]]
    assert 5 not in prepared.cells[0].pos[0].tolist()


def test_one_ubatch_does_not_hide_what_its_rows_still_see():
    """W = 4, cells 0..7, tokens 8..11 at once: token 8 sees 5..7."""
    config = MemoryConfig(n_cells=8, n_swa=4, swa_type=SwaType.STANDARD)
    cells = cells_of(config, [{i: (i, 0) for i in range(8)}])
    batch = batch_of([(p, 0) for p in range(8, 12)], 1, 4)
    prepared = init_batch((cells,), batch, 4, (config,), max_rows=4)
    ubatch = take_ubatch(batch, prepared.plan, 0, Bucket(n_blocks=1, n_block_rows=4, n_outputs=1))
    mask = np.asarray(attention_mask(prepared.cells[0], ubatch, 8, config))[0]
    seen = [sorted(np.asarray(prepared.cells[0].pos)[0, row].tolist()) for row in mask]
    assert seen == [[5, 6, 7, 8], [6, 7, 8, 9], [7, 8, 9, 10], [8, 9, 10, 11]]


def test_sizes_that_can_not_be():
    config = MemoryConfig(n_cells=3, n_seq_max=2, unified=False)
    batch = batch_of([(0, 0)], 2, 4)
    ubatch = take_ubatch(batch, split_simple(batch, 2), 0, Bucket(n_blocks=3, n_block_rows=1, n_outputs=1))
    with pytest.raises(ValueError, match="n_kv is 4, a stream has 3 cells"):
        attention_mask(cells_of(config, []), ubatch, 4, config)
    with pytest.raises(ValueError, match="the ubatch has 3 blocks, at most 2"):
        attention_mask(cells_of(config, []), ubatch, 3, config)
