"""The safetensors format: 8 bytes of header length (little-endian), a JSON header, raw data.

    {"__metadata__": {key: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

The tensors cover the data without hole or overlap. What is read is untrusted: it is the format, whole, or one
ValueError, and no more memory than the bytes that are there. Format: github.com/huggingface/safetensors.
"""

import dataclasses
import hashlib
import io
import json
import math
import reprlib
import struct
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

DTYPES = {
    name: np.dtype(kind)
    for name, kind in {
        "F32": np.float32,
        "F16": np.float16,
        "BF16": jnp.bfloat16,
        "I32": np.int32,
        "U32": np.uint32,
    }.items()
}
# What the files of others hold besides; a model's weights are none of these, tables of positions and the like are.
MORE_DTYPES = {
    "F64": np.dtype(np.float64),
    **{f"I{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 64)},
    **{f"U{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 64)},
    "BOOL": np.dtype(bool),
}
NAMES = {dtype: name for name, dtype in (DTYPES | MORE_DTYPES).items()}
Kind = TypeVar("Kind", dict, list)
METADATA = "__metadata__"
DIGEST = "data_blake2b"  # of the data, in the metadata
MAX_HEADER = 2**20  # bytes; a state's header has some thousand
MAX_RANK = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Where a tensor lies in the data and what it is; its size is that of its shape and dtype."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{NAMES[self.dtype]} {list(self.shape)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says of itself: metadata, tensors by name, bytes of data."""

    metadata: dict[str, str]
    entries: dict[str, Entry]
    n_bytes: int


def encode(metadata: Mapping[str, str], tensors: Mapping[str, np.ndarray]) -> Iterator[memoryview]:
    """The file in pieces: the header with the data's digest, then the tensors in the order given."""
    digest, header, at = hashlib.blake2b(digest_size=16), {}, 0
    pieces = [_bytes_of(array) for array in tensors.values()]
    for (name, array), piece in zip(tensors.items(), pieces, strict=True):
        digest.update(piece)
        place = {"shape": list(array.shape), "data_offsets": [at, at + len(piece)]}
        header[name] = {"dtype": NAMES[array.dtype], **place}
        at += len(piece)
    header = {METADATA: {**metadata, DIGEST: digest.hexdigest()}, **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    yield memoryview(struct.pack("<Q", len(text)) + text)
    yield from pieces


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read_header(
    file: BufferedIOBase,
    n_bytes: int,
    *,
    max_header: int = MAX_HEADER,
    dtypes: Mapping[str, np.dtype] = DTYPES,
) -> Header:
    """The header of a file of n_bytes, read from its beginning; the data follows."""
    start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"{n_bytes} bytes were found, a header of 8 or more is needed")
    (length,) = struct.unpack("<Q", start)
    room = min(n_bytes - 8, max_header)
    if not 2 <= length <= room:
        raise ValueError(
            f"its header claims {length} bytes, 2 to {room} are possible here: "
            "this is no safetensors file, or a damaged one"
        )
    return parse_header(file.read(length), n_bytes - 8 - length, dtypes)


def parse_header(text: bytes, n_bytes: int, dtypes: Mapping[str, np.dtype] = DTYPES) -> Header:
    """The header from its JSON text; n_bytes of data are there."""
    found = parse_json(text, "its header")
    metadata = found.pop(METADATA, {})
    texts = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if not texts:
        raise ValueError(f"its {METADATA} is not an object of texts")
    entries = {name: _entry(name, value, n_bytes, dtypes) for name, value in found.items()}
    _check_tiling(entries, n_bytes)
    return Header(metadata=metadata, entries=entries, n_bytes=n_bytes)


def parse_json(text: bytes, what: str, kind: type[Kind] = dict) -> Kind:
    """An untrusted JSON object (or list); ValueError about `what` for anything else, a name that is there twice too."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply to be read") from None
    except ValueError as error:  # of UTF-8, of JSON, of a number
        raise ValueError(f"{what} is no JSON: {error}") from None
    if not isinstance(found, kind):
        needed = "an object" if kind is dict else "a list"
        raise ValueError(f"{what} is {type(found).__name__}, {needed} is needed")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _sizes(value: Any, most: int) -> bool:
    """Whether this is a list of at most so many sizes."""
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(n) is int and 0 <= n < 2**62 for n in value)
    )


def _entry(name: str, value: Any, n_bytes: int, dtypes: Mapping[str, np.dtype]) -> Entry:
    what = f"the tensor {reprlib.repr(name)}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{what} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise ValueError(f"{what} has dtype {reprlib.repr(dtype)}, one of {', '.join(dtypes)} is needed")
    if not _sizes(shape, MAX_RANK):
        raise ValueError(f"{what} has shape {reprlib.repr(shape)}, at most {MAX_RANK} sizes are needed")
    if not _sizes(offsets, 2) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{what} lies at {reprlib.repr(offsets)}, two ascending offsets are needed")
    if offsets[1] > n_bytes:
        raise ValueError(f"{what} ends at byte {offsets[1]} of the data, {n_bytes} bytes of data were found")
    needed = math.prod(shape) * dtypes[dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise ValueError(f"{what} has {offsets[1] - offsets[0]} bytes, {needed} are needed")
    return Entry(dtype=dtypes[dtype], shape=tuple(shape), begin=offsets[0], end=offsets[1])


def _check_tiling(entries: Mapping[str, Entry], n_bytes: int) -> None:
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            raise ValueError(
                f"the tensor {reprlib.repr(name)} begins at byte {entry.begin} of the data, {at} is needed"
            )
        at = entry.end
    if at != n_bytes:
        raise ValueError(f"its tensors have {at} bytes of data, {n_bytes} were found")


def read_tensors(file: BufferedIOBase, header: Header) -> dict[str, np.ndarray]:
    """The tensors, as views of the data that is read now; the digest of the metadata has to be that of the data."""
    data = file.read(header.n_bytes)
    if len(data) < header.n_bytes:
        raise ValueError(f"{len(data)} bytes of data were found, {header.n_bytes} are needed")
    found, needed = hashlib.blake2b(data, digest_size=16).hexdigest(), header.metadata.get(DIGEST)
    if found != needed:
        raise ValueError(f"its data has the digest {found}, {reprlib.repr(needed)} is needed: it is damaged")
    return {name: _view(data, entry) for name, entry in header.entries.items()}


def _view(data: bytes, entry: Entry) -> np.ndarray:
    flat = np.frombuffer(data, np.uint8)[entry.begin : entry.end]
    return flat.view(entry.dtype).reshape(entry.shape)


def reader(data: bytes) -> tuple[BufferedIOBase, int]:
    """Bytes as a file and its size."""
    return io.BytesIO(data), len(data)
