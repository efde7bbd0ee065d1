"""`benchmarks/weights.py`: what logits lose is told from their distributions."""

import jax
import numpy as np
import pytest
from flax import nnx

from benchmarks import weights
from benchmarks.peers import gguf_file
from tests.models.helpers import GROUPED, decoder


def test_what_is_lost_is_counted_against_float32():
    base = np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    assert weights.lost(base, base) == (1.0, 0.0)
    other = np.log([[0.3, 0.5, 0.2], [0.1, 0.8, 0.1]])
    same, divergence = weights.lost(other, base)
    assert same == 0.5
    np.testing.assert_allclose(divergence, (0.5 * np.log(0.5 / 0.3) + 0.3 * np.log(0.3 / 0.5)) / 2)


def test_probabilities_are_those_of_every_token():
    model = decoder(GROUPED)
    found = weights.log_probabilities(model, np.arange(8))
    assert found.shape == (8, GROUPED.n_vocab)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1)
    assert weights.n_bytes(model) == sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))


def test_decodes_in_one_cache_and_a_whole_prompt_are_timed():
    assert [work.name for work in weights.TIMED] == ["decode 1", "decode 4", "decode 16", "prefill 512"]


@pytest.mark.slow
def test_a_process_needs_less_with_narrow_weights():
    """513 MiB in float32, 92 as stored: at least half of that is saved while it runs."""
    file = gguf_file("smollm2")
    most = {dtype: weights.peak(file, dtype) for dtype in ("float32", "stored")}
    assert most["float32"] > 513 * 2**20
    assert most["float32"] - most["stored"] > (513 - 92) / 2 * 2**20
