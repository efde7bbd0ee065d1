"""Arguments that the commands on request traces share."""

import argparse
import importlib.util
import sys
from pathlib import Path

from ubjax.saving.files import as_path

PICTURES = (".png", ".svg", ".pdf")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the trace, and the server that its requests meet."""
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="requests: an Azure LLM inference or BurstGPT CSV, a CSV with the columns arrival, prompt and output, "
        "or JSONL with these keys (seconds and tokens; packed by gzip as well)",
    )
    parser.add_argument(
        "--slots", metavar="S", type=int, default=32, help="sequences that run at the same time (default 32)"
    )
    parser.add_argument(
        "--n-batch", metavar="N", type=int, default=2048, help="tokens of a decode at most (default 2048)"
    )


def read_sizes(option: str, text: str) -> list[int]:
    """Sizes with commas between them, each once. Raises ValueError for anything else."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and int(word) for word in words):
        raise ValueError(f"{option} is {text!r}, sizes of at least 1 with commas between them are needed")
    return list(dict.fromkeys(int(word) for word in words))


def check_outputs(paths: dict[str, Path | None]) -> None:
    """Refuse what can't be written, before any work: no such folder, a folder itself, pictures of other endings."""
    for option, path in paths.items():
        if path is None:
            continue
        if path.name and not as_path(path).absolute().parent.is_dir():
            raise ValueError(f"{option} {path}: there is no folder {path.absolute().parent}")
        if not path.name or path.is_dir():  # "." and "/" have no name
            raise ValueError(f"{option} {path} is a folder, a file is needed")
        if option == "--png" and path.suffix.lower() not in PICTURES:
            raise ValueError(f"--png {path}: a name that ends with one of {', '.join(PICTURES)} is needed")
    if paths.get("--png") is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--png needs matplotlib: pip install matplotlib")


def say_written(path: Path) -> None:
    """Say that a file is there."""
    print(f"wrote {path}", file=sys.stderr, flush=True)
