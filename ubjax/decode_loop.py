"""Many decode steps as one program: every running sequence gets token after token without the host in between.

    rows       seqs [0 2 5 S]   token, pos: the next one of each, not yet cached   active [1 1 1 0]
    each step  cells of the active rows -> mask -> model -> draw -> stop?          lax.while_loop, n_steps at most
    result     tokens [R, N], count [R], reason [R], and the state to go on with

Room for all steps is looked for first, on integers alone: without it nothing has changed. A row that has ended stays
inert: it takes no cell, and its cells stay until the caller removes them. Everything that differs between calls is
data: tokens, limits, stop tokens, sampling parameters, seeds, n_steps up to N.

R rows, N steps a program holds, S sequences, V vocabulary, Q stop tokens of a row.
"""

import dataclasses
import enum
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ubjax.batch import ROW_ID
from ubjax.buckets import Bucket
from ubjax.control import Staged
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.kv import AllKV
from ubjax.memory.one_each import place_one_each, sections
from ubjax.memory.ops import used_max_p1
from ubjax.pytree import pytree
from ubjax.ragged import set_of
from ubjax.sampling import Constraints, LastTokens, SamplingParams, accept, sample
from ubjax.status import Status
from ubjax.typing import I32, Array, Bool, Flag, Float, Int32, Scalar
from ubjax.ubatch import Ubatch, seqs_present

ModelStep = Callable[[AllKV, Staged], tuple[jax.Array, AllKV]]


class Ended(enum.IntEnum):
    """Why a row of a loop has ended, or that it goes on."""

    NOT = 0
    STOP = 1
    LENGTH = 2
    NOTHING_ALLOWED = 3


@pytree
class LoopRows:
    """What the rows of a loop are about to decode; a padded row has sequence S and is not active.

    `left`: tokens that a row may still get. `stop`: tokens that end it, -1 in padding. With streams, the sequences of
    the rows are consecutive: row r is sequence seqs[0] + r. `dropped`: tokens that were taken out of the sequence
    before (a shift); keys of draws count them, so that a position that comes again draws anew.
    """

    seqs: Int32[Array, " R"]
    token: Int32[Array, " R"]
    pos: Int32[Array, " R"]
    active: Bool[Array, " R"]
    left: Int32[Array, " R"]
    dropped: Int32[Array, " R"]
    stop: Int32[Array, "R Q"]


@pytree
class LoopState:
    """What a loop carries from step to step: cells and K/V, the rows, and the last tokens for the penalties."""

    cells: AllCells
    kv: AllKV
    rows: LoopRows
    last: LastTokens


@pytree
class LoopResult:
    """What the rows got: the first count[r] tokens of row r with their log-probabilities, and why it ended.

    A stop token is not counted; it stands behind them (as V does where nothing was left to choose). n_steps: steps that
    ran.
    """

    tokens: Int32[Array, "R N"]
    logprobs: Float[Array, "R N"]
    count: Int32[Array, " R"]
    ended: Int32[Array, " R"]
    n_steps: I32
    status: Status


def reserve_steps(
    cells: AllCells, rows: LoopRows, n_steps: Scalar, caches: Caches
) -> tuple[tuple[Int32[jax.Array, ""], ...], Status]:
    """Whether n_steps more tokens of each active row (fewer where `left` says so) have cells: (n_kv_needed, status).

    n_kv_needed, for each cache: cells a stream that K/V has to hold. NO_SLOT names the step, the cells that are free in
    the stream that has too few, and those that are needed. Pure, integers only.
    """

    def place(carry: tuple[jax.Array, AllCells, Status]) -> tuple[jax.Array, AllCells, Status]:
        i, cells, _ = carry
        active = jnp.asarray(rows.active) & (i < rows.left)
        _, cells, status = place_one_each(cells, rows.seqs, jnp.asarray(rows.pos) + i, active, caches)
        return i + 1, cells, Status(code=status.code, where=i, found=status.found, needed=status.needed)

    def more(carry: tuple[jax.Array, AllCells, Status]) -> jax.Array:
        i, _, status = carry
        return (status.code == 0) & (i < n_steps) & jnp.any(jnp.asarray(rows.active) & (i < rows.left))

    start = (jnp.asarray(0, jnp.int32), jax.tree.map(jnp.asarray, cells), Status.ok())
    _, after, status = jax.lax.while_loop(more, place, start)
    return tuple(jnp.max(used_max_p1(own)) for own in after), status.when(status.code != 0)


def decode_loop(
    step: ModelStep,
    state: LoopState,
    params: SamplingParams,
    constraints: Constraints,
    n_steps: Scalar,
    caches: Caches,
    *,
    max_steps: int,
) -> tuple[LoopResult, LoopState]:
    """Decode the rows' tokens and draw their next ones, n_steps <= max_steps times or until every row has ended.

    step: K/V and a staged ubatch to logits [R, V] and K/V (`Step.pure` with its leaves), pure. K/V has to hold the
    cells that `reserve_steps` names. The tokens are those that decode and sample give step by step. The status is
    NO_SLOT when there is no room for all steps: then the state is the given one and every count is 0. max_steps
    (static): N.

    The new state's rows go on where these end: `token` is the one that is not cached yet, `left` what remains,
    `active` without the rows that ended.
    """
    n_steps = jnp.minimum(jnp.asarray(n_steps, jnp.int32), max_steps)
    _, status = reserve_steps(state.cells, state.rows, n_steps, caches)
    n_steps = jnp.where(status.code == 0, n_steps, 0)
    bucket = loop_bucket(state.rows, caches)
    result, state = run_steps(
        step, state, params, constraints, n_steps, caches, max_steps=max_steps, bucket=bucket
    )
    return dataclasses.replace(result, status=status), state


def loop_bucket(rows: LoopRows, caches: Caches) -> Bucket:
    """The smallest shape that these rows can have: one block, or with streams a block of one row for each."""
    n, unified = rows.seqs.shape[0], caches[0].unified
    return Bucket(n_blocks=1 if unified else n, n_block_rows=n if unified else 1, n_outputs=n)


def run_steps(
    step: ModelStep,
    state: LoopState,
    params: SamplingParams,
    constraints: Constraints,
    n_steps: Scalar,
    caches: Caches,
    *,
    max_steps: int,
    bucket: Bucket,
    until_end: Flag | bool = False,
) -> tuple[LoopResult, LoopState]:
    """`decode_loop` for rows that have room, as `reserve_steps` says: it isn't looked for again.

    bucket (static): the shape that every step has. Rows fill its one block, or with streams row r is the first of block
    r; it has outputs for all of them. until_end: the step in which a row ends is the last.
    """
    n_steps = jnp.minimum(jnp.asarray(n_steps, jnp.int32), max_steps)
    n_rows, state = state.rows.seqs.shape[0], jax.tree.map(jnp.asarray, state)
    zeros = jnp.zeros(n_rows, jnp.int32)
    result = LoopResult(
        tokens=jnp.zeros((n_rows, max_steps), jnp.int32),
        logprobs=jnp.zeros((n_rows, max_steps), jnp.float32),
        count=zeros,
        ended=zeros,
        n_steps=jnp.asarray(0, jnp.int32),
        status=Status.ok(),
    )

    def more(carry: tuple[LoopResult, LoopState]) -> jax.Array:
        result, state = carry
        enough = until_end & jnp.any(result.ended != int(Ended.NOT))
        return (result.n_steps < n_steps) & jnp.any(state.rows.active) & ~enough

    def one(carry: tuple[LoopResult, LoopState]) -> tuple[LoopResult, LoopState]:
        return _one_step(step, *carry, params, constraints, caches, bucket)

    return jax.lax.while_loop(more, one, (result, state))


def _one_step(
    step: ModelStep,
    result: LoopResult,
    state: LoopState,
    params: SamplingParams,
    constraints: Constraints,
    caches: Caches,
    bucket: Bucket,
) -> tuple[LoopResult, LoopState]:
    """One token more for every active row."""
    rows, i = state.rows, result.n_steps
    slot, cells, _ = place_one_each(state.cells, rows.seqs, rows.pos, rows.active, caches)
    logits, kv = step(state.kv, staged_rows(cells, slot, rows, caches, bucket))
    logits = logits[: rows.seqs.shape[0]]
    seq = jnp.where(rows.active, rows.seqs, caches[0].n_seq_max)
    drawn = sample(logits, seq, rows.pos + rows.dropped + 1, params, constraints, state.last)
    stuck = rows.active & (drawn.token >= logits.shape[1])
    stopped = rows.active & jnp.any(rows.stop == drawn.token[:, None], axis=1)
    taken = rows.active & ~stuck & ~stopped
    count = result.count + taken
    left = rows.left - taken
    done = taken & (left <= 0)
    ended = jnp.where(stuck, int(Ended.NOTHING_ALLOWED), jnp.where(stopped, int(Ended.STOP), result.ended))
    ended = jnp.where(done, int(Ended.LENGTH), ended)
    at = (jnp.arange(seq.shape[0]), jnp.where(rows.active, result.count, result.tokens.shape[1]))
    result = LoopResult(
        tokens=result.tokens.at[at].set(drawn.token, mode="drop"),
        logprobs=result.logprobs.at[at].set(drawn.logprob, mode="drop"),
        count=count,
        ended=ended,
        n_steps=i + 1,
        status=result.status,
    )
    after = LoopRows(
        seqs=rows.seqs,
        token=jnp.where(taken, drawn.token, rows.token),
        pos=rows.pos + rows.active,
        active=taken & ~done,
        left=left,
        dropped=rows.dropped,
        stop=rows.stop,
    )
    return result, LoopState(cells=cells, kv=kv, rows=after, last=accept(state.last, seq, drawn.token))


def staged_rows(
    cells: AllCells,
    slot: tuple[Int32[Array, " R"], ...],
    rows: LoopRows,
    caches: Caches,
    bucket: Bucket,
) -> Staged:
    """The ubatch of the active rows in a bucket (as `run_steps` says), beside the cells that have it in them."""
    memory, n_rows = caches[0], bucket.n_rows
    index = jnp.arange(rows.seqs.shape[0], dtype=jnp.int32)
    at = index if memory.unified else index * bucket.n_block_rows

    def spread(values: Array, padding: int) -> jax.Array:
        return jnp.full(n_rows, padding, values.dtype).at[at].set(values, unique_indices=True)

    active, place = spread(rows.active, 0), spread(index, n_rows)
    seq = set_of(
        spread(jnp.where(rows.active, rows.seqs, 32 * memory.n_words), 32 * memory.n_words), memory.n_words
    )
    seq_id_unq, seq_idx, n_seqs_unq = seqs_present(seq)
    n = jnp.sum(rows.active, dtype=jnp.int32)
    place = jnp.where(active, place, n_rows)
    ubatch = Ubatch(
        token=spread(jnp.where(rows.active, rows.token, 0), 0),
        embd=jnp.zeros((n_rows, 0), jnp.float32),
        state=jnp.zeros((n_rows, 0), jnp.float32),
        type=jnp.where(active, ROW_ID, 0).astype(jnp.int32),
        pos=sections(spread(jnp.where(rows.active, rows.pos, 0), 0), memory.n_pos),
        seq=seq,
        output=active,
        valid=active,
        batch_idx=place,
        place=place,
        out_rows=jnp.full(bucket.n_outputs, n_rows, jnp.int32).at[index].set(at),
        seq_id_unq=seq_id_unq,
        seq_idx=seq_idx,
        n_seqs_unq=n_seqs_unq,
        n_tokens=n,
        n_seqs=n,
        bucket=bucket,
    )
    slot = tuple(spread(own, config.n_cells) for own, config in zip(slot, caches, strict=True))
    first_stream = jnp.asarray(0, jnp.int32) if memory.unified else rows.seqs[0]
    return Staged(cells=cells, ubatch=ubatch, slot=slot, first_stream=first_stream, causal=jnp.asarray(True))
