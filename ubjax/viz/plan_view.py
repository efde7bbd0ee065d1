"""PlanView: a split plan read back to the host, ubatch by ubatch, with the buckets it is padded to.

W   32-bit words of a sequence set
"""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from ubjax.batch import Batch
from ubjax.buckets import Bucket, Buckets
from ubjax.pictures.wording import ids_of
from ubjax.ragged import count_seqs, first_seq
from ubjax.split.plan import SplitPlan
from ubjax.typing import Array, Bool, Int32, UInt32


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BatchView:
    """The rows of a batch that count: each one's first sequence, number of sequences, output flag and set as words."""

    first_seq: Int32[np.ndarray, " n_tokens"]
    n_seqs: Int32[np.ndarray, " n_tokens"]
    output: Bool[np.ndarray, " n_tokens"]
    words: UInt32[np.ndarray, "n_tokens W"]

    @classmethod
    def of(cls, batch: Batch) -> "BatchView":
        """Read a batch back to the host."""
        n = int(batch.n_tokens)
        first, number = jax.device_get(_first_and_number(batch.seq))
        return cls(
            first_seq=first[:n],
            n_seqs=number[:n],
            output=np.asarray(batch.output)[:n],
            words=np.asarray(batch.seq)[:n],
        )

    @property
    def n_tokens(self) -> int:
        """Rows that count."""
        return len(self.first_seq)

    def sequences(self, rows: np.ndarray | slice = np.s_[:]) -> np.ndarray:
        """The sorted sequence ids of some rows (of all without argument)."""
        return ids_of(np.bitwise_or.reduce(self.words[rows], axis=0))


@jax.jit
def _first_and_number(seq: UInt32[Array, "T W"]) -> tuple[Int32[jax.Array, " T"], Int32[jax.Array, " T"]]:
    return first_seq(seq), count_seqs(seq)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UbatchView:
    """One ubatch: its batch rows set by set, sequences, outputs, and the bucket that holds it.

    An unequal (simple) ubatch has n_seq_tokens 1, and is one block of rows all the same.
    """

    batch_idxs: Int32[np.ndarray, " n_tokens"]
    n_seqs: int
    seq_id_unq: Int32[np.ndarray, " n_seqs_unq"]
    n_outputs: int
    bucket: Bucket
    equal_seqs: bool

    @property
    def n_tokens(self) -> int:
        """Rows that count."""
        return len(self.batch_idxs)

    @property
    def n_seq_tokens(self) -> int:
        """Tokens of each sequence set."""
        return self.n_tokens // self.n_seqs

    @property
    def block_tokens(self) -> int:
        """Tokens at the start of each block that is in use."""
        return self.n_seq_tokens if self.equal_seqs else self.n_tokens


class PlanView:
    """The ubatches of a plan, by index.

    `n_shapes` counts the different n_seqs x n_seq_tokens, `n_buckets` those left after rounding up; `n_rows` sums the
    rows of all buckets; `order` [n_used] is the plan's without padding.
    """

    def __init__(self, batch: BatchView, plan: SplitPlan, buckets: Buckets):
        self.batch = batch
        self.n_used = int(plan.n_used)
        self.equal_seqs = bool(plan.equal_seqs)
        self.keeps_order = bool(plan.keeps_order)
        n = int(plan.n_ubatches)
        self.order = np.asarray(plan.order)[: self.n_used]
        self._offset = np.asarray(plan.offset)[: n + 1]
        shapes = np.stack([np.asarray(plan.n_seqs)[:n], np.diff(self._offset)], axis=1)
        unique, self._shape = np.unique(shapes, axis=0, return_inverse=True)
        self._n_seqs = shapes[:, 0]
        # the rectangle alone: output rows are rounded up too, but they are no rows of the ubatch
        self._buckets = [
            buckets.ubatch(n_tokens=int(tokens), n_seqs=int(seqs), n_outputs=0, equal_seqs=self.equal_seqs)
            for seqs, tokens in unique
        ]
        self.n_shapes = len(unique)
        self.n_buckets = len(set(self._buckets))
        rows = np.asarray([bucket.n_rows for bucket in self._buckets], np.int64)
        self.n_rows = int(rows[self._shape].sum())

    def __len__(self) -> int:
        return len(self._offset) - 1

    def __getitem__(self, k: int) -> UbatchView:
        if not 0 <= k < len(self):
            raise IndexError(f"there is no ubatch {k}, the plan has {len(self)}")
        rows = self.order[self._offset[k] : self._offset[k + 1]]
        return UbatchView(
            batch_idxs=rows,
            n_seqs=int(self._n_seqs[k]),
            seq_id_unq=self.batch.sequences(rows),
            n_outputs=int(self.batch.output[rows].sum()),
            bucket=self._buckets[self._shape[k]],
            equal_seqs=self.equal_seqs,
        )

    def __iter__(self) -> Iterator[UbatchView]:
        return (self[k] for k in range(len(self)))

    @property
    def n_padded(self) -> int:
        """Padding in all buckets [rows]."""
        return self.n_rows - self.n_used

    @property
    def fill(self) -> float:
        """The share of bucket rows that hold a token, in [0, 1]; 0 without ubatches."""
        return self.n_used / self.n_rows if self.n_rows else 0.0

    def first_disorder(self) -> tuple[int, int, int] | None:
        """Where `keeps_order` fails: a sequence, a row of it that comes too early, the row that should be before it."""
        for seq in self.batch.sequences():
            member = (self.batch.words[:, seq // 32] >> np.uint32(seq % 32)) & 1 == 1
            rows = self.order[member[self.order]]
            early = np.flatnonzero(np.diff(rows) < 0)
            if early.size:
                return int(seq), int(rows[early[0]]), int(rows[early[0] + 1])
        return None

    def same_cut(self, other: "PlanView") -> bool:
        """Whether another plan cuts the batch into the same ubatches."""
        return np.array_equal(self.order, other.order) and np.array_equal(self._offset, other._offset)
