"""jax's persistent compilation cache in the user's cache folder, switched on by a call and never by an import."""

import hashlib
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,  # a second saved often is worth a file
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def use_compilation_cache(folder: str | Path | None = None) -> Path:
    """Keep compiled programs in files, for this process and later ones; returns their folder.

    `folder`: where; default a folder of this jaxlib and this processor in the user's cache folder
    (XDG_CACHE_HOME or ~/.cache, ~/Library/Caches, LOCALAPPDATA). What the user has set before, by
    jax_compilation_cache_dir or the environment's JAX_COMPILATION_CACHE_DIR, wins: then nothing is changed.

    Tracing and lowering remain, a third of the time that a small program takes.
    """
    chosen = jax.config.values["jax_compilation_cache_dir"]
    if chosen is not None:
        return Path(chosen)
    path = default_folder() if folder is None else Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, value in OPTIONS.items():
        jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(path))
    compilation_cache.reset_cache()  # jax decides once whether there is one, at the first compilation
    return path


def default_folder() -> Path:
    """The folder for this jaxlib and this processor: a program compiled for another one may not run."""
    return _cache_home() / "ubjax" / f"jaxlib-{metadata.version('jaxlib')}-{_processor()}"


def _cache_home() -> Path:
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return Path(xdg) if os.path.isabs(xdg) else home / ".cache"  # the rule of the XDG specification


def _processor() -> str:
    """A short name for the instructions that this processor has."""
    known = [platform.processor(), *np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        known += re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)[:2]
    return f"{platform.machine()}-{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}"
