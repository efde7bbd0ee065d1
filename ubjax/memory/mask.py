"""Masks: which cells the rows of a ubatch see, and which cells hold anything at all.

Cells are those as of the ubatch (its own rows written, see `slots.apply_slot`); the first n_kv of a
stream count. Block b of the ubatch reads stream first_stream + b; unified, every block reads the one
stream.

    cells   pos 0 1 2 0 -      rows of sequence 0 at 1, 2        [[[1 1 0 0 0]
            seq 0 0 0 1 -      one row of padding                  [1 1 1 0 0]
                                                                   [0 0 0 0 0]]]

Sb blocks of Lb rows each, n_kv cells attended, NS streams, C cells a stream, W words of a sequence set.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.cells import Cells
from ubjax.memory.window import out_of_window
from ubjax.ragged import first_seq, set_of
from ubjax.typing import Array, Bool, Flag, Scalar
from ubjax.ubatch import Ubatch


def _attended(leaf: Array, first_stream: Scalar, n_blocks: int, n_kv: int, config: MemoryConfig) -> jax.Array:
    """The first n_kv cells of the streams that blocks read: [1, n_kv, ...] unified, else [Sb, n_kv, ...]."""
    leaf = jnp.asarray(leaf)[:, :n_kv]
    if config.unified:
        return leaf
    return jax.lax.dynamic_slice_in_dim(leaf, first_stream, n_blocks, axis=0)


def _check_sizes(n_blocks: int, n_kv: int, config: MemoryConfig) -> None:
    if not 1 <= n_kv <= config.n_cells:
        raise ValueError(
            f"n_kv is {n_kv}, a stream has {config.n_cells} cells: 1 to {config.n_cells} are needed"
        )
    if not config.unified and n_blocks > config.n_streams:
        raise ValueError(
            f"the ubatch has {n_blocks} blocks, at most {config.n_streams} (one a stream) are possible"
        )


@partial(jax.jit, static_argnames=("n_kv", "config"))
def attention_mask(
    cells: Cells,
    ubatch: Ubatch,
    n_kv: int,
    config: MemoryConfig,
    first_stream: Scalar = 0,
    *,
    causal: Flag | bool = True,
) -> Bool[jax.Array, "Sb Lb n_kv"]:
    """What each row of a ubatch sees: True where the row attends the cell; rows of padding see nothing.

    A row sees the cells of its stream that hold its first sequence, are not out of the window of its
    position and, when `causal` (data), do not lie after it: no larger position and, with M-RoPE at the same
    position, not after it by (y, x). `first_stream` is data, in [0, NS - Sb]. Semantics of llama.cpp's
    set_input_kq_mask. Raises ValueError (before tracing) when n_kv or Sb exceed what the memory has.
    """
    Sb, Lb = ubatch.bucket.n_blocks, ubatch.bucket.n_block_rows
    _check_sizes(Sb, n_kv, config)

    def rows(leaf: Array) -> jax.Array:
        return jnp.asarray(leaf).reshape(Sb, Lb, 1)

    pos, seq, ext = (
        _attended(leaf, first_stream, Sb, n_kv, config) for leaf in (cells.pos, cells.seq, cells.ext)
    )
    own = set_of(first_seq(ubatch.seq), config.n_words)
    sees = jnp.zeros((Sb, Lb, n_kv), bool)
    for word in range(config.n_words):
        sees |= (seq[:, None, :, word] & rows(own[:, word])) != 0
    pos, at = pos[:, None], rows(ubatch.pos[0])
    sees &= rows(ubatch.valid) & (pos >= 0)
    after = pos > at
    if config.n_pos > 1:
        y, x, at_y, at_x = ext[:, None, :, 0], ext[:, None, :, 1], rows(ubatch.pos[1]), rows(ubatch.pos[2])
        after |= (pos == at) & ((y > at_y) | ((y == at_y) & (x > at_x)))
    sees &= ~(after & causal)
    if config.swa_type is not SwaType.NONE:
        sees &= ~out_of_window(pos, at, config.n_swa, config.swa_type)
    return sees


@partial(jax.jit, static_argnames=("n_blocks", "n_kv", "config"))
def cell_valid(
    cells: Cells, n_blocks: int, n_kv: int, config: MemoryConfig, first_stream: Scalar = 0
) -> Bool[jax.Array, "blocks n_kv"]:
    """The non-empty cells that n_blocks blocks read: [1, n_kv] unified, else [Sb, n_kv].

    K and V of the others may hold anything, NaN too: V has to be zeroed there before it is weighed (0 * NaN
    is NaN).
    """
    _check_sizes(n_blocks, n_kv, config)
    return _attended(cells.pos, first_stream, n_blocks, n_kv, config) >= 0
