"""init_batch: which split, what is refused, and one program for what varies."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.memory.helpers import assert_same, batch_of, cells_of
from ubjax.analysis import count_compilations
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.init_batch import Mode, init_batch
from ubjax.status import Reason, result_of, sentence

UNIFIED = MemoryConfig(n_cells=16, n_seq_max=3)
STREAMS = MemoryConfig(n_cells=16, n_seq_max=3, unified=False)
ROWS = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)]


def ubatches(prepared):
    plan = prepared.plan
    return [plan.order[plan.offset[k] : plan.offset[k + 1]].tolist() for k in range(int(plan.n_ubatches))]


@pytest.mark.parametrize(
    ("config", "mode", "expected"),
    [
        (UNIFIED, {}, [[0, 1, 2, 3], [4, 5]]),
        (UNIFIED, {"embd_all": True}, [[0, 1, 2, 3], [4, 5]]),
        (UNIFIED, {"causal": False}, [[0, 1, 2, 3], [4, 5]]),
        (STREAMS, {}, [[0, 3, 5], [1, 4], [2]]),
        (STREAMS, {"embd_all": True}, [[0, 1, 2], [3, 4], [5]]),
        (STREAMS, {"causal": False}, [[0, 1, 2], [3, 4], [5]]),
    ],
)
def test_the_memory_chooses_the_split(config, mode, expected):
    prepared = init_batch(
        (cells_of(config, []),), batch_of(ROWS, 3), 4, (config,), max_rows=4, mode=Mode.of(**mode)
    )
    assert ubatches(prepared) == expected and prepared.status.code == Reason.OK
    assert prepared.n_kv_needed[0] == (6 if config.unified else 3)


@pytest.mark.parametrize(("embd_all", "left"), [(False, 0), (True, 1)])
def test_streams_do_not_share_rows(embd_all, left):
    before = cells_of(STREAMS, [{0: (0, 0)}, {}, {}])
    batch = batch_of([(1, 0), (0, {1, 2}), (1, {1, 2})], 3)
    prepared = init_batch((before,), batch, 4, (STREAMS,), max_rows=4, mode=Mode.of(embd_all=embd_all))
    assert prepared.status.code == Reason.SPLIT_FAILED and result_of(prepared.status) == -2
    assert f"token {left} was left over" in sentence(prepared.status)
    assert (prepared.slot[0] == 16).all() and prepared.n_kv_needed[0] == 0
    assert_same(prepared.cells[0], before)


def test_an_impossible_n_ubatch_is_a_failed_split():
    before = cells_of(UNIFIED, [])
    prepared = init_batch((before,), batch_of(ROWS, 3), jnp.int32(0), (UNIFIED,), max_rows=4)
    assert sentence(prepared.status).startswith("the split took 0 of 6 tokens")
    assert_same(prepared.cells[0], before)


def test_ubatches_stay_below_the_static_bound():
    prepared = init_batch((cells_of(UNIFIED, []),), batch_of(ROWS, 3), 100, (UNIFIED,), max_rows=4)
    assert ubatches(prepared) == [[0, 1, 2, 3], [4, 5]]


def test_no_slot_leaves_everything():
    before = cells_of(UNIFIED, [{i: (i, 0) for i in range(15)}], [15])
    prepared = init_batch((before,), batch_of([(p, 0) for p in range(15, 19)], 3), 4, (UNIFIED,), max_rows=4)
    assert sentence(prepared.status).startswith("ubatch 0 needs 4 cells of one stream, 1 is free")
    assert_same(prepared.cells[0], before)


def test_n_ubatch_is_data_and_nothing_calls_back():
    batch, cells = jax.device_put((batch_of(ROWS, 3), cells_of(STREAMS, [])))
    init_batch((cells,), batch, 1, (STREAMS,), max_rows=4)
    with count_compilations() as count:
        for n_ubatch in (2, 3, 4):
            init_batch((cells,), batch, n_ubatch, (STREAMS,), max_rows=4)
    assert count.total == 0
    jaxpr = jax.make_jaxpr(lambda c, b, n: init_batch((c,), b, n, (STREAMS,), max_rows=4))(cells, batch, 2)
    assert "callback" not in str(jaxpr)


@pytest.mark.parametrize("config", [UNIFIED, STREAMS])
def test_a_batch_made_inside_jit(config):
    batch, cells = batch_of(ROWS, 3), cells_of(config, [])
    outside = init_batch((cells,), batch, 2, (config,), max_rows=4)

    @jax.jit
    def inside(pos, n_tokens):
        made = dataclasses.replace(batch, pos=pos - 1, n_tokens=n_tokens + 1)
        return init_batch((cells,), made, 2, (config,), max_rows=4)

    found = inside(batch.pos + 1, np.int32(5))
    assert jax.tree.all(jax.tree.map(np.array_equal, found, outside))


def test_a_sequence_is_not_torn_apart_when_its_rows_are_to_see_one_another():
    """Four rows, three cells and a window of 1: cut in two the second ubatch can take the cells of the first."""
    window = dataclasses.replace(UNIFIED, n_cells=3, n_swa=1, swa_type=SwaType.STANDARD)
    configs, batch = (UNIFIED, window), batch_of([(0, 0), (0, 1), (1, 0), (2, 0)], 3)
    cells = tuple(cells_of(config, []) for config in configs)
    place = jax.jit(lambda mode: init_batch(cells, batch, 4, configs, max_rows=4, mode=mode))
    torn, whole = (place(Mode.of(causal=causal)) for causal in (True, False))
    assert ubatches(torn) == [[0, 1], [2, 3]] and torn.status.code == Reason.OK
    assert ubatches(whole) == [[0, 1, 2, 3]]
    assert sentence(whole.status).startswith("ubatch 0 needs 4 cells of one stream, 3 are free")


def test_the_size_of_a_window_is_data():
    """Cells of positions 0..3, tokens 4 and 5 at once: two cells have left the window of 3, one that of 4."""
    batch = jax.device_put(batch_of([(4, 0), (5, 0)], 1))
    configs = [MemoryConfig(n_cells=4, n_swa=w, swa_type=SwaType.STANDARD) for w in (3, 4, 5)]
    cells = jax.device_put(cells_of(configs[0], [{i: (i, 0) for i in range(4)}]))
    init_batch((cells,), batch, 2, (configs[0],), max_rows=4)
    with count_compilations() as count:
        found = [init_batch((cells,), batch, 2, (config,), max_rows=4).status for config in configs]
    assert count.total == 0
    assert [int(status.code) for status in found] == [Reason.OK, Reason.NO_SLOT, Reason.NO_SLOT]
    assert [int(status.found) for status in found] == [-1, 1, 0]
