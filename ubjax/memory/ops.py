"""Sequence operations on cells and what can be read off them (llama.cpp's llama_memory_seq_*).

All are pure and see integers only: K and V follow before the next decode, by the pending `shift` of a cell
and the pending `src` of a stream. A range is [p0, p1): p0 < 0 means 0, p1 < 0 means no end. Sequence ids,
positions and deltas are data. A sequence outside [0, S) is the caller's error to report; here nothing
happens.

NS streams (1 when unified, else one per sequence), C cells a stream, S sequences, W words of a sequence set.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig
from ubjax.memory.cells import Cells
from ubjax.ragged import count_seqs, first_seq, has_seq, set_of
from ubjax.typing import I32, Array, Bool, Flag, Int32, Scalar, UInt32

_NO_POS = 2**31 - 1


@jax.jit
def used(cells: Cells) -> Int32[jax.Array, " NS"]:
    """Non-empty cells of each stream."""
    return jnp.sum(jnp.asarray(cells.pos) >= 0, axis=-1, dtype=jnp.int32)


@jax.jit
def used_max_p1(cells: Cells) -> Int32[jax.Array, " NS"]:
    """One more than the index of the last non-empty cell of each stream, 0 when it has none."""
    pos = jnp.asarray(cells.pos)
    index = jnp.arange(1, pos.shape[-1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(pos >= 0, index[None], 0), axis=-1)


def span_by_seq(
    pos: Int32[Array, " C"], seq: UInt32[Array, "C W"], n_seqs: int
) -> tuple[Int32[jax.Array, " S"], Int32[jax.Array, " S"]]:
    """First and last position of each of `n_seqs` sequences in the cells of one stream, -1 when absent."""
    pos, seq = jnp.asarray(pos), jnp.asarray(seq)
    late = jnp.where(pos < 0, _NO_POS, pos)

    def one_each() -> tuple[jax.Array, jax.Array]:
        owner = first_seq(seq)
        low = jnp.full(n_seqs, _NO_POS, jnp.int32).at[owner].min(late, mode="drop")
        return low, jnp.full(n_seqs, -1, jnp.int32).at[owner].max(pos, mode="drop")

    def shared() -> tuple[jax.Array, jax.Array]:
        ids = jnp.arange(n_seqs, dtype=jnp.uint32)
        holds = (seq[:, ids // 32] >> (ids % 32)[None]) & 1 != 0
        low = jnp.min(jnp.where(holds, late[:, None], _NO_POS), axis=0)
        return low, jnp.max(jnp.where(holds, pos[:, None], -1), axis=0)

    low, high = jax.lax.cond(jnp.all(count_seqs(seq) <= 1), one_each, shared)
    return jnp.where(high < 0, -1, low), high


@partial(jax.jit, static_argnames="config")
def seq_ranges(cells: Cells, config: MemoryConfig) -> tuple[Int32[jax.Array, " S"], Int32[jax.Array, " S"]]:
    """First and last cached position of every sequence, -1 when absent: (pos_min [S], pos_max [S])."""
    pos = jnp.asarray(cells.pos)
    if config.unified:
        return span_by_seq(pos[0], cells.seq[0], config.n_seq_max)
    high = jnp.max(pos, axis=-1)
    low = jnp.min(jnp.where(pos < 0, _NO_POS, pos), axis=-1)
    return jnp.where(high < 0, -1, low), high


@partial(jax.jit, static_argnames="config")
def pos_min(cells: Cells, seq: Scalar, config: MemoryConfig) -> I32:
    """The first cached position of a sequence, -1 when absent."""
    low, _ = seq_ranges(cells, config)
    return _entry(low, seq)


@partial(jax.jit, static_argnames="config")
def pos_max(cells: Cells, seq: Scalar, config: MemoryConfig) -> I32:
    """The last cached position of a sequence, -1 when absent."""
    _, high = seq_ranges(cells, config)
    return _entry(high, seq)


def _entry(values: jax.Array, seq: Scalar) -> jax.Array:
    inside = (seq >= 0) & (seq < values.shape[0])
    return jnp.where(inside, values[jnp.where(inside, seq, 0)], -1)


def stream_of(seq: Scalar, config: MemoryConfig) -> Int32[jax.Array, ""]:
    """The stream of a sequence; NS (out of range) for a sequence outside [0, S)."""
    seq = jnp.asarray(seq, jnp.int32)
    known = (seq >= 0) & (seq < config.n_seq_max)
    return jnp.where(known, 0 if config.unified else seq, config.n_streams)


def _in_range(pos: jax.Array, p0: Scalar, p1: Scalar) -> jax.Array:
    """Non-empty cells with a position in [p0, p1)."""
    return (pos >= jnp.maximum(p0, 0)) & ((pos < p1) | (jnp.asarray(p1) < 0))


def _members(cells: Cells, seq: Scalar, p0: Scalar, p1: Scalar, config: MemoryConfig) -> jax.Array:
    """[NS, C]: cells of the sequence, in its stream, with a position in range."""
    seq = jnp.asarray(seq, jnp.int32)
    here = jnp.arange(config.n_streams, dtype=jnp.int32) == stream_of(seq, config)
    return here[:, None] & has_seq(cells.seq, seq) & _in_range(jnp.asarray(cells.pos), p0, p1)


def empty_where(cells: Cells, emptied: Bool[Array, "NS C"]) -> Cells:
    """The cells with those of a mask emptied; heads stay."""
    return dataclasses.replace(
        cells,
        pos=jnp.where(emptied, -1, cells.pos),
        k_pos=jnp.where(emptied, -1, cells.k_pos),
        shift=jnp.where(emptied, 0, cells.shift),
        seq=jnp.where(emptied[..., None], jnp.uint32(0), cells.seq),
        ext=jnp.where(emptied[..., None], 0, cells.ext),
    )


def _first_index(emptied: jax.Array) -> jax.Array:
    """[NS]: the first marked cell of each stream, C when there is none."""
    first = jnp.argmax(emptied, axis=-1).astype(jnp.int32)
    return jnp.where(jnp.any(emptied, axis=-1), first, emptied.shape[-1])


def _head_to_freed(cells: Cells, emptied: jax.Array) -> Cells:
    """The next search starts at the first emptied cell where that lies below the head."""
    return dataclasses.replace(cells, head=jnp.minimum(cells.head, _first_index(emptied)))


def drop_seq(
    cells: Cells, seq: Scalar, p0: Scalar, p1: Scalar, config: MemoryConfig
) -> tuple[Cells, Bool[jax.Array, "NS C"]]:
    """Take a sequence out of its cells in range: the cells, heads untouched, and which became empty."""
    member = _members(cells, seq, p0, p1, config)
    rest = jnp.asarray(cells.seq) & ~set_of(jnp.asarray(seq, jnp.int32), config.n_words)[None, None]
    emptied = member & jnp.all(rest == 0, axis=-1)
    cells = dataclasses.replace(cells, seq=jnp.where(member[..., None], rest, cells.seq))
    return empty_where(cells, emptied), emptied


@partial(jax.jit, static_argnames="config")
def rm(cells: Cells, seq: Scalar, p0: Scalar, p1: Scalar, config: MemoryConfig) -> Cells:
    """Remove a sequence's positions [p0, p1); seq -1: every sequence's, in every stream.

    A cell left without a sequence becomes empty; the head of its stream goes back to the first such cell.
    """
    every = jnp.asarray(seq) == -1
    one, freed = drop_seq(cells, seq, p0, p1, config)
    in_range = every & _in_range(jnp.asarray(cells.pos), p0, p1)
    emptied = jnp.where(every, in_range, freed)
    return _head_to_freed(empty_where(one, emptied), emptied)


@partial(jax.jit, static_argnames="config")
def cp(
    cells: Cells, src: Scalar, dst: Scalar, p0: Scalar, p1: Scalar, config: MemoryConfig
) -> tuple[Cells, Flag]:
    """Let sequence `dst` have the positions [p0, p1) of `src`; (cells, whether that was possible).

    Unified: dst joins the sets of src's cells. Streams: dst's stream becomes a copy of src's (same cells,
    positions, pending shifts and head, dst alone in the sets) and its `src` names the stream whose K/V rows
    it takes over. Only a whole sequence can be copied so: a range that leaves out a position of src changes
    nothing and gives False.
    """
    member = _members(cells, src, p0, p1, config)
    here, there = stream_of(src, config), stream_of(dst, config)
    alone = set_of(jnp.asarray(dst, jnp.int32), config.n_words)
    if config.unified:
        join = member & (there < config.n_streams)
        joined = jnp.where(join[..., None], cells.seq | alone[None, None], cells.seq)
        return dataclasses.replace(cells, seq=joined), jnp.asarray(True)
    whole = jnp.all(member == _members(cells, src, -1, -1, config))
    known = (here < config.n_streams) & (there < config.n_streams)
    row = jnp.where(known, here, 0)
    at = jnp.where(whole & known & (here != there), there, config.n_streams)  # dropped: nothing changes
    held = member[row]

    def copied(leaf: Array, value: Array) -> jax.Array:
        return jnp.asarray(leaf).at[at].set(value, mode="drop")

    cells = Cells(
        pos=copied(cells.pos, jnp.where(held, jnp.asarray(cells.pos)[row], -1)),
        k_pos=copied(cells.k_pos, jnp.where(held, jnp.asarray(cells.k_pos)[row], -1)),
        shift=copied(cells.shift, jnp.where(held, jnp.asarray(cells.shift)[row], 0)),
        seq=copied(cells.seq, jnp.where(held[:, None], alone[None], jnp.uint32(0))),
        ext=copied(cells.ext, jnp.where(held[:, None], jnp.asarray(cells.ext)[row], 0)),
        head=copied(cells.head, jnp.asarray(cells.head)[row]),
        src=copied(cells.src, jnp.asarray(cells.src)[row]),
    )
    return cells, whole | (here == there)


@partial(jax.jit, static_argnames="config")
def keep(cells: Cells, seq: Scalar, config: MemoryConfig) -> Cells:
    """Keep one sequence in its stream: its cells hold only it, the others of the stream are emptied."""
    mine = _members(cells, seq, -1, -1, config)
    here = jnp.arange(config.n_streams, dtype=jnp.int32) == stream_of(seq, config)
    emptied = here[:, None] & ~mine & (jnp.asarray(cells.pos) >= 0)
    alone = set_of(jnp.asarray(seq, jnp.int32), config.n_words)[None, None]
    cells = dataclasses.replace(cells, seq=jnp.where(mine[..., None], alone, cells.seq))
    return _head_to_freed(empty_where(cells, emptied), emptied)


@partial(jax.jit, static_argnames="config")
def add(cells: Cells, seq: Scalar, p0: Scalar, p1: Scalar, delta: Scalar, config: MemoryConfig) -> Cells:
    """Move a sequence's positions [p0, p1) by `delta`; their K rows have to follow before the next decode.

    A cell whose position falls below 0 is emptied; the head goes to the first such cell, else to 0. A cell
    has one position for all its sequences. Raises ValueError (before tracing) for M-RoPE positions.
    """
    return add_all(cells, set_of(jnp.asarray(seq, jnp.int32), config.n_words), p0, p1, delta, config)


@partial(jax.jit, static_argnames="config")
def add_all(
    cells: Cells, seqs: UInt32[Array, " W"], p0: Scalar, p1: Scalar, delta: Scalar, config: MemoryConfig
) -> Cells:
    """`add` for a set of sequences at once: a cell that several of them share moves once."""
    _check_one_position(config)
    member = owned(cells, seqs, p0, p1) & (jnp.asarray(delta) != 0)
    moved = jnp.asarray(cells.pos) + delta
    emptied = member & (moved < 0)
    acts = (jnp.asarray(delta) != 0) & (jnp.maximum(p0, 0) != p1)
    start = _first_index(emptied) % config.n_cells
    cells = dataclasses.replace(
        cells,
        pos=jnp.where(member, moved, cells.pos),
        shift=jnp.where(member, cells.shift + delta, cells.shift),
        head=jnp.where(acts & _streams_of(seqs, config), start, cells.head),
    )
    return empty_where(cells, emptied)


@partial(jax.jit, static_argnames="config")
def div(cells: Cells, seq: Scalar, p0: Scalar, p1: Scalar, divisor: Scalar, config: MemoryConfig) -> Cells:
    """Divide a sequence's positions [p0, p1) by `divisor` (rounded down; nothing happens below 2).

    `shift` takes up old - new, as llama.cpp records it. Raises ValueError (before tracing) for M-RoPE positions.
    """
    return div_all(cells, set_of(jnp.asarray(seq, jnp.int32), config.n_words), p0, p1, divisor, config)


@partial(jax.jit, static_argnames="config")
def div_all(
    cells: Cells, seqs: UInt32[Array, " W"], p0: Scalar, p1: Scalar, divisor: Scalar, config: MemoryConfig
) -> Cells:
    """`div` for a set of sequences at once."""
    _check_one_position(config)
    member = owned(cells, seqs, p0, p1) & (jnp.asarray(divisor) > 1)
    old = jnp.asarray(cells.pos)
    new = jnp.where(member, old // jnp.maximum(divisor, 1), old)
    return dataclasses.replace(cells, pos=new, shift=cells.shift + old - new)


def owned(cells: Cells, seqs: UInt32[Array, " W"], p0: Scalar, p1: Scalar) -> Bool[jax.Array, "NS C"]:
    """The cells that any of a set of sequences holds, with a position in [p0, p1)."""
    shared = jnp.asarray(cells.seq) & jnp.asarray(seqs)[None, None]
    return jnp.any(shared != 0, axis=-1) & _in_range(jnp.asarray(cells.pos), p0, p1)


def _streams_of(seqs: jax.Array, config: MemoryConfig) -> jax.Array:
    """[NS]: the streams of a set of sequences."""
    ids = jnp.arange(config.n_seq_max, dtype=jnp.uint32)
    inside = (jnp.asarray(seqs)[ids // 32] >> (ids % 32)) & 1 != 0
    return jnp.any(inside, keepdims=True) if config.unified else inside


def _check_one_position(config: MemoryConfig) -> None:
    if config.n_pos != 1:
        raise ValueError(f"this memory holds {config.n_pos} positions a token, 1 is needed to shift them")


@jax.jit
def clear(cells: Cells) -> Cells:
    """Empty every cell; heads at 0, nothing pending."""
    cells = empty_where(cells, jnp.ones(cells.pos.shape, bool))
    return dataclasses.replace(settle(cells), head=jnp.zeros_like(cells.head))


@jax.jit
def settle(cells: Cells) -> Cells:
    """The cells once K and V have followed: no pending shift, every stream its own source."""
    streams = jnp.arange(cells.src.shape[0], dtype=jnp.int32)
    return dataclasses.replace(
        cells, k_pos=jnp.asarray(cells.pos), shift=jnp.zeros_like(cells.shift), src=streams
    )
