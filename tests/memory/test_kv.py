"""K/V arrays: shapes, bytes, growth."""

import jax.numpy as jnp
import numpy as np
import pytest

from ubjax.config import MemoryConfig
from ubjax.memory.kv import KV, grow

CONFIG = MemoryConfig(n_cells=16, n_seq_max=2, unified=False)


def zeros(n_cells=4, dtype=jnp.float32):
    return KV.zeros(CONFIG, n_layers=3, n_cells=n_cells, n_heads=2, head_dim=5, dtype=dtype)


@pytest.mark.parametrize(("dtype", "size"), [(jnp.float32, 4), (jnp.bfloat16, 2)])
def test_sizes(dtype, size):
    kv = zeros(dtype=dtype)
    assert len(kv.k) == len(kv.v) == 3 and kv.k[0].shape == (2, 2, 4, 5) and kv.v[2].dtype == dtype
    assert kv.n_cells == 4 and kv.nbytes == 2 * 3 * (2 * 4 * 2 * 5) * size
    unified = KV.zeros(MemoryConfig(n_cells=16, n_seq_max=2), n_layers=1, n_cells=16, n_heads=1, head_dim=1)
    assert unified.k[0].shape == (1, 1, 16, 1)


def test_growing_keeps_the_rows():
    kv = zeros()
    rows = jnp.arange(80, dtype=jnp.float32).reshape(2, 2, 4, 5)
    kv = KV(k=(rows, *kv.k[1:]), v=(*kv.v[:2], -rows), n_cells=4)
    grown = grow(kv, 6)
    assert grown.n_cells == 6
    np.testing.assert_array_equal(grown.k[0][:, :, :4], rows)
    np.testing.assert_array_equal(grown.v[2][:, :, :4], -rows)
    assert not np.asarray(grown.k[0][:, :, 4:]).any()
    np.testing.assert_array_equal(kv.k[0], rows)


def test_sizes_that_can_not_be():
    with pytest.raises(ValueError, match="K/V of 17 cells was asked for, a stream has 16"):
        zeros(17)
    with pytest.raises(ValueError, match="K/V holds 4 cells a stream, 3 would not hold them"):
        grow(zeros(), 3)
