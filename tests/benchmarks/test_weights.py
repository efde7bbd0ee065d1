"""`benchmarks/weights.py`: what logits lose is told from their distributions."""

import jax
import numpy as np
from flax import nnx

from benchmarks import weights
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


def test_every_way_to_store_weights_but_one_is_timed():
    assert weights.DTYPES == ("float32", "bfloat16", "int8", "q8_0", "stored")
    assert [work.name for work in weights.TIMED] == ["decode 1", "decode 4", "decode 16", "prefill 512"]
