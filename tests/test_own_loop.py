"""docs/own_loop.md runs as it stands, and its loop with a greedy rule gives the tokens of the ready-made one."""

import dataclasses
import doctest
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

PAGE = Path(__file__).parent.parent / "docs" / "own_loop.md"


def run_page():
    """The names that the page's code leaves behind, after its examples gave what it says."""
    names, runner = {}, doctest.DocTestRunner()
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        if block.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(block, names, PAGE.name, str(PAGE), 0)
            runner.run(example, clear_globs=False)
            names |= example.globs
        else:
            exec(compile(block, PAGE, "exec"), names)
    assert runner.summarize().failed == 0 and runner.tries >= 4
    return names


@pytest.mark.slow
def test_the_page_runs_and_its_loop_with_a_greedy_rule_is_the_ready_made_one():
    page = run_page()
    step, before = page["step"], page["prepared"].cells
    pos = np.asarray([6, 2, 3, 0], np.int32)
    rows = dataclasses.replace(page["rows"], token=page["first"], pos=pos, active=page["held"])
    found = []
    for loop in ("own_loop", "loop"):
        kv = step.new_kv((32,))
        empty = (page["Cells"].empty(page["memory"]),)
        _, kv = page["read_prompts"](step.leaves, kv, empty, page["batch"], page["prepared"])
        if loop == "own_loop":
            tokens, cells, kv, _ = page[loop](step.leaves, kv, before, rows, 6, greedy_rule, 8)
        else:
            last = page["LastTokens"].of(n_seq_max=4)
            state = page["LoopState"](cells=before, kv=kv, rows=rows, last=last)
            greedy = page["SamplingParams"].of(4)
            result, state = page[loop](state, greedy, page["free"], np.int32(6))
            counted = np.arange(8)[None] < np.asarray(result.count)[:, None]
            tokens, cells = jnp.where(counted, result.tokens, -1), state.cells
        found.append((tokens, cells))
    assert (np.asarray(found[0][0])[:3, :1] >= 0).all()
    jax.tree.map(np.testing.assert_array_equal, *found)


def greedy_rule(logits, rows):
    return jnp.argmax(logits, axis=1).astype(jnp.int32)
