"""Bucket ladders: the only place where a shape is chosen, for warm-up and run time alike."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ubjax.ladders import BucketLadder, RectangleLadder, Rows, Sizes


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
    """All ladders of an engine: batch capacity, rows of a ubatch in their blocks, attended cells, output rows.

    `n_kv` of a window cache has the sizes of the full one (the first), cut at its own number of cells: they grow
    together. `n_outputs` is cut at the rows of the ubatch. It has no 0: whether a ubatch has any outputs at all depends
    on how prompts meet, and a program of its own costs more than the few rows of logits that nobody reads. `n_copies`:
    streams that are copied at once.
    """

    capacity: BucketLadder
    rows: RectangleLadder
    n_kv: tuple[BucketLadder, ...]
    n_outputs: BucketLadder
    n_copies: BucketLadder

    @classmethod
    def default(
        cls,
        *,
        n_batch: int,
        n_ubatch: int,
        n_streams: int,
        n_cells: tuple[int, ...],
        kv_pad: int,
        rows: Rows | None = None,
        n_kv: Sizes | None = None,
        n_outputs: Sizes | None = None,
    ) -> "Buckets":
        """The ladders that are given, else powers of two for rows, blocks and cells, and coarser steps for outputs.

        Each may be text, "1,8,64", or a list of sizes, which ends at the size; `rows` shapes too, see
        `RectangleLadder.of`. Raises ValueError for a ladder that ends elsewhere than the sizes do, or that is for
        another number of streams.
        """
        rows = BucketLadder.geometric(n_ubatch) if rows is None else rows
        if isinstance(rows, BucketLadder):
            _check_top("rows of a ubatch", rows.top, n_ubatch, "n_ubatch")
        rows = RectangleLadder.of(rows, n_ubatch, n_streams)
        _check_rectangles(rows, n_ubatch, n_streams)
        if n_kv is None:
            n_kv = BucketLadder.geometric(n_cells[0], bottom=min(kv_pad, n_cells[0]))
        if n_outputs is None:
            n_outputs = BucketLadder.geometric(n_ubatch, bottom=min(8, n_ubatch), factor=8)
        n_kv, n_outputs = BucketLadder.of(n_kv, n_cells[0]), BucketLadder.of(n_outputs, n_ubatch)
        _check_top("attended cells", n_kv.top, n_cells[0], "a stream's number of cells")
        _check_top("output rows", n_outputs.top, n_ubatch, "n_ubatch")
        return cls(
            # One for all batches of one ubatch, so that its bucket and the capacity do not vary apart.
            capacity=BucketLadder(tuple(sorted({min(n_ubatch, n_batch), n_batch}))),
            rows=rows,
            n_kv=tuple(n_kv.cut(n) for n in n_cells),
            n_outputs=n_outputs,
            n_copies=BucketLadder.geometric(n_streams, factor=8),
        )

    @classmethod
    def single(
        cls,
        n_batch: int,
        n_streams: int,
        n_cells: int,
        *,
        rows: Rows | None = None,
        n_kv: Sizes | None = None,
        n_outputs: Sizes | None = None,
    ) -> "Buckets":
        """One program for all ubatches: the shape of `RectangleLadder.single`, all cells, every row an output row.

        Raises ValueError for ladders of another size or of several.
        """
        shape = RectangleLadder.single(rows, n_streams)
        for name, given, only in (("n_kv", n_kv, n_cells), ("n_outputs", n_outputs, shape.n_ubatch)):
            if given is not None and BucketLadder.of(given, only).sizes != (only,):
                raise ValueError(f"{name} is {given}: the one size {only} is needed")
        return cls.default(
            n_batch=n_batch,
            n_ubatch=shape.n_ubatch,
            n_streams=n_streams,
            n_cells=(n_cells,),
            kv_pad=n_cells,
            rows=shape,
            n_outputs=[shape.n_ubatch],
        )

    def kv_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Every size of K/V: cells a stream in each cache, ascending."""
        return tuple(tuple(min(size, own.top) for own in self.n_kv) for size in self.n_kv[0].sizes)

    def pick_kv(self, needed: Iterable[int]) -> tuple[int, ...]:
        """The smallest size of K/V in which every cache has the cells that are needed of it."""
        size = self.n_kv[0].pick(max(needed))
        return tuple(min(size, own.top) for own in self.n_kv)

    def ubatch(self, *, n_tokens: int, n_seqs: int, n_outputs: int, equal_seqs: bool) -> Bucket:
        """The bucket of a ubatch: a rectangle of blocks when its split is equal, else one block of rows."""
        n_sets = n_seqs if equal_seqs else 1
        blocks, rows = self.rows.pick(n_sets, n_tokens // n_sets)
        outputs = pick_outputs(self.n_outputs, n_outputs, blocks * rows)
        return Bucket(n_blocks=blocks, n_block_rows=rows, n_outputs=outputs)

    def loop(self, n: int) -> Bucket:
        """The bucket of a decode loop over n sequences, n consecutive ones with streams; outputs for all its rows."""
        streams = self.rows.n_seqs > 1
        blocks, rows = self.rows.pick(n, 1) if streams else self.rows.pick(1, n)
        outputs = pick_outputs(self.n_outputs, blocks if streams else rows, blocks * rows)
        return Bucket(n_blocks=blocks, n_block_rows=rows, n_outputs=outputs)

    def loops(self, n_seqs: int) -> tuple[Bucket, ...]:
        """Every bucket of a loop over up to n_seqs sequences, the fewest rows first; none beside `single`."""
        if self.rows.n_set_rows is not None:
            return ()
        most = min(n_seqs, self.rows.n_ubatch)
        return tuple(sorted({self.loop(n) for n in range(1, most + 1)}, key=_size))

    def whole(
        self, *, n_tokens: Sequence[int], n_seqs: Sequence[int], n_outputs: Sequence[int], equal_seqs: bool
    ) -> tuple[Bucket, int]:
        """One bucket for all ubatches of a batch, and the rows that hold its outputs.

        As many blocks, rows and outputs as any of the ubatches' own buckets: a batch of many short and one long
        sequence is padded to more than n_ubatch rows.
        """
        ubatches = zip(n_tokens, n_seqs, n_outputs, strict=True)
        own = [self.ubatch(n_tokens=t, n_seqs=s, n_outputs=o, equal_seqs=equal_seqs) for t, s, o in ubatches]
        bucket = Bucket(
            n_blocks=max(bucket.n_blocks for bucket in own),
            n_block_rows=max(bucket.n_block_rows for bucket in own),
            n_outputs=max(bucket.n_outputs for bucket in own),
        )
        sizes = BucketLadder(tuple(sorted({*self.n_outputs.sizes, *self.capacity.sizes})))
        return bucket, sizes.pick(sum(n_outputs))

    def shapes(self) -> tuple[tuple[Bucket, tuple[int, ...]], ...]:
        """Every program of the step that decodes can need, (bucket, size of K/V), and no other; the fewest rows first.

        A block of t rows lies in t cells of its stream, so no bucket of many rows meets a small K/V.
        """
        found = []
        for ubatches in self._held(*self.rows.ubatches()):
            for bucket, n_tokens in self._buckets(ubatches).items():
                found += [(bucket, n_kv) for n_kv in self.kv_sizes() if n_kv[0] >= n_tokens]
        return tuple(sorted(found, key=lambda shape: (_size(shape[0]), shape[1])))

    def staged(self) -> tuple[tuple[int, Bucket], ...]:
        """Every pair of a batch's capacity and a bucket that its rows can be staged into; the fewest rows first."""
        found = []
        n_seqs, n_tokens = self.rows.ubatches()
        for below, capacity in zip((0, *self.capacity.sizes), self.capacity.sizes, strict=False):
            if self.rows.n_seqs == 1 and len(self.n_kv) == 1:  # whole ubatches, then the rest
                n_batch = np.arange(below + 1, capacity + 1)
                occurs = np.isin(n_tokens, n_batch % self.rows.n_ubatch)
                occurs[-1] = capacity >= self.rows.n_ubatch
            else:
                occurs = n_seqs * n_tokens <= capacity
            for ubatches in self._held(n_seqs[occurs], n_tokens[occurs]):
                found += [(capacity, bucket) for bucket in self._buckets(ubatches)]
        return tuple(sorted(found, key=lambda shape: (_size(shape[1]), shape[0])))

    def _held(self, n_seqs: np.ndarray, n_tokens: np.ndarray) -> list[list[tuple[int, int]]]:
        """The ubatches that have cells, shape by shape."""
        fits = n_tokens <= min(own.top for own in self.n_kv)
        ubatches = np.stack([n_seqs[fits], n_tokens[fits]], axis=1)
        places = self.rows.assign(*ubatches.T).values()
        return [[(s, t) for s, t in ubatches[at].tolist()] for at in places]

    def _buckets(self, ubatches: list[tuple[int, int]]) -> dict[Bucket, int]:
        """The buckets of ubatches that have one shape, for every number of outputs, and the fewest tokens of a set."""
        n_seqs, n_tokens = max(ubatches, key=lambda ubatch: ubatch[0] * ubatch[1])
        most, equal = n_seqs * n_tokens, self.rows.n_seqs > 1
        fewest = (0, *(size + 1 for size in self.n_outputs.sizes if size < most))  # outputs of each bucket
        return {
            self.ubatch(n_tokens=most, n_seqs=n_seqs, n_outputs=n, equal_seqs=equal): min(
                tokens for sets, tokens in ubatches if sets * tokens >= n
            )
            for n in fewest
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderBuckets:
    """The ladders of an encoder: capacity of a batch, rows of a ubatch, rows of its longest sequence (its span)."""

    capacity: BucketLadder
    rows: BucketLadder
    spans: BucketLadder

    @classmethod
    def default(cls, *, n_batch: int, n_ubatch: int, rows: BucketLadder | None = None) -> "EncoderBuckets":
        """The ladder of rows that is given, else few sizes, so that texts of any lengths meet each soon."""
        if rows is None:
            rows = BucketLadder.geometric(n_ubatch, bottom=min(16, n_ubatch), factor=4)
        _check_top("rows of a ubatch", rows.top, n_ubatch, "n_ubatch")
        return cls(
            capacity=BucketLadder(tuple(sorted({min(n_ubatch, n_batch), n_batch}))),
            rows=rows,
            spans=BucketLadder.geometric(n_ubatch, bottom=min(32, n_ubatch)),
        )

    def ubatch(self, n_tokens: int, longest: int, n_ubatches: int = 1) -> tuple[Bucket, int]:
        """The bucket of a ubatch, one of `n_ubatches` of its batch, and its span; one that saves nothing is all rows.

        Several ubatches all have the most rows: how full the last one is depends on how lengths add up, and a program
        of its own costs more than the rows.
        """
        n_rows, span = (
            self.rows.pick(n_tokens) if n_ubatches == 1 else self.rows.top,
            self.spans.pick(longest),
        )
        saves = 3 * span < n_rows and n_rows % span == 0
        return Bucket(n_blocks=1, n_block_rows=n_rows, n_outputs=0), span if saves else n_rows

    def shapes(self) -> tuple[tuple[Bucket, int], ...]:
        """Every program that ubatches can need, the fewest rows first."""
        lengths = {min(span, n) for span in self.spans.sizes for n in self.rows.sizes}
        found = {self.ubatch(n, longest) for n in self.rows.sizes for longest in lengths if longest <= n}
        return tuple(sorted(found, key=lambda shape: (shape[0].n_rows, shape[1])))


def shape_name(bucket: Bucket, n_kv: tuple[int, ...] = ()) -> str:
    """A bucket as people read it, `2x4|kv 256|out 8`: blocks x rows, attended cells of each cache, outputs."""
    cells = f"|kv {kv_name(n_kv)}" if n_kv else ""
    return f"{bucket.n_blocks}x{bucket.n_block_rows}{cells}|out {bucket.n_outputs}"


def span_name(bucket: Bucket, span: int) -> str:
    """A bucket of an encoder as people read it, `1x512|span 64`: rows, and rows of a sequence at most."""
    return f"{bucket.n_blocks}x{bucket.n_block_rows}|span {span}"


def kv_name(n_kv: tuple[int, ...]) -> str:
    """A size of K/V as people read it."""
    return "+".join(map(str, n_kv))


def _size(bucket: Bucket) -> tuple[int, ...]:
    return bucket.n_rows, bucket.n_blocks, bucket.n_outputs


def _check_top(what: str, found: int, needed: int, name: str) -> None:
    if found != needed:
        raise ValueError(
            f"the ladder of {what} ends at {found}, {name} is {needed}: a ladder up to {needed} is needed"
        )


def _check_rectangles(ladder: RectangleLadder, n_ubatch: int, n_streams: int) -> None:
    _check_top("rows of a ubatch", ladder.n_ubatch, n_ubatch, "n_ubatch")
    wide = max(n_seqs for n_seqs, _ in ladder.shapes())
    if ladder.n_seqs != n_streams or wide > n_streams:
        raise ValueError(
            f"the ladder {ladder} is for {max(ladder.n_seqs, wide)} sets, the cache has {n_streams} streams: "
            f"a ladder for {n_streams} is needed"
        )


def pick_outputs(ladder: BucketLadder, n_outputs: int, n_rows: int) -> int:
    """Output rows of a bucket of `n_rows` rows: never more than the rows."""
    return min(ladder.pick(n_outputs), n_rows)
