"""find_slot against a walk cell by cell; apply writes its rows and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.helpers import CAPACITY, assert_same, batch_of, cells_of, seqs_in
from tests.memory.oracle import Cache, Cell
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.slots import apply, apply_slot, find_slot, ubatch_rows
from ubjax.split import split_equal, split_simple

C = 8
UNIFIED = MemoryConfig(n_cells=C, n_seq_max=3)
STREAMS = MemoryConfig(n_cells=C, n_seq_max=3, unified=False)
WINDOW = MemoryConfig(n_cells=C, n_seq_max=3, n_swa=3, swa_type=SwaType.STANDARD)
STREAM_WINDOW = MemoryConfig(n_cells=C, n_seq_max=3, unified=False, n_swa=4, swa_type=SwaType.CHUNKED)


def rows_of(rows, config, n_ubatch=CAPACITY, k=0):
    """The rows of ubatch k of a batch of rows (pos, sequence)."""
    batch = batch_of(rows, config.n_seq_max)
    cut = split_simple(batch, n_ubatch) if config.unified else split_equal(batch, n_ubatch, sequential=True)
    return ubatch_rows(batch, cut, k, config, max_rows=CAPACITY)


contents = st.one_of(
    st.just((-1, frozenset())),
    st.tuples(st.integers(0, 9), st.frozensets(st.integers(0, 2), min_size=1, max_size=2)),
)


@pytest.mark.parametrize("config", [UNIFIED, STREAMS, WINDOW, STREAM_WINDOW])
@settings(max_examples=60)
@given(
    data=st.data(),
    heads=st.lists(st.integers(0, C), min_size=3, max_size=3),
    n=st.integers(1, 10),
    n_sets=st.integers(1, 3),
)
def test_find_slot_is_the_walk(config, data, heads, n, n_sets):
    cache = Cache(config)
    cache.heads = heads[: config.n_streams]
    for s, stream in enumerate(cache.streams):
        for i, (pos, seqs) in enumerate(data.draw(st.lists(contents, min_size=C, max_size=C))):
            stream[i] = Cell(pos, pos, 0, set(seqs) if config.unified or pos < 0 else {s})
    if not config.unified:
        n = min(n, CAPACITY // n_sets)
    rows = rows_of([(p, s) for p in range(n) for s in range(1 if config.unified else n_sets)], config)
    for cont in (False, True):
        found = [cache.find(s, n, cont) for s in range(1 if config.unified else n_sets)]
        slot = find_slot(cache.cells(), rows, config, cont=cont)
        assert slot.ok == (None not in found)
        if slot.ok:
            walked = [index for walk in found for index in walk or []]
            assert slot.index.tolist() == walked + [C] * (CAPACITY - len(walked))
        else:
            stream = cache.streams[found.index(None)]
            free = [cache.usable(cell) for cell in stream]
            runs = "".join(".#"[f] for f in free).split(".")
            assert slot.found == (max(map(len, runs)) if cont else sum(free))
            assert (slot.index == C).all()


def test_the_drawn_example():
    config = MemoryConfig(n_cells=6, n_seq_max=2)
    batch, cells = (
        batch_of([(2, 0), (0, 1), (3, 0), (1, 1)], 2, 5),
        cells_of(config, [{0: (0, 0), 1: (1, 0)}], [2]),
    )
    cut = split_simple(batch, 2)
    for k, index in enumerate([[2, 3], [4, 5]]):
        rows = ubatch_rows(batch, cut, k, config, max_rows=2)
        slot = find_slot(cells, rows, config)
        assert slot.ok and slot.index.tolist() == index
        cells = apply(cells, rows, slot.index, config)
    assert cells.pos[0].tolist() == [0, 1, 2, 0, 3, 1] and cells.head.tolist() == [6]
    assert seqs_in(cells) == [[{0}, {0}, {0}, {1}, {0}, {1}]]


@pytest.mark.parametrize(
    ("used", "head", "n", "slot"),
    [
        ({7}, 4, 1, [0]),  # 4 > 1 + 2 * 1: the search starts over
        ({7}, 3, 1, [3]),
        ({0, 2, 3, 4, 5, 6}, 8, 1, [1]),  # a head behind the last cell
        ({0, 2, 3, 4, 5, 6}, 8, 2, [1, 7]),
        ({0, 6}, 6, 3, [7, 1, 2]),  # round the end
        (set(), 6, 4, [6, 7, 0, 1]),
    ],
)
def test_where_the_search_starts(used, head, n, slot):
    cells = cells_of(UNIFIED, [{i: (i, 0) for i in used}], [head])
    rows = rows_of([(p, 1) for p in range(n)], UNIFIED)
    assert find_slot(cells, rows, UNIFIED).index[:n].tolist() == slot


@pytest.mark.parametrize(
    ("used", "head", "n", "slot"),
    [
        ({1}, 0, 3, [2, 3, 4]),
        ({1, 6}, 6, 2, [2, 3]),  # 7 alone is too short, and neighbours don't wrap
        ({0, 1, 2, 6}, 6, 1, [7]),
        ({3}, 3, 3, [4, 5, 6]),
        ({3}, 5, 5, None),
    ],
)
def test_neighbours(used, head, n, slot):
    cells = cells_of(UNIFIED, [{i: (i, 0) for i in used}], [head])
    found = find_slot(cells, rows_of([(p, 1) for p in range(n)], UNIFIED), UNIFIED, cont=True)
    assert found.ok == (slot is not None)
    assert found.index[:n].tolist() == (slot or [C] * n)
    assert slot or found.found == 4


@pytest.mark.parametrize("config", [UNIFIED, STREAMS, WINDOW, STREAM_WINDOW])
def test_padding_never_touches_a_cell(config):
    """Garbage in a batch's padding and in the window's padding: of all C cells only the two of the slot change."""
    batch = batch_of([(0, 0), (1, 0)], 3)
    bad = np.arange(CAPACITY) >= 2
    batch = dataclasses.replace(
        batch,
        pos=np.where(bad, 7, batch.pos),
        seq=np.where(bad[:, None], np.uint32(5), batch.seq),
        token=np.where(bad, -3, batch.token),
        output=batch.output | bad,
    )
    cut = split_simple(batch, 8) if config.unified else split_equal(batch, 8, sequential=True)
    rows = ubatch_rows(batch, cut, 0, config, max_rows=CAPACITY)
    assert rows.valid.tolist() == [True] * 2 + [False] * 14 and not rows.seq[2:].any()
    rows = dataclasses.replace(
        rows,
        pos=jnp.where(bad[None], 9, rows.pos),
        seq=jnp.where(bad[:, None], np.uint32(7), rows.seq),
    )
    streams = [{i: (i, s) for i in range(4, 8)} for s in range(config.n_streams)]
    before = cells_of(config, streams, [2] * config.n_streams)
    slot = find_slot(before, rows, config)
    after = jax.device_get(apply(before, rows, slot.index, config))
    expected = cells_of(config, [streams[0] | {2: (0, 0), 3: (1, 0)}, *streams[1:]], before.head)
    expected.head[0] = 4
    assert_same(after, expected)


def test_a_slot_that_is_none_changes_nothing():
    cells = cells_of(UNIFIED, [{i: (i, 0) for i in range(7)}], [3])
    rows = rows_of([(7, 0), (8, 0)], UNIFIED)
    slot = find_slot(cells, rows, UNIFIED)
    assert not slot.ok and slot.found == 1
    assert_same(apply(cells, rows, slot.index, UNIFIED), cells)


def test_image_positions_go_into_the_cells():
    config = MemoryConfig(n_cells=4, n_pos=4)
    batch = batch_of([(5, 0), (5, 0)], 1, capacity=4, n_pos=4)
    # rows with an id repeat their first position; image rows keep theirs
    batch = dataclasses.replace(
        batch, pos=np.asarray([[5, 5, 0, 0], [6, 6, 0, 0], [7, 8, 0, 0], [0] * 4], np.int32)
    )
    cells = apply_slot(
        cells_of(config, []), batch, split_simple(batch, 4), np.asarray([1, 3, 4, 4], np.int32), 0, config
    )
    assert cells.pos.tolist() == [[-1, 5, -1, 5]] and cells.ext.tolist() == [[[0, 0], [6, 7], [0, 0], [6, 8]]]


def test_find_slot_maps_over_caches():
    caches = [cells_of(WINDOW, [{i: (i, s % 3) for i in range(s)}], [s]) for s in range(4)]
    rows = rows_of([(4, 1), (5, 1)], WINDOW)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *caches)
    together = jax.vmap(lambda cells: find_slot(cells, rows, WINDOW))(stacked)
    for i, cells in enumerate(caches):
        alone = find_slot(cells, rows, WINDOW)
        assert together.ok[i] == alone.ok and together.index[i].tolist() == alone.index.tolist()
