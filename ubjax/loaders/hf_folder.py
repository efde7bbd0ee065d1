"""A Hugging Face model folder: config.json, weights in safetensors files, tokenizer.json; nothing in it is trusted.

The weights are one file `model.safetensors`, or several that `model.safetensors.index.json` lists. They are
memory-mapped: opening costs the headers, a tensor costs that tensor. Code that a folder carries is never run.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from ubjax.loaders.metadata import short
from ubjax.safetensors import DTYPES, MORE_DTYPES, Entry, Kind, parse_json, read_header

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MAX_JSON = 2**28  # bytes; the largest tokenizers have some 30 MiB
MAX_HEADER = 2**26
MAX_FILES = 4096
FLOATS = tuple(map(np.dtype, (np.float32, np.float16, jnp.bfloat16, np.float64)))
# Tables that a model computes itself; older files carry them.
COMPUTED = ("rotary_emb.inv_freq", "embeddings.position_ids")


class FolderError(ValueError):
    """A model folder that can't be used: one sentence with the file, what was found and what is needed."""


class HFFolder:
    """An open folder: `config` is its config.json, `tensors` what its weights are, by name."""

    def __init__(self, path: Path):
        self.path = path
        self.config = self.json(CONFIG)
        self.tensors: dict[str, Entry] = {}
        self._data: dict[str, memoryview] = {}
        for name in _weight_files(self):
            self._map(path / name)

    def __repr__(self) -> str:
        return f"HFFolder({str(self.path)!r}, {len(self.tensors)} tensors)"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: entry.shape for name, entry in self.tensors.items()}

    def json(self, name: str, kind: type[Kind] = dict) -> Kind:
        """A file that holds a JSON object, or list."""
        try:
            return parse_json(self.read(name), "it", kind)
        except ValueError as error:
            raise error if isinstance(error, FolderError) else self.error(name, str(error)) from None

    def optional_json(self, name: str) -> dict[str, Any]:
        """As `json`; {} where there is no such file."""
        return self.json(name) if (self.path / name).exists() else {}

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""
        path = self.path / name
        try:
            if not path.is_file():
                raise self.error(name, "there is no such file")
            if (n := path.stat().st_size) > MAX_JSON:
                raise self.error(name, f"has {n} bytes, at most {MAX_JSON} are read")
            return path.read_bytes()
        except OSError as error:
            raise self.error(name, f"cannot be read: {error.strerror}") from None

    def error(self, name: str, text: str) -> FolderError:
        """A FolderError about a file of the folder."""
        return FolderError(f"{self.path / name}: {text}")

    def tensor(self, name: str) -> Float32[np.ndarray, "*shape"]:
        """A tensor as float32 (one that is stored so: a view of the file, not to be written to)."""
        entry = self.tensors[name]
        if entry.dtype not in FLOATS:
            raise FolderError(f"{self.path}: the tensor {short(name)} is {entry}, floating point is needed")
        raw = np.frombuffer(self._data[name], np.uint8)[entry.begin : entry.end]
        values = raw.view(entry.dtype).reshape(entry.shape)
        with np.errstate(over="ignore"):  # float64 beyond float32
            return values.astype(np.float32, copy=False)

    def weights(self) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
        """All tensors, one at a time."""
        for name in self.tensors:
            yield name, self.tensor(name)

    def _map(self, path: Path) -> None:
        name = path.name
        try:
            if not path.is_file():
                raise self.error(name, "there is no such file")
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                header = read_header(file, size, max_header=MAX_HEADER, dtypes=DTYPES | MORE_DTYPES)
                start = file.tell()
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start:]
        except OSError as error:
            raise self.error(name, f"cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise error if isinstance(error, FolderError) else self.error(name, str(error)) from None
        for tensor, entry in header.entries.items():
            if tensor in self.tensors:
                raise self.error(name, f"the tensor {short(tensor)} is in two files")
            if not tensor.endswith(COMPUTED):
                self.tensors[tensor] = entry
                self._data[tensor] = mapped


def is_folder(path: Path) -> bool:
    """Whether this is a folder with a config.json."""
    return path.is_dir() and (path / CONFIG).is_file()


def _weight_files(folder: HFFolder) -> list[str]:
    """The names of the files with the weights."""
    if (folder.path / WEIGHTS).exists():
        return [WEIGHTS]
    if not (folder.path / INDEX).exists():
        raise FolderError(f"{folder.path} has neither {WEIGHTS} nor {INDEX}, one of them is needed")
    found = folder.json(INDEX).get("weight_map")
    if not isinstance(found, Mapping) or not found:
        raise folder.error(INDEX, "its weight_map is not an object of file names, one is needed")
    names = {name: None for name in found.values() if isinstance(name, str)}
    for name in found.values():
        plain = isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")
        if not plain:
            raise folder.error(INDEX, f"names the file {short(str(name))}, one of the folder's own is needed")
    if len(names) > MAX_FILES:
        raise folder.error(INDEX, f"names {len(names)} files, at most {MAX_FILES} are read")
    return list(names)
