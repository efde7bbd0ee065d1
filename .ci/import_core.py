"""Import every module of the installed ubjax where nothing but the core dependencies is installed."""

import importlib
import importlib.util
import pkgutil
import sys

# flax brings rich along, so its absence can't be asked for.
EXTRAS = ("gguf", "tokenizers", "jinja2", "matplotlib", "nbclient", "pytest", "beartype")

present = [name for name in EXTRAS if importlib.util.find_spec(name)]
if present:
    sys.exit(f"This check needs a virtual environment without the extras; found: {', '.join(present)}.")

package = importlib.import_module("ubjax")
# A pytest plugin: pytest itself imports it.
names = [
    found.name for found in pkgutil.walk_packages(package.__path__, "ubjax.") if found.name != "ubjax.testing"
]
for name in names:
    importlib.import_module(name)
print(f"imported ubjax and its {len(names)} modules from {package.__path__[0]}")
