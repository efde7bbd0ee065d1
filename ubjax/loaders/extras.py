"""The optional packages of the extras `gguf` and `hub`, imported on first use: `import ubjax` works without them."""

import importlib
from types import ModuleType


def import_extra(package: str, purpose: str) -> ModuleType:
    """Import `package`; when it is not installed the ImportError is one sentence that says how to get it."""
    extra = "hub" if package == "huggingface_hub" else "gguf"
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs the package {package} ({error}): pip install 'ubjax[{extra}]'"
        ) from None
