"""Slots: which cells the rows of a ubatch go into (llama.cpp's find_slot and apply_ubatch).

A slot is a cell index per row, inside the row's stream: 0 when unified, else the row's only sequence.

    order   [ 0 2 | 1 3 | T ]      two ubatches of two rows, one row of padding
    pos     [ 0 1 . . . . ]        C = 6 cells of one stream, two used; head 2
    slot    [ 2 3 | 4 5 | C ]      by place (the index into order), C at padding

T rows a batch can hold, M rows of a window onto one ubatch, NS streams, C cells a stream, S sequences, W
words of a sequence set, P positions a row.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from ubjax.batch import Batch
from ubjax.config import MemoryConfig, SwaType
from ubjax.memory import ops
from ubjax.memory.cells import Cells
from ubjax.memory.window import out_of_window
from ubjax.pytree import pytree
from ubjax.ragged import count_seqs, first_seq
from ubjax.split.plan import SplitPlan
from ubjax.typing import Array, Bool, Int32, Scalar, UInt32


@pytree
class Rows:
    """The rows of one ubatch as cells take them: `n_rows` for each of `n_sets` streams, stream after stream.

    `rank` is the row's number within its stream. Padding lies behind: valid False, place T, stream NS, the
    rest 0.
    """

    place: Int32[jax.Array, " M"]
    pos: Int32[jax.Array, "P M"]
    seq: UInt32[jax.Array, "M W"]
    stream: Int32[jax.Array, " M"]
    rank: Int32[jax.Array, " M"]
    valid: Bool[jax.Array, " M"]
    n_sets: Int32[jax.Array, ""]
    n_rows: Int32[jax.Array, ""]


@pytree
class Slot:
    """The cells of one ubatch: `index` [M], C at padding, and everywhere unless `ok`.

    `found`, when there is no slot: the usable cells of the first stream that has too few (with `cont`: the
    most in a row).
    """

    index: Int32[jax.Array, " M"]
    ok: Bool[jax.Array, ""]
    found: Int32[jax.Array, ""]


@partial(jax.jit, static_argnames=("config", "max_rows"))
def ubatch_rows(batch: Batch, plan: SplitPlan, k: Scalar, config: MemoryConfig, *, max_rows: int) -> Rows:
    """The rows of ubatch k in a window of M = `max_rows` (static, at least the rows of that ubatch)."""
    T = batch.token.shape[0]
    offset, index = jnp.asarray(plan.offset), jnp.arange(max_rows, dtype=jnp.int32)
    count = offset[k + 1] - offset[k]
    valid = index < count
    place = jnp.where(valid, offset[k] + index, T)
    row = jnp.asarray(plan.order).at[place].get(mode="fill", fill_value=T)
    seq = jnp.asarray(batch.seq).at[row].get(mode="fill", fill_value=0)
    n_sets = jnp.asarray(1, jnp.int32) if config.unified else jnp.maximum(jnp.asarray(plan.n_seqs)[k], 1)
    n_rows = count // n_sets
    stream = jnp.zeros_like(index) if config.unified else first_seq(seq)
    return Rows(
        place=place,
        pos=jnp.asarray(batch.pos).at[:, row].get(mode="fill", fill_value=0),
        seq=seq,
        stream=jnp.where(valid, stream, config.n_streams),
        rank=jnp.where(valid, index % jnp.maximum(n_rows, 1), 0),
        valid=valid,
        n_sets=n_sets,
        n_rows=n_rows,
    )


def _usable(pos: jax.Array, seq: jax.Array, n_swa: Scalar, config: MemoryConfig) -> jax.Array:
    """[C]: cells of a stream that may be taken: empty, or out of the window of their one sequence."""
    if config.swa_type is SwaType.NONE:
        return pos < 0
    if config.unified:
        _, last = ops.span_by_seq(pos, seq, config.n_seq_max)
        coming = last.at[first_seq(seq)].get(mode="fill", fill_value=-1) + 1
    else:
        coming = jnp.full_like(pos, jnp.max(pos) + 1)
    passed = out_of_window(pos, coming, n_swa, config.swa_type)
    return (pos < 0) | (passed & (count_seqs(seq) == 1))


@partial(jax.jit, static_argnames="config")
def usable_cells(cells: Cells, n_swa: Scalar, config: MemoryConfig) -> Bool[jax.Array, "NS C"]:
    """The cells that a decode may take now: the empty ones, and with a window those that it has passed."""
    streams = (jnp.asarray(cells.pos), jnp.asarray(cells.seq))
    return jax.lax.map(lambda stream: _usable(stream[0], stream[1], n_swa, config), streams)


def _in_turn(usable: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[C]: the turn of each usable cell on one walk from `start`, C for the others; and their number."""
    C = usable.shape[0]
    before = jnp.cumsum(usable, dtype=jnp.int32) - usable
    total = before[-1] + usable[-1]
    skipped = jnp.where(start < C, before[jnp.minimum(start, C - 1)], total)
    turn = before - skipped + jnp.where(jnp.arange(C, dtype=jnp.int32) < start, total, 0)
    return jnp.where(usable, turn, C), total


def _in_a_row(usable: jax.Array, start: jax.Array, n_rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As `_in_turn` for the first `n_rows` neighbours on the walk, if there are any; and the longest run."""
    C = usable.shape[0]
    index = jnp.arange(C, dtype=jnp.int32)
    run = index - jax.lax.cummax(jnp.where(usable, -1, index))  # usable neighbours up to and with this cell
    way = jnp.where(run >= n_rows, (index - n_rows + 1 - start) % C, C)  # from `start` to the first of them
    first = jnp.argmin(way).astype(jnp.int32) - n_rows + 1
    taken = (jnp.min(way) < C) & (index >= first) & (index < first + n_rows)
    return jnp.where(taken, index - first, C), jnp.max(run)


def _search(
    cells: Cells, start: jax.Array, rows: Rows, n_swa: Scalar, config: MemoryConfig, cont: bool
) -> Slot:
    """The general search: a walk over all cells of each stream that the ubatch touches."""
    M, C = rows.stream.shape[0], config.n_cells

    def walk(carry: tuple[jax.Array, Slot]) -> tuple[jax.Array, Slot]:
        j, slot = carry
        stream = rows.stream[j * rows.n_rows]
        usable = _usable(cells.pos[stream], cells.seq[stream], n_swa, config)
        if cont:
            turn, found = _in_a_row(usable, start[stream], rows.n_rows)
        else:
            turn, found = _in_turn(usable, start[stream])
        row = jnp.where(turn < rows.n_rows, j * rows.n_rows + turn, M)
        index = slot.index.at[row].set(jnp.arange(C, dtype=jnp.int32), mode="drop")
        return j + 1, Slot(index=index, ok=found >= rows.n_rows, found=found)

    def unfinished(carry: tuple[jax.Array, Slot]) -> jax.Array:
        j, slot = carry
        return slot.ok & (j < rows.n_sets)

    zero = jnp.asarray(0, jnp.int32)
    none_yet = Slot(index=jnp.full(M, C, jnp.int32), ok=jnp.asarray(True), found=zero)
    _, slot = jax.lax.while_loop(unfinished, walk, (zero, none_yet))
    return dataclasses.replace(slot, index=jnp.where(slot.ok, slot.index, C))


def find_with(
    cells: Cells, used: jax.Array, rows: Rows, n_swa: Scalar, config: MemoryConfig, *, cont: bool = False
) -> Slot:
    """`find_slot` with the used cells of each stream [NS] and the window's size given, both data."""
    C = config.n_cells
    pos, head = jnp.asarray(cells.pos), jnp.asarray(cells.head)
    start = jnp.where(head > used + 2 * rows.n_rows, 0, head)
    begin = start.at[rows.stream].get(mode="fill", fill_value=0)
    index = begin + rows.rank
    index = jnp.where(index >= C, index - C, index)
    empty = pos.at[rows.stream, index].get(mode="fill", fill_value=0) < 0
    straight = (begin + rows.n_rows <= C) if cont else (rows.n_rows <= C)
    # The usual case needs no walk: the cells from the head on are empty, as many as there are rows.
    return jax.lax.cond(
        jnp.all((empty & straight) | ~rows.valid),
        lambda: Slot(
            index=jnp.where(rows.valid, index, C), ok=jnp.asarray(True), found=jnp.asarray(0, jnp.int32)
        ),
        lambda: _search(cells, start, rows, n_swa, config, cont),
    )


@partial(jax.jit, static_argnames=("config", "cont"))
def find_slot(cells: Cells, rows: Rows, config: MemoryConfig, *, cont: bool = False) -> Slot:
    """Look for the cells of a ubatch: its `n_rows` in each stream it touches, unified all in one stream.

    The walk starts at the stream's head (at 0 when the head lies beyond used + 2 n_rows) and goes once
    round; a cell is usable when it is empty, or when it holds one sequence and is out of the window of the
    position after the sequence's last. `cont` (static) asks for neighbours, not wrapping. Semantics of
    llama.cpp's find_slot.
    """
    return find_with(cells, ops.used(cells), rows, config.n_swa, config, cont=cont)


@partial(jax.jit, static_argnames="config")
def apply(cells: Cells, rows: Rows, index: Int32[Array, " M"], config: MemoryConfig) -> Cells:
    """Write a ubatch into its slot: `index` [M] of a `Slot` (one that is not ok changes nothing).

    A sequence that loses a cell to a window's reuse loses all its cells up to the largest such position, so
    that no hole is left in it. The head of a touched stream moves behind the last cell written. As
    llama.cpp's apply_ubatch.
    """
    index = jnp.asarray(index)
    pos, k_pos, shift = map(jnp.asarray, (cells.pos, cells.k_pos, cells.shift))
    seq, ext, head = map(jnp.asarray, (cells.seq, cells.ext, cells.head))
    at = (rows.stream, index)
    is_last = (rows.rank == rows.n_rows - 1) & (index < config.n_cells)
    written = dataclasses.replace(
        cells,
        pos=pos.at[at].set(rows.pos[0], mode="drop"),
        k_pos=k_pos.at[at].set(rows.pos[0], mode="drop"),
        shift=shift.at[at].set(0, mode="drop"),
        seq=seq.at[at].set(rows.seq, mode="drop"),
        head=head.at[jnp.where(is_last, rows.stream, config.n_streams)].set(index + 1, mode="drop"),
    )
    if config.n_pos > 1:
        y_x = jnp.stack([rows.pos[1], rows.pos[2]], axis=-1)
        written = dataclasses.replace(written, ext=ext.at[at].set(y_x, mode="drop"))
    if config.swa_type is SwaType.NONE:
        return written
    owner = first_seq(seq.at[at].get(mode="fill", fill_value=0))
    lost = pos.at[at].get(mode="fill", fill_value=-1)
    upto = jnp.full(config.n_seq_max, -1, jnp.int32).at[owner].max(lost, mode="drop")
    return _purge(written, upto, config)


def _purge(cells: Cells, upto: jax.Array, config: MemoryConfig) -> Cells:
    """Remove each sequence's positions up to `upto` [S] (-1: none); heads stay."""
    if not config.unified:  # stream s holds sequence s alone
        return ops.empty_where(cells, jnp.asarray((cells.pos >= 0) & (cells.pos <= upto[:, None])))

    def purge_one(carry: tuple[Cells, jax.Array]) -> tuple[Cells, jax.Array]:
        cells, upto = carry
        seq = jnp.argmax(upto >= 0).astype(jnp.int32)
        cells, _ = ops.drop_seq(cells, seq, 0, upto[seq] + 1, config)
        return cells, upto.at[seq].set(-1)

    cells, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1] >= 0), purge_one, (cells, upto))
    return cells


@partial(jax.jit, static_argnames="config")
def apply_slot(
    cells: Cells,
    batch: Batch,
    plan: SplitPlan,
    slot: Int32[Array, " T"],
    k: Scalar,
    config: MemoryConfig,
) -> Cells:
    """The cells with ubatch k written, as it is about to run; after the last one, those of `prepare`."""
    rows = ubatch_rows(batch, plan, k, config, max_rows=batch.token.shape[0])
    index = jnp.asarray(slot).at[rows.place].get(mode="fill", fill_value=config.n_cells)
    return apply(cells, rows, index, config)
