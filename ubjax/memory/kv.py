"""KV: the rows of K and V that the cells describe. The data plane: floats only, addressed by (stream, cell).

L layers, NS streams (1 when unified), Hk heads, Ckv cells held in each stream (the attended bucket, at most
C), D width of a head. The cells of one head lie together, as attention reads them: with heads inside cells every
step would turn all of K and V round first. The arrays are as large as the bucket: a donated cache that is read
through a smaller slice would be copied whole, once a layer. What lies in cells that are not in use is undefined.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig
from ubjax.pytree import pytree, static
from ubjax.typing import Array, Float, Int32


@pytree
class KV:
    """K and V of every layer of one cache, each [NS, Hk, Ckv, D]."""

    k: tuple[Float[Array, "NS Hk Ckv D"], ...]
    v: tuple[Float[Array, "NS Hk Ckv D"], ...]
    n_cells: int = static()  # Ckv, which a cache without layers has as well

    @classmethod
    def zeros(
        cls,
        config: MemoryConfig,
        *,
        n_layers: int,
        n_cells: int,
        n_heads: int,
        head_dim: int,
        dtype: Any = jnp.float32,
    ) -> "KV":
        """Zeroed arrays of `n_cells` cells a stream. Raises ValueError beyond the configuration's C."""
        if not 1 <= n_cells <= config.n_cells:
            raise ValueError(
                f"K/V of {n_cells} cells was asked for, a stream has {config.n_cells}: "
                f"1 to {config.n_cells} are needed"
            )
        shape = (config.n_streams, n_heads, n_cells, head_dim)
        return cls(
            k=tuple(jnp.zeros(shape, dtype) for _ in range(n_layers)),
            v=tuple(jnp.zeros(shape, dtype) for _ in range(n_layers)),
            n_cells=n_cells,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(leaf.nbytes for leaf in (*self.k, *self.v))


AllKV = tuple[KV, ...]  # one for each cache


@partial(jax.jit, static_argnames="n_copies")
def copy_streams(kv: KV, src: Int32[Array, " NS"], n_copies: int) -> KV:
    """Every stream s with src[s] != s takes over the K and V rows of stream src[s], as they were before.

    n_copies (static): how many such streams there are, at most.
    """
    src = jnp.asarray(src)
    streams = jnp.arange(src.shape[0], dtype=jnp.int32)
    (to,) = jnp.nonzero(src != streams, size=n_copies, fill_value=src.shape[0])
    of = src.at[to].get(mode="clip")
    k, v = jax.tree.map(lambda rows: rows.at[to].set(rows[of], mode="drop"), (kv.k, kv.v))
    return KV(k=k, v=v, n_cells=kv.n_cells)


@partial(jax.jit, static_argnames="n_cells")
def grow(kv: KV, n_cells: int) -> KV:
    """A copy with room for `n_cells` cells a stream (static), zeros behind the rows that were there.

    `kv` is not donated: arrays of another size can't take over its memory, and when the new ones can't be
    allocated the old ones must still be there. Raises ValueError (before tracing) when it would shrink.
    """
    if n_cells < kv.n_cells:
        raise ValueError(f"K/V holds {kv.n_cells} cells a stream, {n_cells} would not hold them")
    behind = ((0, 0), (0, 0), (0, n_cells - kv.n_cells), (0, 0))
    k, v = jax.tree.map(lambda rows: jnp.pad(rows, behind), (kv.k, kv.v))
    return KV(k=k, v=v, n_cells=n_cells)
