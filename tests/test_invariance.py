"""Split invariance: the same logits however a batch is cut, stored, padded or accompanied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ragged_rows import alone, close, logits_of, rows
from tests.tiny import tiny_engine
from ubjax import Engine


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("n_ubatch", [1, 2, 7, 512])
def test_logits_do_not_depend_on_the_cut_the_order_or_the_company(n_ubatch, kv_unified):
    for order in ("blocks", "in turn", "mixed"):
        engine = tiny_engine(n_ubatch=n_ubatch, n_seq_max=4, kv_unified=kv_unified)
        found = logits_of(engine, rows(order))
        assert found.keys() == alone().keys()
        assert close(found)


def test_a_prompt_in_pieces_equals_the_whole():
    engine = tiny_engine(n_seq_max=4, kv_unified=True)
    found = {}
    for piece in ([(0, 0), (0, 1)], [(0, 2), (2, 0), (2, 1)], [(0, p) for p in range(3, 9)]):
        found |= logits_of(engine, piece)
    assert close(found)
    assert (engine.pos_min(0), engine.pos_max(0), engine.pos_max(2), engine.pos_max(3)) == (0, 8, 1, -1)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_unused_cells_may_hold_nan_and_n_kv_may_be_anything_that_covers(kv_unified):
    first, rest = [(0, p) for p in range(4)], [(0, p) for p in range(4, 9)]
    for kv_pad in (4, 16, 64):  # the attended cells: exact, rounded up, all
        engine = tiny_engine(kv_pad=kv_pad, n_seq_max=2, n_ctx=128, kv_unified=kv_unified)
        logits_of(engine, first)
        poison(engine)
        found = logits_of(engine, rest)
        assert close(found)


def poison(engine: Engine) -> None:
    """NaN in K and V of every cell that holds nothing."""
    inside = vars(engine)
    (kv,), pos = inside["_kv"], np.asarray(inside["_cells"][0].pos)
    empty = jnp.asarray(pos[:, : kv.n_cells] < 0)[:, None, :, None]
    inside["_kv"] = (jax.tree.map(lambda x: jnp.where(empty, jnp.nan, x), kv),)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_rows_of_padding_touch_no_row_of_the_cache(kv_unified):
    engine = tiny_engine(n_seq_max=4, kv_unified=kv_unified)
    engine.reserve(1)
    poison(engine)
    logits_of(engine, [(0, 0), (0, 1), (0, 2), (2, 0)])  # 3 rows in a block of 4, or 4 in 4; 2 of 4 streams
    (cells,), (kv,) = vars(engine)["_cells"], vars(engine)["_kv"]
    used = np.asarray(cells.pos)[:, : kv.n_cells] >= 0
    assert used.sum() == 4
    for leaf in (*kv.k, *kv.v):
        written = ~np.isnan(np.asarray(leaf)).any(axis=(1, 3))
        assert np.array_equal(written, used)
