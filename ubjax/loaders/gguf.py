"""Open a GGUF file: metadata, tensor table, and tensors one at a time, as float32 or as they are stored.

The file is memory-mapped: opening costs the header only, and reading a tensor costs that tensor only. The
block formats are those of `gguf.quants`. Matrices are [out, in], as in `x @ w.T`.
"""

import contextlib
import dataclasses
import hashlib
import math
import mmap
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8

from ubjax.loaders.blocks import FORMATS, read_blocks
from ubjax.loaders.extras import import_extra
from ubjax.loaders.gguf_header import TensorInfo, read_header
from ubjax.loaders.metadata import GGUFError, Metadata, short
from ubjax.models.weights import Tensor

__all__ = ["FileParts", "GGUFError", "GGUFFile", "TensorInfo", "open_gguf"]

SLAB = 1 << 17  # values dequantized at once: the temporaries of gguf.quants stay in the CPU's cache


class GGUFFile:
    """An open GGUF file.

    `metadata` maps keys to plain Python values, `tensors` maps names to `TensorInfo` in the order of the
    file, `version` is the file's GGUF version.
    """

    def __init__(self, path: Path, view: memoryview) -> None:
        header = read_header(view, path)
        self.path = path
        self.version: int = header.version
        self.metadata: Metadata = header.metadata
        self.tensors: dict[str, TensorInfo] = header.tensors
        self._view = view

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        return self._view.nbytes

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"

    @property
    def architecture(self) -> str:
        """`general.architecture`, such as "llama"; GGUFError when the file does not say it."""
        return self.metadata.require("general.architecture", str)

    def info(self, name: str) -> TensorInfo:
        """The table's row of one tensor; GGUFError when there is none of that name."""
        if name not in self.tensors:
            raise self.metadata.error(f"there is no tensor {short(name)}")
        return self.tensors[name]

    def check_type(self, name: str) -> None:
        """GGUFError when the type of the tensor cannot be dequantized (integers, and a few block formats)."""
        info = self.info(name)
        ggml = import_extra("gguf", "reading GGUF files")
        kind = ggml.GGMLQuantizationType[info.type_name]
        block_bytes = ggml.GGML_QUANT_SIZES[kind][1]
        try:
            ggml.quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            raise self.metadata.error(
                f"the tensor {short(name)} has type {info.type_name}, which cannot be dequantized"
            ) from None

    def tensor(self, name: str) -> Float32[np.ndarray, "*shape"]:
        """The tensor as a fresh float32 array in numpy order: [out, in] for a matrix, [n] for a vector.

        Raises:
            GGUFError: no such tensor, or a type that cannot be dequantized.
        """
        self.check_type(name)
        info, raw = self.info(name), self._rows(name)
        ggml = import_extra("gguf", "reading GGUF files")
        kind = ggml.GGMLQuantizationType[info.type_name]
        n_rows = len(raw)
        values = np.empty((n_rows, info.shape[-1]), np.float32)
        step = max(1, SLAB // info.shape[-1])
        with np.errstate(over="ignore", invalid="ignore"):  # a hostile scale may be infinite
            for row in range(0, n_rows, step):
                values[row : row + step] = ggml.quants.dequantize(raw[row : row + step], kind)
        return values.reshape(info.shape)

    def stored(self, name: str) -> Tensor:
        """A matrix of one of `blocks.FORMATS` as `QuantizedRows`, unchanged; other tensors as `tensor` gives them."""
        info = self.info(name)
        if len(info.shape) == 2 and info.type_name in FORMATS:
            return read_blocks(self._rows(name), info.type_name)
        return self.tensor(name)

    def _rows(self, name: str) -> UInt8[np.ndarray, "rows row_bytes"]:
        """The bytes of a tensor, row by row, as they lie in the file."""
        info = self.info(name)
        stored = self._view[info.offset : info.offset + info.n_bytes]
        return np.frombuffer(stored, np.uint8).reshape(math.prod(info.shape[:-1]), -1)


@dataclasses.dataclass(frozen=True)
class FileParts:
    """A file that lies in parts, in order, with the SHA-256 (hex) of the whole."""

    parts: tuple[Path, ...]
    sha256: str

    @property
    def path(self) -> Path:
        """Where the whole file would lie: the first part without its last suffix."""
        return self.parts[0].with_suffix("")


def open_gguf(path: str | os.PathLike[str] | FileParts) -> GGUFFile:
    """Map a GGUF file and read its header; a file in parts is read into memory and checked as a whole.

    Raises:
        GGUFError: missing file, directory or device, empty, not GGUF, unsupported version, truncated in the
            header or in a tensor's data, unknown tensor type, or counts and sizes that cannot be; parts that are not
            the file that they should be.
    """
    if isinstance(path, FileParts):
        return GGUFFile(path.path, _join(path))
    path = Path(path)
    with _readable(path) as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    return GGUFFile(path, memoryview(mapped))


def _join(source: FileParts) -> memoryview:
    """The parts one behind the other, in memory of their own: nothing is written to disk."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_readable(path)) for path in source.parts]
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        whole, start = memoryview(bytearray(sum(sizes))), 0
        for file, size in zip(files, sizes, strict=True):
            file.readinto(whole[start : start + size])
            start += size
    found = hashlib.sha256(whole).hexdigest()
    if found != source.sha256:
        raise GGUFError(
            f"{source.path}: its {len(sizes)} parts have SHA-256 {found}, {source.sha256} is needed: "
            "install the packages again"
        )
    return whole.toreadonly()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open to be read; whatever else there may be is one sentence."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                yield file
            return
    except FileNotFoundError:
        raise GGUFError(f"{path}: there is no such file") from None
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read: {error.strerror}") from None
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise GGUFError(f"{path}: is {kind}, a GGUF file is needed")
