"""Restore: cells for saved rows, stream by stream; and their K and V, padded as programs want them."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from ubjax.buckets import Buckets
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory.cells import Cells
from ubjax.memory.rows import Placed, place_rows, seen_at_the_end
from ubjax.memory.window import any_size
from ubjax.saving.state import SavedRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Rows of one cache that go into one stream: which of the saved ones [n], and their sets [n, W] there.

    `index` [M]: their cells, ascending, padded to a bucket; empty before they have some.
    """

    cache: int
    stream: int
    rows: np.ndarray
    seq: np.ndarray
    index: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def top(self) -> int:
        """One more than the largest cell."""
        return int(self.index[len(self.rows) - 1]) + 1


def groups(c: int, rows: SavedRows, seq: int | None, memory: MemoryConfig) -> list[Group]:
    """The rows of cache c by stream: as sequence `seq`, or (None) as the sequences that they were saved with."""
    if not rows.n:
        return []
    if seq is None and memory.unified:
        sets = np.zeros((rows.n, memory.n_words), np.uint32)
        words = rows.seq[:, : memory.n_words] if rows.seq is not None else np.ones((rows.n, 1), np.uint32)
        sets[:, : words.shape[1]] = words
        return [Group(cache=c, stream=0, rows=np.arange(rows.n), seq=sets)]
    found = []
    for saved in rows.ids():
        own, target = rows.of(saved), saved if seq is None else seq
        sets = np.zeros((len(own), memory.n_words), np.uint32)
        sets[:, target // 32] = np.uint32(1) << np.uint32(target % 32)
        found.append(Group(cache=c, stream=0 if memory.unified else target, rows=own, seq=sets))
    return found


def place(
    cells: Cells, rows: SavedRows, group: Group, config: MemoryConfig, buckets: Buckets
) -> tuple[Cells, Group] | None:
    """The cells with a group's rows in them, and the group with its cells; None when there are not enough.

    Where a window cache has no room for all rows, those go in that its windows still need.
    """
    for choice in _choices(cells, rows, group, config, buckets):
        n = len(choice.rows)
        if n > config.n_cells:
            continue
        pos, seq = _padded(rows, choice, buckets.n_kv[group.cache].pick(n))
        sizes = np.int32(group.stream), np.int32(n), np.int32(config.n_swa)
        placed: Placed = place_rows(cells, pos, seq, *sizes, any_size(config))
        if placed.ok:
            return placed.cells, dataclasses.replace(choice, index=np.asarray(placed.index))
    return None


def _choices(
    cells: Cells, rows: SavedRows, group: Group, config: MemoryConfig, buckets: Buckets
) -> Iterator[Group]:
    """The group whole; then, of a window cache, the rows that the next position of each sequence still sees."""
    yield group
    if config.swa_type is SwaType.NONE:
        return
    # The full cache has taken all of these rows: its ladder has a size for them.
    pos, seq = _padded(rows, group, buckets.n_kv[0].pick(len(group.rows)))
    pos[0, len(group.rows) :] = -1
    where = jax.device_put((pos[0], seq), next(iter(cells.pos.devices())))
    seen = np.asarray(seen_at_the_end(*where, np.int32(config.n_swa), any_size(config)))
    kept = np.flatnonzero(seen[: len(group.rows)])
    yield dataclasses.replace(group, rows=group.rows[kept], seq=group.seq[kept])


def _padded(rows: SavedRows, group: Group, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions [1 + X, size] and sets [size, W] of a group."""
    n = len(group.rows)
    pos = np.zeros((len(rows.pos), size), np.int32)
    seq = np.zeros((size, group.seq.shape[1]), np.uint32)
    pos[:, :n], seq[:n] = rows.pos[:, group.rows], group.seq
    return pos, seq


def padded_layers(layers: np.ndarray, group: Group) -> tuple[np.ndarray, ...]:
    """K or V [Hk, M, D] of a group's rows, layer by layer, zeros behind them."""
    n_layers, n_heads, _, width = layers.shape
    out = np.zeros((n_layers, n_heads, len(group.index), width), layers.dtype)
    out[:, :, : len(group.rows)] = layers[:, :, group.rows]
    return tuple(out)
