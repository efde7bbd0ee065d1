"""Collect: the rows of some cells in canonical order, with their K and V."""

import numpy as np

from ubjax.buckets import BucketLadder
from ubjax.memory.cells import Cells
from ubjax.memory.kv import KV
from ubjax.memory.rows import take_rows
from ubjax.saving.state import Form, SavedRows


def collect(
    cells: Cells, kv: KV | None, seq: int | None, form: Form, c: int, ladder: BucketLadder
) -> SavedRows:
    """The rows of one sequence, or of all (None), in cache c; `cells` on the host, settled. `kv` may miss if empty."""
    stream, index = _ordered(cells, seq)
    sections = np.concatenate([cells.pos[None], np.moveaxis(cells.ext, -1, 0)])
    words = cells.seq[stream, index]
    n_words = 1 + int(max(np.flatnonzero(np.any(words != 0, axis=0)), default=0))
    k, v = (np.zeros((form.layers[c], form.n_heads, len(index), form.head_dim), form.dtype) for _ in range(2))
    for s in np.unique(stream).tolist():
        _fetch(kv, s, index, np.flatnonzero(stream == s), ladder, (k, v))
    pos = np.ascontiguousarray(sections[:, stream, index])
    return SavedRows(pos=pos, seq=None if seq is not None else words[:, :n_words], k=k, v=v)


def _ordered(cells: Cells, seq: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(stream [n], cell [n]) of the rows, by sequence set, position and cell."""
    if seq is None:
        stream, index = np.nonzero(cells.pos >= 0)
    else:
        stream, index = np.nonzero(cells.seq[..., seq // 32] >> np.uint32(seq % 32) & 1)
    pos, words = cells.pos[stream, index], cells.seq[stream, index]
    sets = words.T if seq is None else ()  # the last key is the first to be compared
    order = np.lexsort((index, pos, *sets))
    return stream[order], index[order]


def _fetch(
    kv: KV | None,
    stream: int,
    index: np.ndarray,
    at: np.ndarray,
    ladder: BucketLadder,
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """K and V of the rows `at`, which lie in one stream, into the arrays [L, Hk, n, D] of all rows."""
    if kv is None:
        raise ValueError(f"{len(at)} rows of stream {stream} have no K/V")
    cells = np.full(ladder.pick(len(at)), kv.n_cells, np.int32)
    cells[: len(at)] = index[at]
    for whole, layers in zip(out, (kv.k, kv.v), strict=True):
        taken = [
            take_rows(layer, np.int32(stream), cells) for layer in layers
        ]  # all on their way before the first
        for i, rows in enumerate(taken):
            whole[i][:, at] = np.asarray(rows)[:, : len(at)]
