"""What sentence-transformers keeps in a model folder about pooling: modules.json and the settings it points to."""

from pathlib import PurePosixPath
from typing import Any

from ubjax.loaders.hf_folder import HFFolder
from ubjax.pooling import Pooling

MODULES = "modules.json"
MODES = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
# Older folders have a flag for each mode.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(folder: HFFolder) -> Pooling | None:
    """The pooling that a folder asks for; None where it has no modules.json.

    Raises FolderError for a module or a way of pooling that is not known: leaving it out would change the vectors.
    """
    if not (folder.path / MODULES).exists():
        return None
    kind, normalize = "mean", False
    for module in folder.json(MODULES, list):
        name = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if name == "Pooling":
            kind = _kind(folder, module)
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise folder.error(
                MODULES, f"has the module {name or module!r}, Transformer, Pooling and Normalize are known"
            )
    return Pooling(kind=kind, normalize=normalize)


def _kind(folder: HFFolder, module: dict[str, Any]) -> str:
    place = PurePosixPath(str(module.get("path", "")))
    if place.is_absolute() or ".." in place.parts:
        raise folder.error(MODULES, f"names the path {str(place)!r}, one inside the folder is needed")
    name = str(place / "config.json")
    found = folder.json(name)
    modes = [
        FLAGS.get(key, key) for key, flag in found.items() if key.startswith("pooling_mode_") and flag is True
    ]
    mode = found.get("pooling_mode", modes[0] if len(modes) == 1 else modes)
    if not isinstance(mode, str) or mode not in MODES:
        raise folder.error(name, f"asks for the pooling {mode!r}, one of {', '.join(MODES)} is needed")
    return MODES[mode]
