"""The split strategies by name, and why no cache would take a plan."""

from collections.abc import Callable

import numpy as np

from ubjax.batch import Batch
from ubjax.pictures.wording import ranges
from ubjax.split.equal import split_equal
from ubjax.split.plan import SplitPlan
from ubjax.split.seq import split_seq
from ubjax.split.simple import split_simple
from ubjax.status import Reason, Status, sentence
from ubjax.viz.plan_view import PlanView

# By batch, n_ubatch and n_keep_tail.
STRATEGIES: dict[str, Callable[[Batch, int, int], SplitPlan]] = {
    "simple": lambda batch, n_ubatch, _: split_simple(batch, n_ubatch),
    "equal": lambda batch, n_ubatch, tail: split_equal(batch, n_ubatch, tail, sequential=True),
    "equal-any": lambda batch, n_ubatch, tail: split_equal(batch, n_ubatch, tail, sequential=False),
    "seq": lambda batch, n_ubatch, _: split_seq(batch, n_ubatch),
}


def why_refused(name: str, view: PlanView) -> str | None:
    """Why no cache would take the plan; None when it is fine."""
    batch = view.batch
    if view.n_used < batch.n_tokens:
        left = int(np.setdiff1d(np.arange(batch.n_tokens), view.order)[0])
        text = sentence(Status.of(Reason.SPLIT_FAILED, where=left, found=view.n_used, needed=batch.n_tokens))
        if name == "equal" and (batch.n_seqs > 1).any():
            shared = int(np.argmax(batch.n_seqs > 1))
            ids = ranges(batch.sequences(np.s_[shared : shared + 1]), 40)
            text += f"; with sequential ids no token may be in several sequences, token {shared} is in sequences {ids}"
        return text
    disorder = None if view.keeps_order else view.first_disorder()
    if disorder:
        seq, late, early = disorder
        return f"a cache would refuse it, token {late} of sequence {seq} comes before its token {early}"
    return None
