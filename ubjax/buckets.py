"""Bucket ladders: the only place where a shape is chosen, for warm-up and run time alike."""

import bisect
import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class BucketLadder:
    """Ascending sizes; `pick` gives the smallest that holds n and raises above the top (never a silent new shape)."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in itertools.pairwise(self.sizes))
        if not self.sizes or self.sizes[0] < 1 or not ascending:
            raise ValueError(
                f"bucket sizes {self.sizes}: at least one, all positive and strictly ascending, is needed"
            )

    @classmethod
    def geometric(cls, top: int, bottom: int = 1, factor: int = 2) -> "BucketLadder":
        """bottom, factor * bottom, ... below `top`, and exactly `top` as the last size."""
        if top < 1 or bottom < 1:
            raise ValueError(f"a ladder from {bottom} to {top}: sizes of at least 1 are needed")
        sizes = []
        while bottom < top:
            sizes.append(bottom)
            bottom *= factor
        return cls((*sizes, top))

    @property
    def top(self) -> int:
        """The largest size."""
        return self.sizes[-1]

    def pick(self, n: int) -> int:
        """The smallest size >= n, for n in [0, top]."""
        if not 0 <= n <= self.top:
            raise ValueError(
                f"{n} does not fit any bucket of {self.sizes}: a size in [0, {self.top}] is needed"
            )
        return self.sizes[bisect.bisect_left(self.sizes, n)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """The shape of a padded ubatch: `n_blocks` x `n_block_rows` rows (Sb x Lb) and `n_outputs` output rows (O)."""

    n_blocks: int
    n_block_rows: int
    n_outputs: int

    @property
    def n_rows(self) -> int:
        """R."""
        return self.n_blocks * self.n_block_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buckets:
    """All ladders of an engine: batch capacity, rows of a block, blocks, attended cells, output rows.

    `n_outputs` also knows 0 (no logits wanted) and is cut at the rows of the ubatch.
    """

    capacity: BucketLadder
    n_rows: BucketLadder
    n_blocks: BucketLadder
    n_kv: BucketLadder
    n_outputs: BucketLadder

    @classmethod
    def default(cls, *, n_batch: int, n_ubatch: int, n_streams: int, n_cells: int, kv_pad: int) -> "Buckets":
        """Powers of two for rows, blocks and cells; capacities and outputs in coarser steps."""
        return cls(
            capacity=BucketLadder.geometric(n_batch, bottom=64, factor=max(2, n_batch)),
            n_rows=BucketLadder.geometric(n_ubatch),
            n_blocks=BucketLadder.geometric(n_streams),
            n_kv=BucketLadder.geometric(n_cells, bottom=min(kv_pad, n_cells)),
            n_outputs=BucketLadder.geometric(n_ubatch, factor=8),
        )

    def ubatch(self, *, n_tokens: int, n_seqs: int, n_outputs: int, equal_seqs: bool) -> Bucket:
        """The bucket of a ubatch: a rectangle of blocks when its split is equal, else one block of rows."""
        if equal_seqs:
            blocks, rows = self.n_blocks.pick(n_seqs), self.n_rows.pick(n_tokens // n_seqs)
        else:
            blocks, rows = 1, self.n_rows.pick(n_tokens)
        outputs = min(self.n_outputs.pick(n_outputs), blocks * rows) if n_outputs else 0
        return Bucket(n_blocks=blocks, n_block_rows=rows, n_outputs=outputs)
