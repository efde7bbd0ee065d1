"""Ladders of sizes: of one dimension, and of the rectangles that ubatches of an equal split are padded to."""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ubjax.typing import Whole


@dataclasses.dataclass(frozen=True)
class BucketLadder:
    """Ascending sizes; `pick` gives the smallest that holds n and raises above the top (never a silent new shape)."""

    sizes: tuple[Whole, ...]

    def __post_init__(self) -> None:
        whole = all(_is_whole(size) for size in self.sizes)
        if not whole or not self.sizes or self.sizes[0] < 1 or not _ascend(self.sizes):
            raise ValueError(
                f"bucket sizes {self.sizes}: at least one, all positive and strictly ascending whole numbers, is needed"
            )
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))

    @classmethod
    def of(cls, sizes: "Sizes", top: int) -> "BucketLadder":
        """Sizes as "1,8,64" or as a list, those below `top`, and `top`; a ladder as it is."""
        if isinstance(sizes, BucketLadder):
            return sizes
        given = _entries(sizes)
        if any(isinstance(size, tuple) for size in given):
            raise ValueError(f"the sizes {sizes!r} are shapes: sizes such as 1,8,64 are needed")
        return cls(given).cut(top)

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

    @classmethod
    def linear(cls, top: int, count: int) -> "BucketLadder":
        """`count` equal steps up to `top`, rounded up; fewer where `top` is smaller than `count`."""
        if top < 1 or count < 1:
            raise ValueError(f"a ladder of {count} equal steps to {top}: numbers of at least 1 are needed")
        return cls(tuple(sorted({-(-top * step // count) for step in range(1, count + 1)})))

    @classmethod
    def gapped(cls, top: int, gap: int) -> "BucketLadder":
        """Powers of two up to `gap`, from there on steps of `gap`, and exactly `top` as the last size."""
        if top < 1 or gap < 1:
            raise ValueError(f"a ladder with gap {gap} to {top}: sizes of at least 1 are needed")
        powers = [1 << bit for bit in range(gap.bit_length()) if 1 << bit < min(gap, top)]
        return cls((*powers, *range(gap, top, gap), top))

    @classmethod
    def rows(cls, top: int, n_seqs: int = 1) -> "BucketLadder":
        """Rows of a ubatch, where a decode of one token for each sequence has up to `n_seqs` of them.

        Below n_seqs by fourths (above 16 by halves), above it fourfold, from 64 on doubled, and exactly `top`. Each
        size stands for a range so wide that prompts of any lengths meet it soon: other prompts then compile nothing.

            n_seqs 1    1 16 64 128 256 512          n_seqs 16   1 4 16 64 128 256 512
            n_seqs 8    1 2 8 32 64 128 256 512      n_seqs 64   1 4 16 32 64 128 256 512
        """
        if top < 1 or n_seqs < 1:
            raise ValueError(f"rows for {n_seqs} sequences up to {top}: sizes of at least 1 are needed")
        sizes = [n_seqs]
        while sizes[-1] > 1:
            sizes.append(max(1, sizes[-1] // (2 if sizes[-1] > 16 else 4)))
        sizes += [max(16, 4 * n_seqs)] if n_seqs < 16 else []
        sizes += [1 << bit for bit in range(6, top.bit_length()) if 1 << bit > n_seqs]
        return cls((*sorted(size for size in sizes if size < top), top))

    def cut(self, top: int) -> "BucketLadder":
        """The same sizes as far as `top`, which is the last one."""
        return BucketLadder((*(size for size in self.sizes if size < top), top))

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


@dataclasses.dataclass(frozen=True)
class RectangleLadder:
    """Shapes n_seqs x n_seq_tokens for the ubatches of an equal split: up to `n_seqs` sets, `n_ubatch` rows in all.

    `pick` gives the rectangle with the fewest rows that holds a ubatch (of equals the one with fewer sets); each
    ubatch that can occur has to have one. With n_seqs 1 this is the ladder of the splits that are not equal.

        1 2 4 by 1 2 4 8, n_ubatch 8     1x1 1x2 1x4 1x8 2x1 2x2 2x4 4x1 4x2    4x4 can't occur: 3x3 rows are too many

    `n_set_rows`: rows of a set in one ubatch, at most (None: as many as n_ubatch allows), for splits that keep to it.
    """

    n_ubatch: int
    n_seqs: int
    rectangles: tuple[tuple[int, int], ...]
    n_set_rows: int | None = None

    def __post_init__(self) -> None:
        if self.n_ubatch < 1 or self.n_seqs < 1:
            raise ValueError(f"{self.n_seqs} sets and {self.n_ubatch} rows: sizes of at least 1 are needed")
        ascending = tuple(sorted(self.rectangles, key=lambda shape: (shape[0] * shape[1], shape)))
        object.__setattr__(self, "rectangles", ascending)
        for n_seqs in range(1, min(self.n_seqs, self.n_ubatch) + 1):
            most = self._most(n_seqs)
            if not _holds(self.rectangles, n_seqs, most):
                raise ValueError(
                    f"{n_seqs} x {most} rows do not fit any shape of {self}: {n_seqs}x{most} is needed too, "
                    f"or an n_ubatch below {self.n_ubatch}"
                )

    @classmethod
    def of(cls, rows: "Rows", n_ubatch: int, n_seqs: int = 1) -> "RectangleLadder":
        """Sizes or shapes n_seqs x n_seq_tokens, "1,8,64" or "1x64,8x1" as `ubjax ladder` prints them, or as a list.

        Sizes serve sets and rows: their grid, with n_seqs and n_ubatch as the last ones. Of shapes each is cut to
        n_seqs and n_ubatch, and where a full ubatch of some sets has none, one is added. A RectangleLadder is left as
        it is, sizes in a BucketLadder are those of rows, by sets in powers of two.

            "8,64" for n_ubatch 512     1x8 1x64 1x512
            "1x64,4x1", n_seqs 4        1x64 4x1, and 1x512 2x256 4x170

        Raises ValueError for anything else.
        """
        if isinstance(rows, RectangleLadder):
            return rows
        if isinstance(rows, BucketLadder):
            return cls.grid(BucketLadder.geometric(n_seqs), rows)
        given = _entries(rows)
        if not isinstance(given[0], tuple):
            sizes = BucketLadder(given)
            return cls.grid(sizes.cut(n_seqs), sizes.cut(n_ubatch))
        shapes = [(min(sets, n_seqs), min(most, n_ubatch)) for sets, most in given]
        for sets in range(1, min(n_seqs, n_ubatch) + 1):
            if not _holds(shapes, sets, n_ubatch // sets):
                shapes.append((min(1 << (sets - 1).bit_length(), n_seqs), n_ubatch // sets))
        return cls(n_ubatch, n_seqs, tuple(set(shapes)))

    @classmethod
    def grid(cls, n_seqs: BucketLadder, n_rows: BucketLadder) -> "RectangleLadder":
        """The pairs of two ladders."""
        return cls(n_rows.top, n_seqs.top, tuple(itertools.product(n_seqs.sizes, n_rows.sizes)))

    @classmethod
    def single(cls, rows: "Rows | None", n_seqs: int) -> "RectangleLadder":
        """One shape for all ubatches of n_seqs sets: n_seqs x t, "4x16" for 4 sets, or as a list or a ladder.

        By default t is 4, more where there are fewer than 4 sets (16 rows in all). Raises ValueError for another shape
        or several.
        """
        given: tuple[Any, ...] = ((n_seqs, max(4, 16 // n_seqs)),)
        if isinstance(rows, RectangleLadder):
            given = rows.rectangles
        elif rows is not None:
            given = rows.sizes if isinstance(rows, BucketLadder) else _entries(rows)
        if len(given) != 1 or not isinstance(given[0], tuple) or given[0][0] != n_seqs:
            raise ValueError(
                f"the rows of a ubatch are {rows}: one shape {n_seqs}xT, a block of T rows for each sequence, is needed"
            )
        most = int(given[0][1])
        return cls(n_seqs * most, n_seqs, ((n_seqs, most),), most)

    def _most(self, n_seqs: int) -> int:
        """Rows that each of n_seqs sets can have in a ubatch."""
        most = self.n_ubatch // n_seqs
        return most if self.n_set_rows is None else min(most, self.n_set_rows)

    def pick(self, n_seqs: int, n_seq_tokens: int) -> tuple[int, int]:
        """The shape that a ubatch of n_seqs x n_seq_tokens rows is padded to."""
        possible = 1 <= n_seqs <= min(self.n_seqs, self.n_ubatch) and 0 <= n_seq_tokens <= self._most(n_seqs)
        for shape in self.rectangles:
            if possible and shape[0] >= n_seqs and shape[1] >= n_seq_tokens:
                return shape
        raise ValueError(
            f"{n_seqs} x {n_seq_tokens} rows do not fit any shape of {self}: "
            f"up to {self.n_seqs} sets and {self.n_ubatch} rows in all can occur, and each needs a shape that holds it"
        )

    def assign(self, n_seqs: np.ndarray, n_seq_tokens: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
        """For each shape that `pick` gives one of these ubatches [N], the places of its ubatches; shapes ascend."""
        free, places = np.ones(len(n_seqs), bool), {}
        for shape in self.rectangles:
            held = free & (n_seqs <= shape[0]) & (n_seq_tokens <= shape[1])
            if held.any():
                places[shape] = np.flatnonzero(held)
            free &= ~held
        return dict(sorted(places.items()))

    def ubatches(self) -> tuple[np.ndarray, np.ndarray]:
        """n_seqs and n_seq_tokens of every ubatch that can occur."""
        n_seqs = np.arange(1, min(self.n_seqs, self.n_ubatch) + 1)
        most = [self._most(int(n)) for n in n_seqs]
        return np.repeat(n_seqs, most), np.concatenate([np.arange(1, n + 1) for n in most])

    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Every shape that `pick` can give, and no other; ascending."""
        return tuple(self.assign(*self.ubatches()))

    def __str__(self) -> str:
        return ",".join(f"{n_seqs}x{rows}" for n_seqs, rows in sorted(self.rectangles))


# A ladder as an argument written by hand; what is none of these is refused by a sentence of the functions above.
if TYPE_CHECKING:
    Sizes: TypeAlias = BucketLadder | str | Iterable[int]
    Rows: TypeAlias = BucketLadder | RectangleLadder | str | Iterable[int] | Iterable[tuple[int, int]]
else:
    Sizes = Rows = Any


def _entries(given: Any) -> tuple[Any, ...]:
    """Sizes (whole numbers) or shapes (pairs of them) of a text or a list, one or the other."""
    entries: tuple[Any, ...] = ()
    if isinstance(given, str):
        if re.fullmatch(r"\s*[0-9]+(\s*,\s*[0-9]+)*\s*", given):
            entries = tuple(int(size) for size in given.split(","))
        elif re.fullmatch(r"\s*[0-9]+x[0-9]+(\s*,\s*[0-9]+x[0-9]+)*\s*", given):
            pairs = (shape.split("x") for shape in given.split(","))
            entries = tuple((int(sets), int(rows)) for sets, rows in pairs)
    elif isinstance(given, Iterable):
        entries = tuple(tuple(entry) if isinstance(entry, tuple | list) else entry for entry in given)
    sizes, shapes = ([_is_whole(entry) for entry in entries], [_is_shape(entry) for entry in entries])
    if not entries or not (all(sizes) or all(shapes)):
        raise ValueError(
            f"{given!r} is no ladder: sizes such as 1,8,64 or shapes n_seqs x n_seq_tokens such as 1x64,8x1 are needed"
        )
    if all(shapes) and min(map(min, entries)) < 1:
        raise ValueError(f"{given!r} has a shape without rows: sizes of at least 1 are needed")
    return entries


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_whole, value))


def _ascend(sizes: Iterable[Any]) -> bool:
    return all(a < b for a, b in itertools.pairwise(sizes))


def _holds(shapes: Iterable[tuple[int, int]], n_seqs: int, n_seq_tokens: int) -> bool:
    return any(sets >= n_seqs and rows >= n_seq_tokens for sets, rows in shapes)
