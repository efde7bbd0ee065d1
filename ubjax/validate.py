"""Whether a batch may be decoded now: static checks before tracing, value checks as one jitted program.

The rules are those of llama.cpp's batch allocator. Every check names, per row, the two numbers of its
sentence; the reason that comes first in `Reason` wins, within a reason the first row.

One rule of the original has no check of its own: the intersection of the sequence sets of all tokens of a
sequence s can't become empty, since each of these sets holds s.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ubjax.batch import ROW_EMBD, ROW_ID, ROW_STATE, Batch
from ubjax.config import BatchConfig
from ubjax.ragged import count_seqs, first_seq, has_seq
from ubjax.status import Reason, Status, raise_if_error
from ubjax.typing import Array, Int32

MAX_POS = 2**30  # positions and their successors stay far from the end of int32


class _Check(NamedTuple):
    """Rows that break a rule, with the numbers of the sentence and the token or sequence it names."""

    reason: Reason
    bad: jax.Array
    where: jax.Array
    found: jax.Array | int
    needed: jax.Array | int


def _first(rows: jax.Array, checks: list[_Check]) -> Status:
    """The fault of the smallest reason, then of the smallest entry of `rows`, found as one packed key."""
    size = rows.shape[0]
    key = jnp.full_like(rows, (len(checks) + 1) * size)
    where, found, needed = key, key, key
    for rank, check in reversed(list(enumerate(checks))):
        key = jnp.where(check.bad, rank * size + rows, key)
        where = jnp.where(check.bad, check.where, where)
        found = jnp.where(check.bad, check.found, found)
        needed = jnp.where(check.bad, check.needed, needed)
    at = jnp.argmin(key)
    reasons = jnp.asarray([int(check.reason) for check in checks] + [0] * 2, jnp.int32)
    status = Status(code=reasons[key[at] // size], where=where[at], found=found[at], needed=needed[at])
    return status.when(status.code != 0)


def _count(flags: jax.Array) -> jax.Array:
    return jnp.sum(flags, dtype=jnp.int32)


def _content(batch: Batch, config: BatchConfig) -> Status:
    """Rules 1 to 3: sizes, what the rows hold, ids."""
    rows = jnp.arange(batch.token.shape[0], dtype=jnp.int32)
    n = jnp.asarray(batch.n_tokens)
    valid, kind = rows < n, jnp.asarray(batch.type)
    has_id, has_embd = valid & (kind & ROW_ID != 0), valid & (kind & ROW_EMBD != 0)
    both, state = has_id & has_embd, valid & (kind & ROW_STATE != 0)
    n_both, n_state, n_embd = _count(both), _count(state), _count(has_embd)
    split_both = (n_both > 0) & (n_both < n)
    mixed = (n_both == 0) & (n_embd > 0) & (n_embd < n) & (not config.allow_mixed)
    odd_state = (n_state > 0) & (n_state < n)
    pos = jnp.asarray(batch.pos)
    beyond = (pos < 0) | (pos >= MAX_POS)
    strayed = jnp.take_along_axis(pos, jnp.argmax(beyond, axis=0, keepdims=True), axis=0)[0]
    outside = jnp.asarray(batch.seq) & ~_known_sequences(config)
    checks = [
        _Check(Reason.NO_CONTENT, valid & ~has_id & ~has_embd, rows, 0, 1),
        _Check(Reason.MIXED_BOTH, valid & (both != both[0]) & split_both, rows, n_both, n),
        _Check(Reason.MIXED_NOT_ALLOWED, valid & (has_id != has_id[0]) & mixed, rows, n_embd, n),
        _Check(Reason.STATE_NOT_ALL, valid & (state != state[0]) & odd_state, rows, n_state, n),
        _Check(
            Reason.TOKEN_ID,
            has_id & ((batch.token < 0) | (batch.token >= config.n_vocab)),
            rows,
            batch.token,
            config.n_vocab,
        ),
        _Check(
            Reason.SEQ_ID, valid & jnp.any(outside != 0, axis=-1), rows, first_seq(outside), config.n_seq_max
        ),
        _Check(Reason.NO_SEQUENCE, valid & jnp.all(jnp.asarray(batch.seq) == 0, axis=-1), rows, 0, 1),
        _Check(Reason.POS_RANGE, valid & jnp.any(beyond, axis=0), rows, strayed, MAX_POS),
    ]
    size = Status.of(Reason.EMPTY_BATCH, found=n, needed=1).when(n < 1)
    size = size.merge(
        Status.of(Reason.BATCH_TOO_LARGE, found=n, needed=config.n_batch).when(n > config.n_batch)
    )
    return size.merge(_first(rows, checks))


def _known_sequences(config: BatchConfig) -> jax.Array:
    """The set of all sequences in [0, S)."""
    bits = [min(32, max(0, config.n_seq_max - 32 * w)) for w in range(config.n_words)]
    return jnp.asarray([[(1 << b) - 1 for b in bits]], jnp.uint32)


def _needed_start(
    has_ids: jax.Array, last: jax.Array, pos: jax.Array, config: BatchConfig
) -> tuple[jax.Array, jax.Array]:
    """Rule 5: whether a sequence whose cache ends at `last` may start at `pos`, and the position it needs."""
    if config.n_pos == 1:
        return (last < 0) | (pos == last + 1), last + 1
    needed = last + has_ids.astype(jnp.int32)
    return (last < 0) | (pos >= needed), needed


_START = {True: Reason.POS_NOT_NEXT, False: Reason.POS_NOT_AFTER}


def _single(batch: Batch, pos_max: jax.Array, config: BatchConfig) -> Status:
    """Rules 5 and 7 where each row has one sequence: rows by sequence, neighbours compared.

    Positions that never decrease have no hole exactly when no step is larger than one.
    """
    order = jnp.asarray(batch.order)
    rows = jnp.arange(order.shape[0], dtype=jnp.int32)
    valid = rows < batch.n_tokens
    seq, pos = first_seq(jnp.asarray(batch.seq)[order]), jnp.asarray(batch.pos)[0, order]
    before = jnp.concatenate([pos[:1], pos[:-1]])
    same = valid & (rows > 0) & (seq == jnp.concatenate([seq[:1], seq[:-1]]))
    last = pos_max.at[seq].get(mode="fill", fill_value=-1)
    fits, needed = _needed_start(jnp.any(valid & (batch.type & ROW_ID != 0)), last, pos, config)
    checks = [
        _Check(_START[config.n_pos == 1], valid & ~same & ~fits, seq, pos, needed),
        _Check(Reason.POS_DECREASES, same & (pos < before), order, pos, before),
    ]
    if config.n_pos == 1:
        checks.append(_Check(Reason.POS_HOLE, same & (pos > before + 1), order, pos, before + 1))
    return _first(order, checks)


def _coupled(batch: Batch, pos_min: jax.Array, pos_max: jax.Array, config: BatchConfig) -> Status:
    """Rules 5 to 7 where rows share sequences: one pass over the batch per sequence."""
    rows = jnp.arange(batch.token.shape[0], dtype=jnp.int32)
    valid = rows < batch.n_tokens
    pos, first = jnp.asarray(batch.pos)[0], first_seq(batch.seq)
    has_ids = jnp.any(valid & (batch.type & ROW_ID != 0))

    def visit(s: jax.Array, status: Status) -> Status:
        member = valid & has_seq(batch.seq, s)
        reached = jax.lax.cummax(jnp.where(member, pos, -1))
        before = jnp.concatenate([jnp.full_like(reached[:1], -1), reached[:-1]])
        start = member & (before < 0)
        fits, needed = _needed_start(has_ids, pos_max[s], pos, config)
        lead = jnp.minimum(first, config.n_seq_max - 1)
        diverged = (pos_min[lead] != pos_min[s]) | (pos_max[lead] != pos_max[s])
        checks = [
            _Check(Reason.COUPLED_DIVERGED, member & diverged, rows, s, first),
            _Check(_START[config.n_pos == 1], start & ~fits, jnp.full_like(rows, s), pos, needed),
            _Check(Reason.POS_DECREASES, member & (pos < before), rows, pos, before),
        ]
        if config.n_pos == 1:
            checks.append(
                _Check(Reason.POS_HOLE, member & ~start & (pos > before + 1), rows, pos, before + 1)
            )
        return status.merge(_first(rows, checks))

    return jax.lax.fori_loop(0, config.n_seq_max, visit, Status.ok())


@partial(jax.jit, static_argnames="config")
def validate(
    batch: Batch, pos_min: Int32[Array, " S"], pos_max: Int32[Array, " S"], config: BatchConfig
) -> Status:
    """Check a batch against its configuration and against the positions that the cache holds.

    pos_min, pos_max: [S] first and last cached position of each sequence, -1 when absent. Returns a Status:
    OK, or the reason with the token or sequence, what was found and what is needed. Raises ValueError (before
    tracing) when the arrays do not have the configuration's shapes.
    """
    check_shapes(batch, pos_min, pos_max, config)
    pos_min, pos_max = jnp.asarray(pos_min), jnp.asarray(pos_max)
    n_seqs = jnp.where(jnp.arange(batch.token.shape[0]) < batch.n_tokens, count_seqs(batch.seq), 0)
    positions = jax.lax.cond(
        jnp.any(n_seqs > 1),
        lambda: _coupled(batch, pos_min, pos_max, config),
        lambda: _single(batch, pos_max, config),
    )
    return _content(batch, config).merge(positions)


def check_shapes(batch: Batch, pos_min: Array, pos_max: Array, config: BatchConfig) -> None:
    """The static validator: ValueError when the shapes of a batch are not those of the configuration."""
    size = batch.token.shape[-1]
    if 32 * size >= 2**31:
        raise ValueError(f"the batch's capacity is {size}, at most {2**26 - 1} rows are possible")
    for name, found, needed in [
        ("sequence words", batch.seq.shape[-1], (config.n_words,)),
        ("positions a token", batch.pos.shape[-2], (config.n_pos,)),
        ("the width of embedding rows", batch.embd.shape[-1], (0, config.n_embd)),
        ("the width of hidden-state rows", batch.state.shape[-1], (0, config.n_embd_state)),
        ("entries of pos_min", pos_min.shape[-1], (config.n_seq_max,)),
        ("entries of pos_max", pos_max.shape[-1], (config.n_seq_max,)),
    ]:
        if found not in needed:
            raise ValueError(f"{name}: found {found}, {' or '.join(map(str, sorted(set(needed))))} is needed")


def check(batch: Batch, pos_min: Array, pos_max: Array, config: BatchConfig) -> None:
    """`validate` on the host: raises InvalidBatchError with the one sentence, or returns."""
    raise_if_error(validate(batch, pos_min, pos_max, config))
