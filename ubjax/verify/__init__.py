"""Replays golden answers of llama.cpp through the library on the present device."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from ubjax.verify.e2e import replay_e2e
from ubjax.verify.kv import replay_kv
from ubjax.verify.report import Report
from ubjax.verify.split import replay_split

__all__ = ["Report", "replay_e2e", "replay_file", "replay_kv", "replay_split"]


def replay_file(path: Path, model: str | None = None, **sizes: Any) -> Report:
    """Replay one golden file (.json or .jsonl, gzipped or not); what it holds is seen from its keys.

    model and sizes are for end-to-end files, see `replay_e2e`.

    Raises ValueError when the file can't be read or is no golden file.
    """
    data = _read(path)
    keys = _keys(data)
    try:
        if "scenarios" in keys:
            return replay_e2e(data, path.name, model, **sizes)
        if keys & {"splits", "tokens"}:
            return replay_split(data, path.name)
        if "ops" in keys:
            return replay_kv(data, path.name)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no golden file: {type(error).__name__} {error}") from error
    raise ValueError(
        f"{path} holds no golden answers: keys scenarios, splits or ops are needed, found {sorted(keys)}"
    )


def _keys(data: Any) -> set[str]:
    """The keys of the object, or of the first one of a list."""
    first = data[0] if isinstance(data, list) and data else data
    return set(first) if isinstance(first, dict) else set()


def _read(path: Path) -> Any:
    """The parsed file: one object, or a list of the objects of its lines."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
        if path.name.removesuffix(".gz").endswith(".jsonl"):
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        UnicodeDecodeError,
        json.JSONDecodeError,
        RecursionError,
    ) as error:
        raise ValueError(f"{path} is no golden file: {error}") from error
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}") from error
