"""validate against a plain-Python scan of the rules, and its sentences."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax import Batch, BatchConfig
from ubjax.batch import ROW_EMBD, ROW_ID, ROW_STATE
from ubjax.status import InvalidBatchError, Reason, sentence
from ubjax.validate import check, validate

CONFIG = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=3)
MROPE = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=3, n_pos=3, n_embd=2)
NOTHING = np.full(3, -1, np.int32)


def make(seqs, pos, config=CONFIG, **arrays):
    return Batch.from_arrays(np.arange(len(seqs)), seq_id=seqs, pos=pos, config=config, capacity=16, **arrays)


def status(batch, config=CONFIG, pos_min: Any = NOTHING, pos_max: Any = NOTHING):
    return validate(batch, np.asarray(pos_min, np.int32), np.asarray(pos_max, np.int32), config)


def accepted(seqs, pos, pos_min, pos_max) -> bool:
    """The rules for text rows in plain Python, as sets over the whole batch."""
    for s in range(3):
        mine = [p for ids, p in zip(seqs, pos, strict=True) if s in ids]
        if not mine:
            continue
        if pos_max[s] >= 0 and min(mine) != pos_max[s] + 1:
            return False
        if any(a > b for a, b in itertools.pairwise(mine)):
            return False
        if max(mine) - min(mine) + 1 > len(set(mine)):
            return False
    return all((pos_min[a], pos_max[a]) == (pos_min[b], pos_max[b]) for ids in seqs for a in ids for b in ids)


sets = st.sets(st.integers(0, 2), min_size=1, max_size=3)
cache = st.lists(st.sampled_from([(-1, -1), (0, 1), (1, 2)]), min_size=3, max_size=3)


@given(st.lists(st.tuples(sets, st.integers(0, 4)), min_size=1, max_size=8), cache)
def test_acceptance_equals_the_plain_scan(rows, ranges):
    seqs, pos = map(list, zip(*rows, strict=True))
    low, high = map(list, zip(*ranges, strict=True))
    found = int(status(make(seqs, pos), pos_min=low, pos_max=high).code) == 0
    assert found == accepted(seqs, pos, low, high)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8), cache)
def test_single_sequences_grow_mostly_right(steps, ranges):
    """Mostly valid batches: each row continues its sequence, sometimes with a repeat (0) or a jump (2)."""
    low, high = map(list, zip(*ranges, strict=True))
    at = {s: high[s] for s in range(3)}
    seqs, pos = [], []
    for s, step in steps:
        at[s] += step if s in {x for ids in seqs for x in ids} else max(step, 1)
        seqs.append({s})
        pos.append(max(at[s], 0))
    assert (int(status(make(seqs, pos), pos_min=low, pos_max=high).code) == 0) == accepted(
        seqs, pos, low, high
    )


def test_going_back_is_refused_although_the_set_has_no_hole():
    bad = status(make([0, 0, 1, 0], [2, 3, 0, 1]))
    assert (
        sentence(bad) == "token 3 has position 1, its sequence already reached 3: positions must not decrease"
    )


@pytest.mark.parametrize(
    ("batch", "ranges", "reason", "words"),
    [
        (make([0, 0], [0, 2]), {}, Reason.POS_HOLE, "token 1 jumps to position 2, position 1"),
        (make([{0, 1}, {1, 2}], [0, 2]), {}, Reason.POS_HOLE, "token 1 jumps to position 2, position 1"),
        (
            make([1], [3]),
            {"pos_max": [-1, 4, -1]},
            Reason.POS_NOT_NEXT,
            "sequence 1 starts at position 3, position 5",
        ),
        (
            make([{0, 2}], [5]),
            {"pos_min": [0, -1, 1], "pos_max": [4, -1, 4]},
            Reason.COUPLED_DIVERGED,
            "token 0 couples sequences",
        ),
        (make([0], [2**31 - 1]), {}, Reason.POS_RANGE, "token 0 has position 2147483647, a position in [0,"),
        (make([0], [-3]), {}, Reason.POS_RANGE, "token 0 has position -3, a position in [0, 1073741824)"),
        (
            make([{0}, {0, 1}], [1, 0]),
            {},
            Reason.POS_DECREASES,
            "token 1 has position 0, its sequence already reached 1",
        ),
    ],
)
def test_refusals_by_position(batch, ranges, reason, words):
    found = status(batch, **ranges)
    assert Reason(int(found.code)) is reason
    assert words in sentence(found)


def test_partial_subsets_share_a_sequence_and_are_taken():
    assert int(status(make([{0, 1}, {1, 2}], [0, 1])).code) == 0


def replace(batch, **leaves):
    return dataclasses.replace(
        batch, **{k: np.asarray(v, getattr(batch, k).dtype) for k, v in leaves.items()}
    )


def test_refusals_by_content():
    batch = make([0, 0, 0], [0, 1, 2], config=MROPE, embd=np.zeros((3, 2)))
    pad = [0] * 13
    cases = {
        Reason.NO_CONTENT: [ROW_ID, 0, ROW_ID],
        Reason.MIXED_BOTH: [ROW_ID | ROW_EMBD, ROW_ID | ROW_EMBD, ROW_ID],
        Reason.MIXED_NOT_ALLOWED: [ROW_ID, ROW_EMBD, ROW_ID],
        Reason.STATE_NOT_ALL: [ROW_ID, ROW_ID, ROW_ID | ROW_STATE],
    }
    for reason, types in cases.items():
        assert Reason(int(status(replace(batch, type=types + pad), MROPE).code)) is reason
    mixed = replace(batch, type=[ROW_ID, ROW_EMBD, ROW_ID, *pad])
    allowed = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=3, n_pos=3, n_embd=2, allow_mixed=True)
    assert int(status(mixed, allowed).code) == 0
    bad_id = status(replace(batch, token=[1, 100, 3, *pad]), MROPE)
    assert sentence(bad_id) == "token 1 has id 100, an id in [0, 100) is needed"
    outside = status(replace(batch, seq=[[1], [1], [8]] + [[0]] * 13), MROPE)
    assert (
        sentence(outside) == "token 2 belongs to sequence 3, a sequence in [0, 3) is needed: n_seq_max is 3"
    )
    nowhere = status(replace(batch, seq=[[1], [0], [1]] + [[0]] * 13), MROPE)
    assert Reason(int(nowhere.code)) is Reason.NO_SEQUENCE


def test_sizes():
    batch = make([0, 0], [0, 1])
    small = BatchConfig(n_vocab=100, n_batch=1, n_seq_max=3)
    assert sentence(status(batch, small)) == "the batch holds 2 tokens, n_batch allows 1"
    assert sentence(status(replace(batch, n_tokens=0))) == "the batch holds 0 tokens, at least 1 is needed"


def test_mrope_starts():
    text = make([0], [4], config=MROPE)
    image = Batch.from_arrays(embd=np.zeros((1, 2)), pos=[[4], [1], [1]], config=MROPE)
    held = {"pos_min": [0, -1, -1], "pos_max": [4, -1, -1]}
    assert (
        sentence(status(text, MROPE, **held))
        == "sequence 0 starts at position 4, position 5 or a later one is needed"
    )
    assert int(status(image, MROPE, **held).code) == 0
    assert int(status(make([0], [9], config=MROPE), MROPE, **held).code) == 0


def test_garbage_in_padding_changes_nothing():
    batch = make([0, 1, 0], [0, 0, 1])
    rows = np.arange(16) >= 3
    poisoned = replace(
        batch,
        token=np.where(rows, -77, batch.token),
        type=np.where(rows, 6, batch.type),
        pos=np.where(rows, -9, batch.pos),
        output=rows | batch.output,
    )
    assert int(status(poisoned).code) == 0


def test_same_under_jit_plain_and_vmap():
    good, bad = make([0, 0], [0, 1]), make([0, 0], [1, 0])
    both = jax.tree.map(lambda *x: jnp.stack(x), good, bad)
    ranges = jnp.stack([NOTHING, NOTHING])
    batched = jax.vmap(lambda b, low, high: validate(b, low, high, CONFIG))(both, ranges, ranges)
    assert batched.code.tolist() == [0, int(Reason.POS_DECREASES)]
    assert batched.where.tolist() == [-1, 1]
    with jax.disable_jit():
        assert (
            sentence(status(bad))
            == "token 1 has position 0, its sequence already reached 1: positions must not decrease"
        )


def test_no_callback_and_runs_on_a_batch_made_inside_jit():
    @jax.jit
    def inside(token):
        batch = Batch(
            token=token,
            embd=jnp.zeros((4, 0)),
            state=jnp.zeros((4, 0)),
            type=jnp.full(4, ROW_ID, jnp.int32),
            pos=jnp.arange(4, dtype=jnp.int32)[None],
            seq=jnp.ones((4, 1), jnp.uint32),
            output=jnp.ones(4, bool),
            order=jnp.arange(4, dtype=jnp.int32),
            n_tokens=jnp.int32(4),
        )
        return validate(batch, jnp.asarray(NOTHING), jnp.asarray(NOTHING), CONFIG).code

    assert int(inside(jnp.arange(4, dtype=jnp.int32))) == 0
    assert int(inside(jnp.arange(4, dtype=jnp.int32) + 97)) == Reason.TOKEN_ID
    jaxpr = str(jax.make_jaxpr(lambda b: validate(b, NOTHING, NOTHING, CONFIG))(make([0], [0])))
    assert "callback" not in jaxpr


def test_shapes_are_checked_before_tracing():
    with pytest.raises(ValueError, match="entries of pos_min: found 2, 3 is needed"):
        validate(make([0], [0]), NOTHING[:2], NOTHING[:2], CONFIG)
    with pytest.raises(ValueError, match="positions a token: found 1, 3 is needed"):
        validate(make([0], [0]), NOTHING, NOTHING, MROPE)
    with pytest.raises(InvalidBatchError, match="token 1 jumps"):
        check(make([0, 0], [0, 5]), NOTHING, NOTHING, CONFIG)


def test_error_carries_the_numbers():
    with pytest.raises(InvalidBatchError) as caught:
        check(make([0, 0], [0, 5]), NOTHING, NOTHING, CONFIG)
    assert caught.value.result == -1
    assert (int(caught.value.status.where), int(caught.value.status.found)) == (1, 5)
