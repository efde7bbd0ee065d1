"""Run the notebooks and keep what they show: `python notebooks/execute.py [FILE ...]` rewrites them, all by default.

What differs from run to run is left out (times, kernel versions), so that a diff shows what has changed.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parent
TIMEOUT = 300  # seconds for one cell


def paths() -> list[Path]:
    """The notebooks, in the order in which they are meant to be read."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, run in a kernel of its own; raises CellExecutionError where a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        config=Config(KernelManager={"transport": "ipc"}),  # no ports
        timeout=TIMEOUT,
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER.parent)}},  # so that the checkout's ubjax is imported
    )
    client.execute()
    return tidied(notebook)


def tidied(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without what its content does not depend on."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:02}"
        cell.metadata = {}
    return notebook


def main() -> None:
    """Execute and write."""
    for path in [Path(name) for name in sys.argv[1:]] or paths():
        start = time.monotonic()
        notebook = execute(path)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - start:.0f} s, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
