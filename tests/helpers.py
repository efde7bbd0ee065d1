"""What tests of several folders share: access to the golden data."""

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> list[Any]:
    """The JSON values in `tests/golden/NAME`, one for each line; a `.json.gz` file holds a single one."""
    with gzip.open(GOLDEN / name, mode="rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
