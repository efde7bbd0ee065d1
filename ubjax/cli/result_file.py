"""`--output FILE`: results as JSONL, each written as it comes, so that an interrupt loses none that was there."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ubjax.cli.texts import json_line


class ResultFile:
    """The file of the results, made before any work; without a path nothing is written.

    Rows come in the order in which outputs end; `finish` puts all of them in the order that it is given.
    """

    def __init__(self, path: Path | None):
        self._path = path
        try:
            self._file = None if path is None else path.open("w", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} can't be written: {error.strerror}") from None

    def __enter__(self) -> "ResultFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: dict[str, Any]) -> None:
        """Write one row, at once."""
        self._write([row])

    def finish(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write all rows anew, in this order."""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
        self._write(rows)

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        if self._file is None:
            return
        try:
            self._file.writelines(json_line(row) + "\n" for row in rows)
            self._file.flush()
        except OSError as error:
            raise ValueError(f"{self._path} can't be written: {error.strerror}") from None
