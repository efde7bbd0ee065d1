"""What decodes cost: ubatches, buckets, padding. Plain counters on the host."""

import collections
import dataclasses

from ubjax.pictures.wording import amount


@dataclasses.dataclass
class Usage:
    """Counters of an engine. `buckets` counts the ubatches that ran in each program shape."""

    decodes: int = 0
    tokens: int = 0
    outputs: int = 0
    rows: int = 0
    buckets: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def count(self, bucket: str, rows: int, tokens: int, outputs: int, steps: int = 1) -> None:
        """Count ubatches, one each step, of so many rows; tokens among them and outputs are those of all steps."""
        self.buckets[bucket] += steps
        self.rows += rows * steps
        self.tokens += tokens
        self.outputs += outputs

    @property
    def ubatches(self) -> int:
        """Steps that ran."""
        return sum(self.buckets.values())

    @property
    def padded_share(self) -> float:
        """The share of computed rows that were padding, in [0, 1]."""
        return 1 - self.tokens / self.rows if self.rows else 0.0

    def since(self, before: "Usage") -> "Usage":
        """The counters added after `before` was copied."""
        numbers = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("decodes", "tokens", "outputs", "rows")
        }
        return Usage(**numbers, buckets=self.buckets - before.buckets)

    def add(self, more: "Usage") -> None:
        """Count those as well."""
        for name in ("decodes", "tokens", "outputs", "rows"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.buckets += more.buckets

    def copy(self) -> "Usage":
        """A snapshot."""
        return dataclasses.replace(self, buckets=self.buckets.copy())

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} x{n}" for name, n in sorted(self.buckets.items()))
        return (
            f"{amount(self.tokens, 'token')} in {amount(self.decodes, 'decode')}, "
            f"{amount(self.ubatches, 'ubatch', 'ubatches')}, "
            f"{amount(len(self.buckets), 'bucket')} ({shapes}), {self.padded_share:.1%} padding"
        )
