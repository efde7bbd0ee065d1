"""What went wrong, as data: a reason, where it struck, what was found and what is needed.

Jitted functions return a `Status`; they never raise. The edge (Engine, or a caller outside jit) calls
`raise_if_error`, which makes the one sentence. llama.cpp's result of a reason: 0 ok, 1 no slot, 2 aborted,
-1 invalid batch, -2 the split left tokens over, -3 the cache was lost.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from ubjax.pictures.wording import amount, noun
from ubjax.pytree import pytree
from ubjax.typing import I32, Scalar


class Reason(enum.IntEnum):
    """Why a batch was refused; the order is the order in which reasons are looked for."""

    OK = 0
    EMPTY_BATCH = 1
    BATCH_TOO_LARGE = 2
    NO_CONTENT = 3
    MIXED_BOTH = 4
    MIXED_NOT_ALLOWED = 5
    STATE_NOT_ALL = 6
    TOKEN_ID = 7
    SEQ_ID = 8
    NO_SEQUENCE = 9
    COUPLED_DIVERGED = 10
    POS_RANGE = 11
    POS_NOT_NEXT = 12
    POS_NOT_AFTER = 13
    POS_DECREASES = 14
    POS_HOLE = 15
    SPLIT_FAILED = 16
    NO_SLOT = 17
    LOST = 18
    STEP_FAILED = 19
    NOTHING_ALLOWED = 20
    UBATCH_TOO_SMALL = 21
    SEQ_TOO_LONG = 22


SENTENCE = {
    Reason.OK: "ok",
    Reason.EMPTY_BATCH: "the batch holds {found} tokens, at least {needed} is needed",
    Reason.BATCH_TOO_LARGE: "the batch holds {found} tokens, n_batch allows {needed}",
    Reason.NO_CONTENT: "token {where} has neither an id nor an embedding, one of them is needed",
    Reason.MIXED_BOTH: "token {where} differs from the others in kind: rows with both an id and an embedding "
    "({found} of them) must be all rows ({needed}) or none",
    Reason.MIXED_NOT_ALLOWED: "token {where}: this model takes id rows or embedding rows in one batch, not both; "
    "found {rows} with an embedding, 0 or {needed} are needed",
    Reason.STATE_NOT_ALL: "token {where} differs from the others: {rows} with a hidden state, "
    "0 or {needed} are needed",
    Reason.TOKEN_ID: "token {where} has id {found}, an id in [0, {needed}) is needed",
    Reason.SEQ_ID: "token {where} belongs to sequence {found}, a sequence in [0, {needed}) is needed: "
    "n_seq_max is {needed}",
    Reason.NO_SEQUENCE: "token {where} belongs to {found} sequences, at least {needed} is needed",
    Reason.COUPLED_DIVERGED: "token {where} couples sequences whose cached ranges differ: sequence {found} does not "
    "hold the same positions as sequence {needed}",
    Reason.POS_RANGE: "token {where} has position {found}, a position in [0, {needed}) is needed",
    Reason.POS_NOT_NEXT: "sequence {where} starts at position {found}, position {needed} is needed "
    "(the one after the last in the cache)",
    Reason.POS_NOT_AFTER: "sequence {where} starts at position {found}, position {needed} or a later one is needed",
    Reason.POS_DECREASES: "token {where} has position {found}, its sequence already reached {needed}: "
    "positions must not decrease",
    Reason.POS_HOLE: "token {where} jumps to position {found}, position {needed} of its sequence is needed first",
    Reason.SPLIT_FAILED: "the split took {found} of {needed} tokens: the sequence sets of this batch can't be cut "
    "this way (token {where} was left over)",
    Reason.NO_SLOT: "ubatch {where} needs {cells} of one stream, {found} {are} free: no slot",
    Reason.LOST: "the step failed after it had taken over the K/V buffers: the cache was cleared",
    Reason.STEP_FAILED: "the step of a ubatch failed: its sequences were cut back to where they were before it",
    Reason.NOTHING_ALLOWED: "sequence {where} has {found} tokens to choose from (masked, biased to -inf, or NaN), "
    "at least {needed} is needed",
    Reason.UBATCH_TOO_SMALL: "the batch holds {found} tokens that are to see one another (not causal), which takes one "
    "ubatch: n_ubatch allows {needed}",
    Reason.SEQ_TOO_LONG: "sequence {where} has {found} tokens, n_ubatch allows {needed}: "
    "this model takes a sequence whole",
}

RESULT = {
    Reason.OK: 0,
    Reason.SPLIT_FAILED: -2,
    Reason.NO_SLOT: 1,
    Reason.LOST: -3,
    Reason.STEP_FAILED: 2,
    Reason.NOTHING_ALLOWED: 2,
}
INVALID_BATCH = -1


class DecodeError(ValueError):
    """A batch that was refused or failed. `status` holds the numbers, `result` llama.cpp's code."""

    def __init__(self, message: str, status: "Status"):
        super().__init__(message)
        self.status = status
        self.result = result_of(status)


class InvalidBatchError(DecodeError):
    """The batch itself is wrong; nothing was changed (result -1, or -2 when no split could take it)."""


class NoSlotError(DecodeError):
    """The cache can't hold the batch now; nothing was changed (result 1).

    `fits`: how many tokens, from the batch's first on, would have fitted: above 0 a smaller batch is worth trying, at 0
    the cache is full. `never`: whether the batch is larger than the cache could ever hold. `report`: the engine's
    memory report as of then, where an engine raised this.
    """

    def __init__(
        self,
        message: str,
        status: "Status",
        *,
        fits: int = 0,
        never: bool = False,
        report: Callable[[], Any] | None = None,
    ):
        super().__init__(message, status)
        self.fits, self.never = fits, never
        self._report = report

    @functools.cached_property
    def report(self) -> Any:
        """The memory report, made when it is first asked for; None where there is none."""
        return self._report() if self._report else None


@pytree
class Status:
    """A reason code and its three numbers; all int32 scalars, OK everywhere when the code is 0."""

    code: I32
    where: I32
    found: I32
    needed: I32

    def __repr__(self) -> str:
        """The sentence, where the numbers are at hand."""
        if any(isinstance(x, jax.core.Tracer) or np.ndim(x) for x in jax.tree.leaves(self)):
            return "Status(traced or batched)"
        return f"Status({Reason(int(np.asarray(self.code))).name}: {sentence(self)})"

    @classmethod
    def ok(cls) -> "Status":
        """The status of success."""
        return cls.of(Reason.OK)

    @classmethod
    def of(cls, reason: Reason, where: Scalar = -1, found: Scalar = -1, needed: Scalar = -1) -> "Status":
        """A status with its numbers (traced values welcome)."""
        code, where, found, needed = (jnp.asarray(x, jnp.int32) for x in (int(reason), where, found, needed))
        return cls(code=code, where=where, found=found, needed=needed)

    def when(self, condition: jax.Array) -> "Status":
        """This status where `condition` (a scalar bool) holds, OK elsewhere."""
        ok = Status.ok()
        return jax.tree.map(lambda bad, good: jnp.where(condition, bad, good), self, ok)

    def merge(self, later: "Status") -> "Status":
        """The first error wins: `self` unless it is OK, then `later`."""
        return jax.tree.map(lambda a, b: jnp.where(self.code != 0, a, b), self, later)


def result_of(status: Status) -> int:
    """llama.cpp's result code of a status on the host."""
    return RESULT.get(Reason(int(np.asarray(status.code))), INVALID_BATCH)


def sentence(status: Status) -> str:
    """The one sentence of a status on the host."""
    numbers = {name: int(np.asarray(getattr(status, name))) for name in ("where", "found", "needed")}
    return _words(Reason(int(np.asarray(status.code))), **numbers)


def _words(reason: Reason, where: int, found: int, needed: int) -> str:
    return SENTENCE[reason].format(
        where=where,
        found=found,
        needed=needed,
        are=noun(found, "is", "are"),
        rows=amount(found, "row"),
        cells=amount(needed, "cell"),
    )


def refusal(reason: Reason, where: int, found: int, needed: int) -> DecodeError:
    """The exception of a reason found on the host; the status holds its numbers as far as 32 bits go."""
    numbers = {"where": where, "found": found, "needed": needed}
    small = {name: np.asarray(np.clip(n, -(2**31), 2**31 - 1), np.int32) for name, n in numbers.items()}
    status = Status(code=np.asarray(reason, np.int32), **small)
    return _kind(status)(_words(reason, **numbers), status)


def raise_if_error(status: Status, detail: str = "") -> None:
    """Raise the exception of a status, or return when it is OK; `detail` is added to the sentence."""
    if result_of(status) != 0:
        raise _kind(status)(sentence(status) + (f"; {detail}" if detail else ""), status)


def _kind(status: Status) -> type[DecodeError]:
    result = result_of(status)
    return NoSlotError if result == 1 else InvalidBatchError if result in (INVALID_BATCH, -2) else DecodeError
