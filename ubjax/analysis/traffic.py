"""Traffic: the decodes of a server, as lengths; what stands in a row and repeats is written once.

D  different decodes in a row      S  slots, one sequence each      E  decodes, repetitions counted      K  kinds

    seq_id 0 1, n_tokens 3 1        repeats 1       decode 0: three rows of sequence 0, then one of sequence 1
    seq_id 0 1, n_tokens 1 1        repeats 4       decodes 1 to 4: one row of each
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from ubjax.typing import Bool, Int32


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Traffic:
    """Decodes of pieces, n_tokens > 0 rows of sequence seq_id each, in batch order.

    `repeats`: how many decodes in a row have these pieces. `pos`: the position of a piece's first row in the first of
    them, one further in each repetition. `output`: whether its last row asks for logits. `n_cells`: cells in use after
    the first of them, of all sequences; those of a request are free once it has finished. Padding, behind the
    pieces: n_tokens 0, seq_id 0, pos 0, output False.
    """

    seq_id: Int32[np.ndarray, "D S"]
    n_tokens: Int32[np.ndarray, "D S"]
    pos: Int32[np.ndarray, "D S"]
    output: Bool[np.ndarray, "D S"]
    n_cells: Int32[np.ndarray, " D"]
    repeats: Int32[np.ndarray, " D"]

    def __len__(self) -> int:
        """E."""
        return int(self.repeats.sum())

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """For every decode its pieces as (seq_id, n_tokens)."""
        for seq_id, n_tokens, repeats in zip(self.seq_id, self.n_tokens, self.repeats, strict=True):
            n_pieces = np.count_nonzero(n_tokens)
            pieces = list(zip(seq_id[:n_pieces].tolist(), n_tokens[:n_pieces].tolist(), strict=True))
            for _ in range(repeats):
                yield list(pieces)

    @property
    def tokens(self) -> int:
        """Rows of all decodes."""
        return int((self.n_tokens.sum(axis=1, dtype=np.int64) * self.repeats).sum())

    @property
    def cells_seen(self) -> int:
        """Cells that the rows of all decodes see, each row those of its own sequence up to its position."""
        n, pos, repeats = (x.astype(np.int64) for x in (self.n_tokens, self.pos, self.repeats[:, None]))
        first = n * pos + n * (n + 1) // 2
        return int((repeats * first + n * (repeats * (repeats - 1) // 2)).sum())

    def kinds(self) -> tuple[Int32[np.ndarray, " K"], Int32[np.ndarray, " D"]]:
        """Decodes that differ in seq_id, n_tokens or output: a place of each kind [K], the kind of each [D]."""
        table = np.concatenate([self.seq_id, self.n_tokens, self.output], axis=1, dtype=np.int32)
        rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.itemsize * table.shape[1])))
        _, place, kind = np.unique(rows.reshape(-1), return_index=True, return_inverse=True)
        return place.astype(np.int32), kind.reshape(-1).astype(np.int32)

    def needed_cells(self, unified: bool) -> tuple[Int32[np.ndarray, " E"], Int32[np.ndarray, " E"]]:
        """For every decode its place in D, and the cells of a stream that it has to attend.

        Streams: those of the longest sequence in it. Unified: all that are in use, as if the free ones with the lowest
        index were always taken first.
        """
        place = np.repeat(np.arange(len(self.repeats), dtype=np.int32), self.repeats)
        begin = np.cumsum(self.repeats, dtype=np.int32) - self.repeats
        further = np.arange(len(place), dtype=np.int32) - begin[place]
        if unified:
            grows = np.count_nonzero(self.n_tokens, axis=1).astype(np.int32)
            return place, self.n_cells[place] + further * grows[place]
        return place, (self.pos + self.n_tokens).max(axis=1)[place] + further
