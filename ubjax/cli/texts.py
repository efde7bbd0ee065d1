"""Texts of a file or of standard input: one a line, or JSONL."""

import json
import sys
from pathlib import Path


def read_texts(path: Path, key: str, *, jsonl: bool = False, blank: bool = False) -> list[str]:
    """The texts of a file ("-": of standard input), a line each; blank lines only if `blank`, and never of JSONL.

    A line ends where a file's lines do, not at what Unicode knows besides: that may stand within a text. With `jsonl`,
    or where the name ends so, a line is a JSON string, or an object with the text under `key`. Raises ValueError with
    the line's number for another.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        whole = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{name} can't be read as text: {reason}") from None
    lines = whole.removeprefix("\ufeff").split("\n")
    if blank and not jsonl and path.suffix != ".jsonl":
        return lines if lines[-1] else lines[:-1]  # what ends with a line's end has no line behind it
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not jsonl and path.suffix != ".jsonl":
        return [line for _, line in filled]
    return [_text(line, f"{name} line {number}", key) for number, line in filled]


def _text(line: str, place: str, key: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits too
        raise ValueError(f"{place} is no JSON: {error}") from None
    if isinstance(value, dict) and key not in value:
        raise ValueError(f"{place} has no entry {key}, found: {', '.join(value) or 'none'}")
    text = value[key] if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ValueError(f"{place} has the {key} {text!r}, a text is needed")
    return text
