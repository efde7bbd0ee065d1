"""All caches of a model as one memory: a full cache, and for sliding windows a second one (llama.cpp's iSWA).

A memory is a tuple of `MemoryConfig` and a tuple of `Cells` in the same order: (full,), or (full, window). Both
hold the same sequences, but the window cache may have given up positions that no later one sees. The positions of
a sequence are those of the last cache: pos_min is then the oldest one that every layer still holds.

S sequences, C cells a stream.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from ubjax.config import MemoryConfig, SwaType
from ubjax.memory import ops
from ubjax.memory.cells import Cells
from ubjax.ragged import first_seq, set_of
from ubjax.typing import Array, Bool, Flag, Int32, Scalar, UInt32

Caches = tuple[MemoryConfig, ...]
AllCells = tuple[Cells, ...]


def empty(caches: Caches) -> AllCells:
    """Empty cells of every cache."""
    return tuple(Cells.empty(config) for config in caches)


def seq_ranges(cells: AllCells, caches: Caches) -> tuple[Int32[jax.Array, " S"], Int32[jax.Array, " S"]]:
    """First and last position of every sequence that all caches hold, -1 when absent: (pos_min [S], pos_max [S])."""
    return ops.seq_ranges(cells[-1], caches[-1])


@partial(jax.jit, static_argnames="caches")
def next_pos(cells: AllCells, caches: Caches) -> Int32[jax.Array, " S"]:
    """The position after the largest that a sequence has in any section (M-RoPE: time, y or x), 0 when it is absent."""
    pos, ext = jnp.asarray(cells[0].pos), jnp.asarray(cells[0].ext)
    far = jnp.where(pos < 0, -1, jnp.maximum(pos, jnp.max(ext, axis=-1, initial=-1)))
    _, last = ops.seq_ranges(dataclasses.replace(cells[0], pos=far), caches[0])
    return last + 1


@partial(jax.jit, static_argnames="caches")
def rm(cells: AllCells, seq: Scalar, p0: Scalar, p1: Scalar, caches: Caches) -> AllCells:
    """Remove a sequence's positions [p0, p1) everywhere; seq -1: every sequence's."""
    return tuple(ops.rm(own, seq, p0, p1, config) for own, config in zip(cells, caches, strict=True))


@partial(jax.jit, static_argnames="caches")
def cp(
    cells: AllCells, src: Scalar, dst: Scalar, p0: Scalar, p1: Scalar, caches: Caches
) -> tuple[AllCells, Flag]:
    """Let `dst` have the positions [p0, p1) of `src` in every cache; (cells, whether that was possible)."""
    pairs = [ops.cp(own, src, dst, p0, p1, config) for own, config in zip(cells, caches, strict=True)]
    return tuple(own for own, _ in pairs), jnp.all(jnp.stack([possible for _, possible in pairs]))


@partial(jax.jit, static_argnames="caches")
def keep(cells: AllCells, seq: Scalar, caches: Caches) -> AllCells:
    """Keep one sequence in its stream, in every cache."""
    return tuple(ops.keep(own, seq, config) for own, config in zip(cells, caches, strict=True))


@partial(jax.jit, static_argnames="caches")
def add(
    cells: AllCells, seqs: UInt32[Array, " W"], p0: Scalar, p1: Scalar, delta: Scalar, caches: Caches
) -> AllCells:
    """Move the positions [p0, p1) of a set of sequences by `delta` in every cache; a shared cell moves once."""
    pairs = zip(cells, caches, strict=True)
    return tuple(ops.add_all(own, seqs, p0, p1, delta, config) for own, config in pairs)


@partial(jax.jit, static_argnames="caches")
def div(
    cells: AllCells, seqs: UInt32[Array, " W"], p0: Scalar, p1: Scalar, divisor: Scalar, caches: Caches
) -> AllCells:
    """Divide the positions [p0, p1) of a set of sequences by `divisor` in every cache."""
    pairs = zip(cells, caches, strict=True)
    return tuple(ops.div_all(own, seqs, p0, p1, divisor, config) for own, config in pairs)


@jax.jit
def outsider(cells: AllCells, seqs: UInt32[Array, " W"], p0: Scalar, p1: Scalar) -> Int32[jax.Array, ""]:
    """The smallest sequence outside the set that shares one of its cells in [p0, p1); 32 W when there is none.

    A cell has one position, so its owners can only be moved together.
    """
    member = ops.owned(cells[0], seqs, p0, p1)
    others = jnp.where(
        member[..., None], jnp.asarray(cells[0].seq) & ~jnp.asarray(seqs)[None, None], jnp.uint32(0)
    )
    return first_seq(jax.lax.reduce_or(others, axes=(0, 1)))


@partial(jax.jit, static_argnames="caches")
def can_resume(cells: AllCells, seq: Scalar, p: Scalar, caches: Caches) -> Flag:
    """Whether a sequence can go on at position p once its positions from p on are removed.

    It can at 0, and where position p - 1 is cached and the window cache still holds everything that p sees.
    """
    p = jnp.asarray(p, jnp.int32)
    full, window = cells[0], cells[-1]
    one = set_of(jnp.asarray(seq, jnp.int32), caches[0].n_words)
    seen = jnp.maximum(_window_start(p, caches[-1]), 0)

    def count(own: Cells, p0: jax.Array) -> jax.Array:
        return jnp.sum(ops.owned(own, one, p0, p) & (p > 0), dtype=jnp.int32)

    complete = count(full, seen) == count(window, seen)
    return (p == 0) | ((p > 0) & (count(full, p - 1) > 0) & complete)


@partial(jax.jit, static_argnames="caches")
def drop_passed(cells: AllCells, seq: Scalar, p: Scalar, caches: Caches) -> AllCells:
    """Take a sequence out of those cells of the window cache that its position p does not see."""
    seen = jnp.maximum(_window_start(jnp.asarray(p, jnp.int32), caches[-1]), 0)
    return (*cells[:-1], ops.rm(cells[-1], seq, 0, seen, caches[-1]))


@partial(jax.jit, static_argnames="caches")
def can_go_on(cells: AllCells, caches: Caches) -> Bool[jax.Array, " S"]:
    """Of every sequence, whether it can go on after its last position (an empty one can)."""
    _, last = ops.seq_ranges(cells[0], caches[0])
    ids = jnp.arange(caches[0].n_seq_max, dtype=jnp.int32)
    return jax.lax.map(lambda pair: can_resume(cells, *pair, caches), (ids, last + 1))


def _window_start(p: jax.Array, config: MemoryConfig) -> jax.Array:
    """The first position that position p sees through the window."""
    match config.swa_type:
        case SwaType.NONE:
            return jnp.zeros_like(p)
        case SwaType.STANDARD:
            return p - config.n_swa + 1
        case SwaType.CHUNKED:
            return p // config.n_swa * config.n_swa
        case SwaType.SYMMETRIC:
            return p - config.n_swa // 2


@jax.jit
def pending(cells: AllCells) -> tuple[Flag, Int32[jax.Array, ""]]:
    """What K and V owe the cells: (whether K rows have to be rotated, how many streams have to be copied)."""
    moved = jnp.any(jnp.stack([jnp.any(own.pos != own.k_pos) for own in cells]))
    src = jnp.asarray(cells[0].src)
    return moved, jnp.sum(src != jnp.arange(src.shape[0], dtype=jnp.int32), dtype=jnp.int32)


@jax.jit
def settle(cells: AllCells) -> AllCells:
    """The cells of every cache once K and V have followed."""
    return tuple(ops.settle(own) for own in cells)
