"""Files that are written whole or not at all, and read only as far as they are what they should be."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any


def as_path(path: Any) -> Path:
    """A path; refuses what is none."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"the path is {path!r}, a text or a Path is needed")
    path = Path(os.fsdecode(path))
    if not path.name or not _possible(str(path)):
        raise ValueError(f"the path is {str(path)!r}, the name of a file is needed")
    return path


def _possible(text: str) -> bool:
    """Whether the file system can be asked for such a name at all."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def write_whole(path: Path, pieces: Iterable[memoryview]) -> None:
    """Write a file beside `path`, then put it in its place: a failure, or a crash, leaves what was there.

    A link goes on to lead to the file. What is there and no file (a folder, a pipe, a device) is refused.
    """
    with _beside(path) as (target, part):
        with part.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # the name must not change hands before the data is there
        part.replace(target)


def check_writable(path: Path) -> None:
    """Refuse, before any work, a path that `write_whole` could not write to; nothing is left of the trial."""
    with _beside(as_path(path)) as (_, part):
        part.touch()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, Path]]:
    """The file that a path leads to, and a name beside it for what is not whole yet; failures become one sentence."""
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{os.getpid()}.part")  # short: the name may be as long as names can be
    try:
        if target.exists() and not target.is_file():
            kind = "a directory" if target.is_dir() else "no file"
            raise ValueError(f"{path} can't be written: it is {kind}")
        yield target, part
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedIOBase, int]]:
    """A file to be read, and its size; refuses what is no file."""
    try:
        if not path.is_file():
            raise ValueError(f"{path} can't be read: it is {'no file' if path.exists() else 'not there'}")
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
