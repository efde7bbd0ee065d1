"""Bucket ladders: the only place where a shape is chosen, for warm-up and run time alike."""

import bisect
import dataclasses


@dataclasses.dataclass(frozen=True)
class BucketLadder:
    """Ascending sizes; `pick` gives the smallest that holds n and raises above the top (never a silent new shape)."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if (
            not self.sizes
            or self.sizes[0] < 1
            or any(a >= b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        ):
            raise ValueError(
                f"bucket sizes {self.sizes} must be positive and strictly ascending, at least one is needed"
            )

    @classmethod
    def pow2(cls, top: int, bottom: int = 1) -> "BucketLadder":
        """bottom, 2 bottom, 4 bottom, ... and exactly `top` as the last size."""
        if not 1 <= bottom:
            raise ValueError(f"the smallest bucket is {bottom}, at least 1 is needed")
        sizes = []
        size = bottom
        while size < top:
            sizes.append(size)
            size *= 2
        return cls((*sizes, top))

    @property
    def top(self) -> int:
        """The largest size."""
        return self.sizes[-1]

    def pick(self, n: int) -> int:
        """The smallest size >= n."""
        if not 0 <= n <= self.top:
            raise ValueError(
                f"{n} rows do not fit any bucket of {self.sizes}: a size in [0, {self.top}] is needed"
            )
        return self.sizes[bisect.bisect_left(self.sizes, n)]
