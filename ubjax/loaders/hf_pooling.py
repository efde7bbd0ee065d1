"""What sentence-transformers keeps in a model folder: modules.json and the settings it points to, and the prompts."""

import dataclasses
from pathlib import PurePosixPath
from typing import Any

from ubjax.loaders.hf_folder import HFFolder
from ubjax.pooling import Pooling

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# In this order, and nothing else: leaving a module out would change the vectors.
ORDER = ("Transformer", "Pooling", "Normalize")
MODES = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
# Older folders have a flag for each mode.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompts:
    """Texts that come before a text, by name; `default`: the name of the one that is meant where none is named."""

    texts: dict[str, str]
    default: str | None = None


def read_pooling(folder: HFFolder) -> Pooling | None:
    """The pooling that a folder asks for; None where it has no modules.json.

    Raises FolderError for a module or a way of pooling that is not known: leaving it out would change the vectors.
    """
    if not (folder.path / MODULES).exists():
        return None
    modules = folder.json(MODULES, list)
    names = [_name(module) for module in modules]
    for name, module in zip(names, modules, strict=True):
        if name not in ORDER:
            raise folder.error(
                MODULES,
                f"has the module {name or module!r}, which is not supported: Transformer, Pooling and "
                "Normalize are known",
            )
    if tuple(names) not in (ORDER, ORDER[:2]):
        found = ", ".join(names) or "none"
        raise folder.error(
            MODULES, f"has the modules {found}; Transformer, Pooling and perhaps Normalize are needed"
        )
    if modules[0].get("path", "") not in ("", "."):
        raise folder.error(
            MODULES, f"has the model in {modules[0]['path']!r}, one in the folder itself is needed"
        )
    return Pooling(kind=_kind(folder, modules[1]), normalize=len(names) > 2)


def read_prompts(folder: HFFolder) -> Prompts:
    """The prompts of a folder; FolderError where they are no texts by name, or the default is none of them."""
    found = folder.optional_json(SETTINGS)
    texts, default = found.get("prompts") or {}, found.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise folder.error(SETTINGS, "its prompts are not texts by name, such are needed")
    if default is not None and (not isinstance(default, str) or default not in texts):
        raise folder.error(
            SETTINGS, f"its default_prompt_name is {default!r}, the name of a prompt is needed"
        )
    return Prompts(texts=texts, default=default)


def _name(module: Any) -> str:
    return str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""


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
    if found.get("include_prompt", True) is not True and any(read_prompts(folder).texts.values()):
        raise folder.error(name, "leaves prompts out of the pooling (include_prompt), which is not supported")
    return MODES[mode]
