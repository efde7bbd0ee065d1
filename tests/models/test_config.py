"""Configurations from a file's hyperparameters, and the sizes that can't be."""

import dataclasses

import pytest

from tests.models.helpers import GROUPED
from ubjax.models.config import DecoderConfig

SMOLLM2 = {
    "architecture": "llama",
    "block_count": 30,
    "context_length": 8192,
    "embedding_length": 576,
    "feed_forward_length": 1536,
    "head_count": 9,
    "head_count_kv": 3,
    "key_length": 64,
    "value_length": 64,
    "rope_dimension_count": 64,
    "rope_freq_base": 100000.0,
    "layer_norm_rms_epsilon": 1e-5,
    "rope_scaling": None,
    "vocab_size": 49152,
    "tie_embeddings": True,
    "optional_tensors": (),
}


def test_from_hyperparameters():
    assert DecoderConfig.from_gguf(SMOLLM2) == DecoderConfig(
        architecture="llama",
        n_layers=30,
        n_embd=576,
        n_ff=1536,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        n_vocab=49152,
        n_ctx_train=8192,
        rope_dim=64,
        rope_theta=100000.0,
        norm_eps=1e-5,
        tie_embeddings=True,
    )


def test_what_a_file_may_have_beside():
    optional = ("attn_q.bias", "ffn_down.bias", "output.weight", "rope_freqs.weight")
    config = DecoderConfig.from_gguf(SMOLLM2 | {"tie_embeddings": False, "optional_tensors": optional})
    assert (config.biases, config.rope_factors) == (("attn_q", "ffn_down"), True)
    assert not config.tie_embeddings


def test_equal_configurations_are_one_key():
    assert hash(DecoderConfig.from_gguf(SMOLLM2)) == hash(DecoderConfig.from_gguf(dict(SMOLLM2)))


BAD_FILES = [
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled by {'type': 'linear', 'factor': 2.0}"),
    ({"value_length": 32}, "value_length is 32, key_length 64 is needed"),
    ({"head_count_kv": 2}, "9 heads can't share 2 key heads"),
    ({"architecture": "mamba"}, "the architecture 'mamba' is not known, one of llama is needed"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD_FILES)
def test_a_file_that_can_not_run_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        DecoderConfig.from_gguf(SMOLLM2 | change)


def test_a_missing_hyperparameter_is_named():
    without = {key: value for key, value in SMOLLM2.items() if key != "block_count"}
    with pytest.raises(ValueError, match="the hyperparameter 'block_count' is missing"):
        DecoderConfig.from_gguf(without)


BAD_SIZES = [
    ({"n_layers": 0}, "n_layers is 0, at least 1 is needed"),
    ({"n_vocab": -3}, "n_vocab is -3, at least 1 is needed"),
    ({"rope_dim": 5}, "rope_dim is 5, an even number up to head_dim 6 is needed"),
    ({"rope_dim": 8}, "rope_dim is 8, an even number up to head_dim 6 is needed"),
    ({"rope_theta": float("nan")}, "rope_theta is nan, a finite number above 0 is needed"),
    ({"norm_eps": 0.0}, "norm_eps is 0.0, a finite number above 0 is needed"),
    ({"biases": ("attn_norm",)}, "'attn_norm' has no bias, one of attn_q, "),
]


@pytest.mark.parametrize(("change", "sentence"), BAD_SIZES)
def test_sizes_that_can_not_be(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(GROUPED, **change)
