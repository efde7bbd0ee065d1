"""A real model: Gemma 3's first prompt of the golden file through the decoder alone.

The bounds are wide because the library reads GELU from a table in half precision.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from tests.helpers import golden
from tests.models.helpers import Cache
from ubjax.loaders import load_model


@pytest.mark.slow
def test_the_first_prompt_has_llama_cpps_logits():
    model, tokenizer = load_model("gemma3")
    (data,) = golden("e2e_gemma3.json.gz")
    scenario = next(s for s in data["scenarios"] if s["name"] == "greedy_ub512")
    decode = scenario["ops"][0]
    ids = [token["id"] for token in decode["tokens"]]
    assert tokenizer.encode(scenario["text"]) == ids
    rows = [(token["id"], token["pos"], 0, i) for i, token in enumerate(decode["tokens"])]
    logits = Cache(model, n_cells=32).run([rows], length=8, n_outputs=8)
    assert len(decode["rows"]) == len(logits) == 6
    for row, found in zip(decode["rows"], logits, strict=True):
        ids, values = zip(*row["top"], strict=True)
        np.testing.assert_allclose(found[list(ids)], values, atol=1.5e-2)
        assert found.argmax() == ids[0]
        np.testing.assert_allclose(logsumexp(jnp.asarray(found)), row["lse"], atol=5e-3)
