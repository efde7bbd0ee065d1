"""Reasons have sentences, results and exceptions; the first error wins."""

import jax
import jax.numpy as jnp
import pytest

from ubjax.status import (
    SENTENCE,
    DecodeError,
    InvalidBatchError,
    NoSlotError,
    Reason,
    Status,
    raise_if_error,
    refusal,
    result_of,
    sentence,
)


def test_every_reason_has_a_sentence_with_its_numbers():
    assert set(SENTENCE) == set(Reason)
    for reason in Reason:
        assert "{" not in sentence(Status.of(reason, where=3, found=4, needed=5))


@pytest.mark.parametrize(
    ("reason", "result", "kind"),
    [
        (Reason.POS_HOLE, -1, InvalidBatchError),
        (Reason.SPLIT_FAILED, -2, InvalidBatchError),
        (Reason.NO_SLOT, 1, NoSlotError),
        (Reason.LOST, -3, DecodeError),
        (Reason.STEP_FAILED, 2, DecodeError),
        (Reason.NOTHING_ALLOWED, 2, DecodeError),
    ],
)
def test_results_and_exceptions(reason, result, kind):
    status = Status.of(reason, 1, 2, 3)
    assert result_of(status) == result
    with pytest.raises(kind) as caught:
        raise_if_error(status, "and more")
    assert caught.value.result == result and str(caught.value) == sentence(status) + "; and more"
    assert issubclass(kind, ValueError)


def test_ok_passes():
    raise_if_error(Status.ok())
    assert result_of(Status.ok()) == 0


def test_merge_and_when_under_jit():
    @jax.jit
    def both(a, b):
        first = Status.of(Reason.POS_HOLE, 1).when(a)
        return first.merge(Status.of(Reason.NO_SLOT, 2).when(b))

    yes, no = jnp.asarray(True), jnp.asarray(False)
    assert int(both(yes, yes).code) == Reason.POS_HOLE
    assert (int(both(no, yes).code), int(both(no, yes).where)) == (Reason.NO_SLOT, 2)
    assert int(both(no, no).code) == Reason.OK


def test_one_is_no_many():
    assert sentence(Status.of(Reason.NO_SLOT, 0, found=0, needed=1)) == (
        "ubatch 0 needs 1 cell of one stream, 0 are free: no slot"
    )
    assert sentence(Status.of(Reason.NO_SLOT, 2, found=1, needed=4)) == (
        "ubatch 2 needs 4 cells of one stream, 1 is free: no slot"
    )
    mixed = sentence(Status.of(Reason.MIXED_NOT_ALLOWED, 3, found=1, needed=2))
    assert mixed.endswith("found 1 row with an embedding, 0 or 2 are needed")


def test_refusal_on_the_host():
    error = refusal(Reason.BATCH_TOO_LARGE, where=-1, found=9, needed=8)
    assert isinstance(error, InvalidBatchError) and str(error) == "the batch holds 9 tokens, n_batch allows 8"
