"""GGUF metadata as a mapping of plain Python values; arrays are converted when they are first asked for.

A vocabulary of 262,144 tokens takes tens of milliseconds to convert, and most keys of a file are never read.
"""

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Kind = TypeVar("Kind", bool, int, float, str, tuple)
Default = TypeVar("Default")

LENGTH = struct.Struct("<Q")


class GGUFError(ValueError):
    """A GGUF file that cannot be used: one sentence with the file, the key or tensor and what is needed."""


def short(text: str, limit: int = 60) -> str:
    """`text` quoted for an error message: names come from the file and may be megabytes long."""
    return repr(text if len(text) <= limit else f"{text[:limit]}...")


def read_strings(view: memoryview, count: int) -> Iterator[bytes]:
    """The `count` length-prefixed strings at the start of `view`, whose lengths have been checked before."""
    position = 0
    for _ in range(count):
        (length,) = LENGTH.unpack_from(view, position)
        position += 8 + length
        yield bytes(view[position - length : position])


@dataclasses.dataclass(frozen=True)
class ArrayField:
    """An array that has not been converted: its bytes, number of elements, their struct code ("s": strings).

    The lengths of strings have been checked. `where` (file and key) opens the error when one of them is not
    UTF-8.
    """

    view: memoryview
    count: int
    code: str
    where: str

    def convert(self) -> Value:
        """The elements as a tuple of Python values."""
        if self.code != "s":
            return tuple(np.frombuffer(self.view, dtype=f"<{self.code}").tolist())
        texts: list[str] = []
        for raw in read_strings(self.view, self.count):
            try:
                texts.append(raw.decode())
            except UnicodeDecodeError:
                raise GGUFError(
                    f"{self.where}: element {len(texts)} is {raw[:40]!r}, UTF-8 is needed"
                ) from None
        return tuple(texts)


class Metadata(Mapping):
    """Key -> bool, int, float, str or tuple. `require` and `optional` check the type and name the key.

    Iteration is in the order of the file.
    """

    def __init__(self, path: Path, fields: dict[str, Scalar | ArrayField]) -> None:
        self.path = path
        self._fields = fields
        self._converted: dict[str, Value] = {}

    def error(self, text: str) -> GGUFError:
        """A GGUFError about this file."""
        return GGUFError(f"{self.path}: {text}")

    def __getitem__(self, key: str) -> Value:
        field = self._fields[key]
        if not isinstance(field, ArrayField):
            return field
        if key not in self._converted:
            self._converted[key] = field.convert()
        return self._converted[key]

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def array_length(self, key: str) -> int:
        """Elements of an array, without converting it; GGUFError when the key is missing or no array."""
        field = self._fields.get(key)
        if not isinstance(field, ArrayField):
            found = "missing" if field is None else f"the {type(field).__name__} {short(str(field))}"
            raise self.error(f"the metadata key {key!r} is {found}, an array is needed")
        return field.count

    def require(self, key: str, kind: type[Kind]) -> Kind:
        """The value of `key`, a `kind`; GGUFError when the key is missing or holds another type."""
        if key not in self:
            raise self.error(f"the metadata key {key!r} is missing, {kind.__name__} is needed")
        field = self._fields[key]
        if isinstance(field, ArrayField) and kind is not tuple:
            found = f"an array of {field.count} values"
        else:
            value = self[key]
            if kind is float and type(value) is int:
                value = float(value)
            if isinstance(value, kind) and type(value) is kind:  # a bool is no int
                return value
            found = f"the {type(value).__name__} {short(str(value))}"
        raise self.error(f"the metadata key {key!r} is {found}, {kind.__name__} is needed")

    def optional(self, key: str, kind: type[Kind], default: Default) -> Kind | Default:
        """As `require`, but a missing key gives `default`."""
        return self.require(key, kind) if key in self else default
