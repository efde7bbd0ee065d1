"""Batch invariance: what an engine refuses so that a sequence's logits are the same bits whatever runs beside it.

    one shape      every ubatch is n_seq_max blocks of T rows, all of them outputs, over all cells: one program
    own block      block s holds rows of sequence s, and attends the stream of sequence s
    own cell       the token at position p lies in cell p, so that sums over cells have one order

Which of its block's T rows a token gets still depends on how its sequence was cut, and which block on its number. That
the bits of a row do not is a property of the compiled program, and what the tests look at.

NS streams, C cells a stream, S sequences.
"""

import numpy as np

from ubjax.batch import Batch
from ubjax.config import SwaType
from ubjax.host_batch import first_seq
from ubjax.memory.init_batch import Mode
from ubjax.status import InvalidBatchError, Reason, refusal
from ubjax.typing import Int32


def check_model(n_pos: int, swa_type: SwaType) -> None:
    """Refuse a model whose tokens can't lie in the cells of their positions."""
    if swa_type is not SwaType.NONE:
        raise ValueError(
            "the model has sliding windows, whose cells are used again: batch_invariant needs a model without them"
        )
    if n_pos != 1:
        raise ValueError(
            f"a token has {n_pos} positions here (M-RoPE): batch_invariant needs a model with one"
        )


def check_batch(batch: Batch, mode: Mode, *, hidden: bool, last: Int32[np.ndarray, " S"]) -> None:
    """Refuse a batch on the host that takes another program or shape, or whose tokens are not the next ones.

    `last`: the last cached position of every sequence, -1 when absent. Rows of unknown sequences are left to whoever
    checks the batch.
    """
    width = batch.embd.shape[1] + batch.state.shape[1]
    faults = {
        "causal is False, which takes ubatches of any size": not mode.causal,
        "embd_all is True, which takes ubatches of one sequence": mode.embd_all,
        "hidden is True, which takes another program": hidden,
        f"the batch has embedding or state rows of {width} values, which take another program": width,
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(f"{fault}: batch_invariant needs causal decodes of token ids to logits")
    rows = batch.order[: int(batch.n_tokens)]
    seq, pos = first_seq(batch.seq[rows]), batch.pos[0, rows]
    rows, seq, pos = (x[seq < len(last)] for x in (rows, seq, pos))
    if not len(rows):
        return
    begins = np.flatnonzero(np.diff(seq, prepend=-1))
    rank = np.arange(len(seq)) - np.repeat(begins, np.diff(begins, append=len(seq)))
    needed = last[seq] + 1 + rank
    wrong = np.flatnonzero(pos != needed)
    if len(wrong):
        at = wrong[0]
        status = refusal(
            Reason.POS_NOT_NEXT, where=int(rows[at]), found=int(pos[at]), needed=int(needed[at])
        ).status
        raise InvalidBatchError(
            f"token {rows[at]} has position {pos[at]}, position {needed[at]} of sequence {seq[at]} is needed: with "
            "batch_invariant the token at position p lies in cell p",
            status,
        )


def misplaced(pos: Int32[np.ndarray, "NS C"]) -> str | None:
    """Why an engine of this kind can't go on from cells with these positions (-1: empty), None when it can."""
    index = np.arange(pos.shape[1])
    wrong = (pos >= 0) & ((pos != index) | (index >= (pos >= 0).sum(axis=1, keepdims=True)))
    if not wrong.any():
        return None
    stream, cell = np.argwhere(wrong)[0].tolist()
    below = (pos[stream, :cell] >= 0).sum()
    return (
        f"position {pos[stream, cell]} of sequence {stream} would lie in cell {cell}, above {below} others: with "
        "batch_invariant the token at position p lies in cell p, and none is missing below it"
    )
