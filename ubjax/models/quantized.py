"""Rows of a matrix in 8 bits or fewer, as files hold them: whole numbers, a scale for 32 of them (ggml's blocks)."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float16, Float32, Int, Int8

BLOCK = 32  # values that share a scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedRows:
    """values * scale + offset, N blocks a row; offset None: none of them has one.

    `kind` says what all values are within: "int4" [-8, 8), "uint4" [0, 16) or "int8".
    """

    values: Int8[np.ndarray, "out in_"]
    scale: Float16[np.ndarray, "out N"]
    offset: Float16[np.ndarray, "out N"] | None = None
    kind: str = "int8"

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return self.values.shape

    def __len__(self) -> int:
        """Rows."""
        return len(self.values)

    def __getitem__(self, rows: slice | Int[np.ndarray, " n"]) -> "QuantizedRows":
        """Some of the rows, by a slice or by their numbers."""
        offset = None if self.offset is None else self.offset[rows]
        return dataclasses.replace(self, values=self.values[rows], scale=self.scale[rows], offset=offset)

    def full(self) -> Float32[np.ndarray, "out in_"]:
        """The values that are meant."""
        with np.errstate(over="ignore", invalid="ignore"):  # a hostile scale may be infinite
            blocks = self.values.reshape(*self.scale.shape, BLOCK) * self.scale[..., None].astype(np.float32)
            if self.offset is not None:
                blocks += self.offset[..., None].astype(np.float32)
        return blocks.reshape(self.shape)

    @classmethod
    def joined(cls, parts: Sequence["QuantizedRows"]) -> "QuantizedRows":
        """The parts over one another; those without an offset get one of -0 if another has one: it changes nothing."""
        offsets = None
        if any(part.offset is not None for part in parts):
            offsets = np.concatenate(
                [np.full_like(part.scale, -0.0) if part.offset is None else part.offset for part in parts]
            )
        values, scales = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "scale")
        )
        kinds = {part.kind for part in parts}
        return cls(
            values=values, scale=scales, offset=offsets, kind=kinds.pop() if len(kinds) == 1 else "int8"
        )
