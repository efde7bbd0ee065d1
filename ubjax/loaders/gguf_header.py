"""The header of a GGUF file (versions 2 and 3, little-endian), read without trusting it.

Every count and length is held against the bytes that are left before anything is made of it, so a hostile
header costs at most one walk over the file. Layout, after ggml's gguf.md:

    magic "GGUF", version u32, number of tensors u64, number of keys u64
    per key     name, type u32, value          (strings and names: length u64, bytes)
    per tensor  name, n_dims u32, dims u64 * n_dims (innermost first), type u32, offset u64 into the data
    padding to general.alignment (32), then the data
"""

import dataclasses
import math
import struct
from pathlib import Path

from ubjax.loaders.extras import import_extra
from ubjax.loaders.metadata import LENGTH, ArrayField, GGUFError, Metadata, Scalar, short

VERSIONS = (2, 3)
MAX_DIMS = 4  # ggml's GGML_MAX_DIMS
STRING, ARRAY = 8, 9
NUMBER_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Where a tensor is: shape in numpy order ([out, in] for a matrix), ggml type, first byte and bytes."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    n_bytes: int


@dataclasses.dataclass(frozen=True)
class Header:
    """What precedes the data: version, metadata and the tensors in the order of the file."""

    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


class Cursor:
    """A position in the file that refuses to pass its end."""

    def __init__(self, view: memoryview, path: Path) -> None:
        self.view = view
        self.path = path
        self.position = 0

    def error(self, text: str) -> GGUFError:
        """A GGUFError about this file."""
        return GGUFError(f"{self.path}: {text}")

    @property
    def left(self) -> int:
        """Bytes up to the end of the file."""
        return len(self.view) - self.position

    def take(self, n: int, what: str) -> memoryview:
        """The next `n` bytes."""
        if n > self.left:
            raise self.error(
                f"truncated in the header: {what} needs {n} bytes at byte {self.position}, "
                f"{self.left} are left"
            )
        self.position += n
        return self.view[self.position - n : self.position]

    def number(self, code: str, what: str) -> bool | int | float:
        """The next number, by its struct code."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]

    def count(self, code: str, what: str) -> int:
        """The next unsigned number."""
        return int(self.number(code, what))

    def text(self, what: str) -> str:
        """The next length-prefixed string."""
        raw = bytes(self.take(self.count("Q", f"the length of {what}"), what))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is {raw[:40]!r}, UTF-8 is needed") from None


def read_header(view: memoryview, path: Path) -> Header:
    """Parse the header in `view`, the whole file; GGUFError says what is wrong and where.

    Tensor sizes and offsets have been checked against the file: a `TensorInfo` can be read without further
    checks.
    """
    cursor = Cursor(view, path)
    magic = bytes(view[:4])
    if magic != b"GGUF":
        found = f"begins with {magic!r}" if magic else "is empty"
        raise cursor.error(f"not a GGUF file: it {found}, b'GGUF' is needed")
    cursor.position = 4
    version = cursor.count("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        found = "big-endian GGUF" if swapped else f"GGUF version {version}"
        raise cursor.error(f"{found} is not supported, little-endian version 2 or 3 is needed")
    n_tensors = cursor.count("Q", "the number of tensors")
    n_keys = cursor.count("Q", "the number of metadata keys")
    least = n_keys * MIN_KEY_BYTES + n_tensors * MIN_TENSOR_BYTES
    if least > cursor.left:
        raise cursor.error(
            f"truncated in the header: {n_keys} metadata keys and {n_tensors} tensors need at least {least} "
            f"bytes, {cursor.left} are left"
        )
    fields: dict[str, Scalar | ArrayField] = {}
    for _ in range(n_keys):
        key = cursor.text("a metadata key")
        if key in fields:
            raise cursor.error(f"the metadata key {short(key)} is there twice")
        fields[key] = read_value(cursor, key)
    metadata = Metadata(path, fields)
    return Header(version=version, metadata=metadata, tensors=read_tensors(cursor, n_tensors, metadata))


def read_value(cursor: Cursor, key: str) -> Scalar | ArrayField:
    """A scalar or string at once; of an array only where it is."""
    what = f"the value of {short(key)}"
    kind = cursor.count("I", f"the type of {short(key)}")
    if kind == STRING:
        return cursor.text(what)
    if kind in NUMBER_CODES:
        return cursor.number(NUMBER_CODES[kind], what)
    if kind != ARRAY:
        raise cursor.error(f"{what} has the unknown type {kind}, 0 to 12 are known")
    element = cursor.count("I", f"the element type of {short(key)}")
    count = cursor.count("Q", f"the length of {short(key)}")
    where = f"{cursor.path}: {what}"
    if element in NUMBER_CODES:
        code = NUMBER_CODES[element]
        return ArrayField(cursor.take(count * struct.calcsize(f"<{code}"), what), count, code, where)
    if element != STRING:
        raise GGUFError(f"{where} is an array of type {element}, numbers or strings are needed")
    return ArrayField(skip_strings(cursor, count, what), count, "s", where)


def skip_strings(cursor: Cursor, count: int, what: str) -> memoryview:
    """Walk over `count` strings, checking each length, and return the bytes they take."""
    start = position = cursor.position
    end = len(cursor.view)
    if count * 8 > cursor.left:
        cursor.take(count * 8, f"{what} ({count} strings)")
    for index in range(count):
        if position + 8 > end:
            cursor.position = position
            cursor.take(8, f"the length of element {index} of {what}")
        (length,) = LENGTH.unpack_from(cursor.view, position)
        position += 8 + length
        if position > end:
            cursor.position = position - length
            cursor.take(length, f"element {index} of {what}")
    cursor.position = position
    return cursor.view[start:position]


def read_tensors(cursor: Cursor, n_tensors: int, metadata: Metadata) -> dict[str, TensorInfo]:
    """The tensor table with absolute offsets; sizes, alignment, overlaps and the file's end are checked."""
    alignment = metadata.optional("general.alignment", int, 32)
    if alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment}, a power of two is needed")
    relative: dict[str, TensorInfo] = {}
    for _ in range(n_tensors):
        info = read_tensor_info(cursor)
        if info.name in relative:
            raise cursor.error(f"the tensor {short(info.name)} is there twice")
        if info.offset % alignment:
            raise cursor.error(
                f"the tensor {short(info.name)} begins at offset {info.offset}, a multiple of {alignment} "
                "is needed"
            )
        relative[info.name] = info
    start = -(-cursor.position // alignment) * alignment
    size = len(cursor.view)
    previous = None
    for info in sorted(relative.values(), key=lambda info: info.offset):
        if start + info.offset + info.n_bytes > size:
            raise cursor.error(
                f"truncated in the tensor data: {short(info.name)} needs {info.n_bytes} bytes at byte "
                f"{start + info.offset}, {max(0, size - start - info.offset)} are there"
            )
        if previous is not None and previous.offset + previous.n_bytes > info.offset:
            raise cursor.error(f"the tensors {short(previous.name)} and {short(info.name)} overlap")
        previous = info
    return {name: dataclasses.replace(info, offset=start + info.offset) for name, info in relative.items()}


def read_tensor_info(cursor: Cursor) -> TensorInfo:
    """One row of the tensor table; the offset is still relative to the data section."""
    name = cursor.text("a tensor name")
    n_dims = cursor.count("I", f"the number of dimensions of {short(name)}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.error(f"the tensor {short(name)} has {n_dims} dimensions, 1 to {MAX_DIMS} are needed")
    dims = [cursor.count("Q", f"a dimension of {short(name)}") for _ in range(n_dims)]
    type_name, block, block_bytes = ggml_type(cursor, name)
    offset = cursor.count("Q", f"the offset of {short(name)}")
    shape = tuple(reversed(dims))
    if 0 in shape or shape[-1] % block:
        raise cursor.error(
            f"the tensor {short(name)} has shape {list(shape)}, rows of {type_name} need a positive multiple "
            f"of {block} values"
        )
    return TensorInfo(name, shape, type_name, offset, math.prod(shape) // block * block_bytes)


def ggml_type(cursor: Cursor, name: str) -> tuple[str, int, int]:
    """Name, values per block and bytes per block of a tensor's type."""
    number = cursor.count("I", f"the type of {short(name)}")
    ggml = import_extra("gguf", "reading GGUF files")
    try:
        kind = ggml.GGMLQuantizationType(number)
        block, block_bytes = ggml.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise cursor.error(f"the tensor {short(name)} has the unsupported ggml type {number}") from None
    return kind.name, block, block_bytes
