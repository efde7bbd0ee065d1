"""A batch from any hand brought onto the host and into order: what a program would trust is checked or made again."""

from typing import Any

import numpy as np

from ubjax.batch import Batch
from ubjax.ladders import BucketLadder
from ubjax.status import Reason, refusal

DTYPES = {
    "token": np.int32,
    "embd": np.float32,
    "state": np.float32,
    "type": np.int32,
    "pos": np.int32,
    "seq": np.uint32,
    "output": np.bool_,
    "n_tokens": np.int32,
}


def on_host(batch: Any) -> Batch:
    """The batch as host arrays, its `order` made from its sequence sets.

    Raises ValueError for what is no Batch, leaves of another dtype or rank, rows that are not equally many, an
    n_tokens beyond them, and embeddings that are not finite.
    """
    if not isinstance(batch, Batch):
        raise ValueError(f"a Batch is needed to decode, found {type(batch).__name__}")
    leaves = {name: _leaf(name, getattr(batch, name), dtype) for name, dtype in DTYPES.items()}
    capacity, n = leaves["token"].shape[0], int(leaves["n_tokens"])
    rows = {name: x.shape[1 if name == "pos" else 0] for name, x in leaves.items() if x.ndim}
    for name, found in rows.items():
        if found != capacity:
            raise ValueError(
                f"the batch's {name} has {found} rows, its token has {capacity}: as many are needed"
            )
    if not 0 <= n <= capacity:
        raise ValueError(f"the batch's n_tokens is {n}, a number in [0, {capacity}] (its capacity) is needed")
    for name in ("embd", "state"):
        if leaves[name].size and not np.isfinite(leaves[name][:n]).all():
            raise ValueError(f"the batch's {name} holds numbers that are not finite, finite ones are needed")
    first = first_seq(leaves["seq"][:n])
    order = np.arange(capacity, dtype=np.int32)
    # bytes make numpy's stable sort a radix sort; sets without a sequence are refused later, wherever they stand
    order[:n] = np.argsort(first.astype(np.uint8), kind="stable")
    return Batch(**leaves, order=order)


def fitted(batch: Any, n_batch: int, capacity: BucketLadder) -> Batch:
    """The batch on the host at a capacity of the ladder; an empty one and one above n_batch are refused."""
    batch = on_host(batch)
    n = int(batch.n_tokens)
    if n < 1:
        raise refusal(Reason.EMPTY_BATCH, where=-1, found=n, needed=1)
    if n > n_batch:
        raise refusal(Reason.BATCH_TOO_LARGE, where=-1, found=n, needed=n_batch)
    return batch.with_capacity(capacity.pick(n))


RANKS = {"embd": 2, "state": 2, "pos": 2, "seq": 2, "n_tokens": 0}


def _leaf(name: str, value: Any, dtype: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype != dtype or array.ndim != RANKS.get(name, 1):
        raise ValueError(
            f"the batch's {name} has dtype {array.dtype} and {array.ndim} axes, "
            f"{np.dtype(dtype)} and {RANKS.get(name, 1)} are needed"
        )
    return array


def first_seq(seq: np.ndarray) -> np.ndarray:
    """The smallest sequence id of each set."""
    # Up to 32 sequences are one word: a decode of them is short, and what it touches first costs most of its time.
    one = seq.shape[1] == 1
    word = np.int32(0) if one else np.argmax(seq != 0, axis=1).astype(np.int32)
    bits = seq[:, 0] if one else seq[np.arange(len(seq)), word]
    below = (bits & (~bits + np.uint32(1))) - np.uint32(1)  # ones below the lowest bit
    return word * 32 + np.bitwise_count(below)
