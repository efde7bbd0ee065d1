"""Outputs: the logits of one decode, read by batch index, in the caller's order whatever the split did.

    batch          0 1 2 3      outputs 1 and 3; split into ubatches [0, 3] and [1, 2]
    buffers        [row of 3], [row of 1]          out_ids [3, 1]
    logits(1) is buffers[1][0], logits(3) and logits(-1) are buffers[0][0]

Reading a row is an index into the buffer that the step left on the device: nothing is permuted or copied as a
whole.
"""

import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from ubjax.config import as_integer
from ubjax.host_arrays import from_host
from ubjax.pictures.wording import amount
from ubjax.pooling import HiddenRows, Pooling, normalized
from ubjax.typing import Array, Choice, Float, Int32, Text, Whole


class Outputs:
    """Output rows of a decode.

    `out_ids` [n_outputs] is the batch index of each row, ubatch after ubatch (llama.cpp's out_ids). `hidden`: the
    rows of every token, where they were asked for.
    """

    def __init__(
        self,
        buffers: Sequence[jax.Array],
        out_ids: Sequence[np.ndarray],
        n_tokens: int,
        hidden: HiddenRows | None = None,
    ):
        self._buffers = tuple(buffers)
        self._row_ids = tuple(np.asarray(ids, np.int32) for ids in out_ids)
        self._n_tokens, self._hidden = n_tokens, hidden
        self.out_ids = np.concatenate((*self._row_ids, np.zeros(0, np.int32)))

    def __len__(self) -> int:
        return len(self.out_ids)

    @functools.cached_property
    def _place(self) -> dict[int, tuple[int, int]]:
        """Buffer and row of each output; made when the first row is asked for, which a sampler never does."""
        return {i: (k, r) for k, ids in enumerate(self._row_ids) for r, i in enumerate(ids.tolist())}

    @functools.cached_property
    def _ids(self) -> list[int]:
        return sorted(self._place)

    def row(self, i: Whole) -> Float[jax.Array, " V"]:
        """The logits of batch token `i` as a device array; -k is the k-th output from the end.

        Raises ValueError for a token that is no output or not in the batch; the message says which are.
        """
        k, r = self._place[self._batch_index(i)]
        with from_host():
            return take_row(self._buffers[k], np.int32(r))

    def logits(self, i: Whole) -> np.ndarray:
        """The logits of batch token `i` on the host, [V]; indices as for `row`."""
        return jax.device_get(self.row(i))

    @property
    def seq_ids(self) -> Int32[np.ndarray, " n"]:
        """The sequences that `pooled` has a row of, ascending."""
        return self._rows().seq_ids

    def embeddings(self) -> Float[np.ndarray, "n E"]:
        """The hidden row of every token, outputs or not, in the order of the batch.

        Raises ValueError where hidden rows were not asked for (`decode(batch, hidden=True)`).
        """
        return self._rows().rows()

    def pooled(self, kind: Text = "mean", *, normalize: Choice = False) -> Float[np.ndarray, "n _"]:
        """One row for each sequence of `seq_ids`: "mean", "cls", "last", or "rank" by the model's head.

        Over the tokens of this batch; errors as `embeddings`, and for a kind that is not known or not to be had.
        """
        pooling = Pooling(kind=kind, normalize=normalize)
        rows = self._rows().pooled(pooling.kind)
        return normalized(rows) if pooling.normalize else rows

    def _rows(self) -> HiddenRows:
        if self._hidden is None:
            raise ValueError("there are no hidden rows: decode(batch, hidden=True) is needed")
        return self._hidden

    def buffers(self) -> Iterator[tuple[jax.Array, np.ndarray]]:
        """(logits [O, V] on the device, batch index of its first rows [n <= O]) of each ubatch with outputs."""
        for buffer, ids in zip(self._buffers, self._row_ids, strict=True):
            if len(ids):
                yield buffer, ids

    def _batch_index(self, i: Whole) -> int:
        i = as_integer(i, "the index")
        if -len(self._ids) <= i < 0:
            return self._ids[i]
        if i in self._place:
            return i
        if i < 0:
            n = len(self._ids)
            raise ValueError(f"output {i} does not exist: the batch has {amount(n, 'output')}")
        size = amount(self._n_tokens, "token")
        fault = "is no output" if i < self._n_tokens else f"is not in the batch of {size}"
        raise ValueError(f"token {i} {fault}; outputs are {_listed(self._ids)}")

    def __repr__(self) -> str:
        of = amount(self._n_tokens, "token")
        return f"Outputs({len(self._ids)} of {of}: {_listed(self._ids)})"


def _listed(ids: Sequence[int]) -> str:
    if not ids:
        return "none"
    if len(ids) == 1:
        return f"token {ids[0]}"
    shown = ", ".join(map(str, ids[:8]))
    return f"tokens {shown}" + (f", ... {ids[-1]} ({len(ids)} in all)" if len(ids) > 8 else "")


@jax.jit
def take_row(buffer: Float[Array, "O V"], r: Int32[Array, ""]) -> Float[jax.Array, " V"]:
    """One row of logits."""
    return jax.lax.dynamic_index_in_dim(buffer, r, keepdims=False)
