"""The notebooks run, and what is committed is what they show."""

import pytest
from nbformat import read

from notebooks.execute import execute, paths, tidied

MAX_BYTES = 300_000
PATHS = paths()
AGAIN = "run `make notebooks` and look at the difference"


def outputs(cell):
    """What a code cell shows: its pictures in SVG as they are, the kinds of the rest."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {})
        kinds = (output.output_type, output.get("name"), *sorted(data))
        html = data.get("text/html", "")
        one = (*kinds, html if html.startswith("<svg") else "")
        if one[0] != "stream" or one not in shown[-1:]:  # how often a stream is flushed depends on the time
            shown.append(one)
    return shown


def test_the_notebooks_are_these():
    assert [path.stem for path in PATHS] == [
        "01_batch_to_ubatch",
        "02_kv_prepare",
        "03_recompilations_and_n_ubatch",
        "04_decode_loop",
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_they_are_committed_with_outputs_and_nothing_else(path):
    assert path.stat().st_size < MAX_BYTES
    notebook = read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), AGAIN
    kinds = [kind[:2] for cell in code for kind in outputs(cell)]
    assert len(kinds) >= len(code) - 1  # all but the imports show something
    assert set(kinds) <= {("stream", "stdout"), ("execute_result", None), ("display_data", None)}
    assert tidied(read(path, as_version=4)) == notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_they_run_and_show_what_is_committed(path, monkeypatch):
    """What takes a model takes a tiny one here; the committed outputs are those of a real one."""
    monkeypatch.setenv("UBJAX_NOTEBOOK_MODEL", "tiny")
    committed = read(path, as_version=4)
    for before, now in zip(committed.cells, execute(path).cells, strict=True):
        if now.cell_type == "code":
            assert outputs(before) == outputs(now), f"{path.name}, {now.id}: {AGAIN}"
