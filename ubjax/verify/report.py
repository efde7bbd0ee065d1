"""What a replay of golden answers found: how many rows were equal, and the first difference of each kind."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ubjax.pictures.wording import amount


@dataclasses.dataclass
class Report:
    """Counts of one replayed file.

    A row is one answer of the golden file: a split, a cache operation, a row of logits.
    `worst` is the largest absolute difference of a logit.
    """

    name: str
    rows: int = 0
    different: int = 0
    first: dict[str, str] = dataclasses.field(default_factory=dict)
    worst: float = 0.0

    @property
    def equal(self) -> bool:
        """True when at least one row was checked and none differed."""
        return self.rows > 0 and self.different == 0

    def check(self, where: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Count one row; it is equal when every expected value was found. Kinds of differences are the keys."""
        self.rows += 1
        bad = {key: want for key, want in expected.items() if found.get(key) != want}
        self.different += bool(bad)
        for key, want in bad.items():
            self.first.setdefault(key, f"{where}: {key} is {found.get(key)!r}, expected {want!r}")

    def __str__(self) -> str:
        rows = amount(self.rows, "row")
        head = f"{self.name}: {rows} checked, {self.rows - self.different} equal, {self.different} different"
        if self.worst:
            head += f"; largest difference of a logit {self.worst:.1e}"
        return "\n".join([head, *(f"  {line}" for line in self.first.values())])
