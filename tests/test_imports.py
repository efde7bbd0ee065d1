"""Imports go downwards only, and nothing grows too long; the checker is tried on made-up sources first."""

from pathlib import Path

import pytest

from tests.house import FLOORS, PACKAGE, import_complaints, read_sources, size_complaints

ROOT = Path(__file__).parents[1]
PYTHON_FOLDERS = (PACKAGE, "tests", "benchmarks", "notebooks")


def test_imports_of_the_package_go_downwards():
    assert import_complaints(read_sources(ROOT)) == []


def test_files_and_functions_of_the_project_are_short():
    files = [path for folder in PYTHON_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert ROOT / PACKAGE / "__init__.py" in files
    complaints = [size_complaints(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in files]
    assert [line for lines in complaints for line in lines] == []


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in (ROOT / PACKAGE).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_room_has_two_floors():
    names = [name for floor in FLOORS for name in floor]
    assert len(names) == len(set(names))


# A small house in order: every allowed kind of import once.
HOUSE = {
    "ubjax.__init__": "from ubjax.engine import Engine\n",
    "ubjax.pytree": "import dataclasses\n",
    "ubjax.config": "",
    "ubjax.status": "from ubjax.pytree import pytree\n",
    "ubjax.batch": "from . import config\nfrom .status import Status\n",
    "ubjax.split.__init__": "from .simple import split_simple\n",
    "ubjax.split.plan": "import jax\n",
    "ubjax.split.simple": "from ubjax.batch import Batch\nfrom .plan import P\nfrom ..config import C\n",
    "ubjax.memory.__init__": "from ubjax import split\n",
    "ubjax.models.__init__": "from flax import nnx\nimport ubjax.memory\n",
    "ubjax.loaders.__init__": "",
    "ubjax.loaders.gguf": "def read():\n    import gguf\n    return gguf\n",
    "ubjax.engine": "from ubjax.models import M\nif TYPE_CHECKING:\n    import gguf\n",
    "ubjax.verify": "from ubjax.loaders.gguf import read\n",
    "ubjax.cli": "from ubjax import __version__\nimport ubjax.loaders.gguf\n",
}


def test_a_house_in_order_passes():
    assert import_complaints(HOUSE) == []


BROKEN = [
    ("ubjax.batch", "from ubjax.engine import Engine", "engine does not lie below batch"),
    ("ubjax.batch", "def late():\n    import ubjax.engine", "engine does not lie below batch"),
    ("ubjax.batch", "from .split.plan import SplitPlan", "split does not lie below batch"),
    ("ubjax.split.plan", "from ..memory import Cells", "memory does not lie below split"),
    ("ubjax.config", "from ubjax import pytree", "pytree does not lie below config"),
    ("ubjax.engine", "from ubjax import __version__", "__init__ does not lie below engine"),
    ("ubjax.__init__", "import ubjax.cli", "cli does not lie below __init__"),
    (
        "ubjax.engine",
        "from ubjax.loaders.gguf import read",
        "loaders is only for __init__, cli, testing, verify",
    ),
    ("ubjax.models.__init__", "from ubjax.split.plan import SplitPlan", "models knows nothing of split"),
    ("ubjax.memory.__init__", "import flax.nnx", "memory knows nothing of flax"),
    ("ubjax.split.plan", "def late():\n    from flax import nnx", "split knows nothing of flax"),
    ("ubjax.status", "from flax import struct", "status knows nothing of flax"),
    ("ubjax.cli", "import rich.table", "rich is optional: import it inside the function that needs it"),
    ("ubjax.cli", "try:\n    import rich\nexcept ImportError:\n    rich = None", "rich is optional"),
    ("ubjax.loaders.gguf", "class Reader:\n    from gguf import GGUFReader", "gguf is optional"),
    ("ubjax.engine", "if TYPE_CHECKING:\n    pass\nelse:\n    import gguf", "gguf is optional"),
    ("ubjax.attic.__init__", "", "attic has no floor: give it one in tests/house.py"),
    ("ubjax.attic", "", "attic has no floor: give it one in tests/house.py"),
    ("ubjax.attic.box", "", "attic has no floor: give it one in tests/house.py"),
    ("ubjax.cli", "import ubjax.attic", "attic has no floor: give it one in tests/house.py"),
]


@pytest.mark.parametrize(("module", "source", "sentence"), BROKEN)
def test_a_broken_rule_is_found(module, source, sentence):
    complaints = import_complaints(HOUSE | {module: source})
    assert len(complaints) == 1
    assert complaints[0].startswith(f"{module}:")
    assert sentence in complaints[0]


def test_the_line_of_a_broken_rule_is_named():
    source = '"""A docstring."""\n\nimport jax\nfrom ubjax.cli import main\n'
    assert import_complaints({"ubjax.batch": source}) == ["ubjax.batch:4: cli does not lie below batch"]


def test_a_long_file_is_found():
    assert size_complaints("a.py", "x = 1\n" * 300) == []
    assert size_complaints("a.py", "x = 1\n" * 301) == ["a.py:1: 301 lines, 300 allowed"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_long_function_is_found(kind):
    assert size_complaints("a.py", f"{kind} f():\n" + "    x = 1\n" * 59) == []
    source = "y = 0\n" + f"{kind} f():\n" + "    x = 1\n" * 60
    assert size_complaints("a.py", source) == ["a.py:2: f has 61 lines, 60 allowed"]
