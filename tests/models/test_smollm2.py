"""A real model: SmolLM2's first prompt of the golden file, all five rows, through the step alone."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from tests.helpers import golden
from tests.test_step import UNIFIED, staged_of
from ubjax.buckets import Bucket
from ubjax.loaders import load_model
from ubjax.memory.cells import Cells
from ubjax.step import Step


@pytest.mark.slow
def test_the_first_prompt_has_llama_cpps_logits():
    model, _ = load_model("smollm2")
    (data,) = golden("e2e_smollm2.json.gz")
    scenario = next(s for s in data["scenarios"] if s["name"] == "greedy_ub512")
    decode = scenario["ops"][0]
    rows = [(token["id"], token["pos"], 0) for token in decode["tokens"]]
    bucket = Bucket(n_blocks=1, n_block_rows=8, n_outputs=8)
    step = Step(model, (UNIFIED,))
    staged = staged_of((Cells.empty(UNIFIED),), UNIFIED, rows, bucket, n_vocab=model.config.n_vocab)
    logits = np.asarray(step(step.new_kv((32,)), staged)[0])
    assert len(decode["rows"]) == len(rows) == 5
    for row, found in zip(decode["rows"], logits, strict=False):
        ids, values = zip(*row["top"], strict=True)
        np.testing.assert_allclose(found[list(ids)], values, atol=5e-4)
        assert found.argmax() == ids[0]
        np.testing.assert_allclose(logsumexp(jnp.asarray(found)), row["lse"], atol=2e-4)
