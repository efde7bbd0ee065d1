"""Texts of a file or of standard input: one a line, or JSONL; and the lines of JSON that answer them."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Line:
    """A text, and the id that its line gives it, a text or a number; None where it gives none."""

    text: str
    id: str | int | float | None = None

    @property
    def named(self) -> dict[str, str | int | float]:
        """What each row of a result begins with: the id, where there is one."""
        return {} if self.id is None else {"id": self.id}


def read_texts(path: Path, key: str, *, jsonl: bool = False, blank: bool = False) -> list[Line]:
    """The texts of a file ("-": of standard input), a line each; blank lines only if `blank`, and never of JSONL.

    A line ends where a file's lines do, not at what Unicode knows besides: that may stand within a text. With `jsonl`,
    or where the name ends so, a line is a JSON string, or an object with the text under `key`, and an id or none under
    "id". Raises ValueError with the line's number for another.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        whole = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{name} can't be read as text: {reason}") from None
    lines = whole.removeprefix("\ufeff").split("\n")
    if blank and not jsonl and path.suffix != ".jsonl":
        return list(map(Line, lines if lines[-1] else lines[:-1]))  # behind the last line's end there is none
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not jsonl and path.suffix != ".jsonl":
        return [Line(line) for _, line in filled]
    return [_line(line, f"{name} line {number}", key) for number, line in filled]


def json_line(value: Any) -> str:
    """A value as one line of JSON, readable as far as it is Unicode text (half a character may stand in a string)."""
    readable = json.dumps(value, ensure_ascii=False)
    try:
        readable.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return readable


def _line(line: str, place: str, key: str) -> Line:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits too
        raise ValueError(f"{place} is no JSON: {error}") from None
    if isinstance(value, dict) and key not in value:
        raise ValueError(f"{place} has no entry {key}, found: {', '.join(value) or 'none'}")
    text = value[key] if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ValueError(f"{place} has the {key} {text!r}, a text is needed")
    given = value.get("id") if isinstance(value, dict) else None
    plain = isinstance(given, str | int) and not isinstance(given, bool)
    return Line(text, given if plain or (isinstance(given, float) and math.isfinite(given)) else None)
