"""Configurations from a file's hyperparameters, and the sizes that can't be."""

import dataclasses

import pytest

from tests.models.helpers import GROUPED
from ubjax.config import SwaType
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
    assert DecoderConfig.from_hyperparameters(SMOLLM2) == DecoderConfig(
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
    config = DecoderConfig.from_hyperparameters(
        SMOLLM2 | {"tie_embeddings": False, "optional_tensors": optional}
    )
    assert (config.biases, config.rope_factors) == (("attn_q", "ffn_down"), True)
    assert not config.tie_embeddings


def test_equal_configurations_are_one_key():
    assert hash(DecoderConfig.from_hyperparameters(SMOLLM2)) == hash(
        DecoderConfig.from_hyperparameters(dict(SMOLLM2))
    )


def test_positions_scaled_linearly():
    scaled = SMOLLM2 | {"rope_scaling": {"type": "linear", "factor": 8.0}}
    assert DecoderConfig.from_hyperparameters(scaled).rope(0) == (100000.0, 0.125)
    window = {"sliding_window": 4, "sliding_window_layers": (True, False) * 15}
    llama = DecoderConfig.from_hyperparameters(scaled | window)
    gemma = DecoderConfig.from_hyperparameters(
        scaled | window | {"architecture": "gemma3", "rope_freq_base_swa": 10000.0}
    )
    assert (llama.rope(1), gemma.rope(0), gemma.rope(1)) == ((1e5, 0.125), (1e5, 0.125), (1e4, 1.0))


def test_what_architectures_fix():
    def fixed(architecture):
        config = DecoderConfig.from_hyperparameters(SMOLLM2 | {"architecture": architecture})
        return config.qk_norm, config.post_norms, config.activation, config.scale_embd

    for plain in ("llama", "qwen2", "phi3"):
        assert fixed(plain) == (False, False, "silu", False)
    assert fixed("qwen3") == (True, False, "silu", False)
    assert fixed("gemma2") == (False, True, "gelu", True)
    assert fixed("gemma3") == (True, True, "gelu", True)


def test_layers_with_a_window_have_a_cache_of_their_own():
    window = {"sliding_window": 512, "sliding_window_layers": (True, True, False) * 10}
    config = DecoderConfig.from_hyperparameters(SMOLLM2 | window)
    assert (config.n_swa, config.swa_type, config.n_caches) == (512, SwaType.STANDARD, 2)
    assert config.cache_layers(0) == tuple(range(2, 30, 3))
    assert config.cache_layers(1) == tuple(i for i in range(30) if i % 3 != 2)
    alone = DecoderConfig.from_hyperparameters(window | SMOLLM2 | {"sliding_window_layers": (True,) * 30})
    assert (alone.n_caches, alone.cache_layers(0), alone.cache_layers(1)) == (2, (), tuple(range(30)))
    without = DecoderConfig.from_hyperparameters(SMOLLM2 | {"sliding_window": 0, "sliding_window_layers": ()})
    assert (without.n_caches, without.cache_layers(0)) == (1, tuple(range(30)))
    assert without == DecoderConfig.from_hyperparameters(
        SMOLLM2 | window | {"sliding_window_layers": (False,) * 30}
    )


BAD_FILES = [
    (
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        "scaled by 'yarn' are not supported, 'linear' or none is",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 4.0, "attn_factor": 1.2}},
        "attn_factor 1.2 are not supported",
    ),
    ({"value_length": 32}, "value_length is 32, key_length 64 is needed"),
    ({"head_count_kv": 2}, "9 heads can't share 2 key heads"),
    ({"architecture": "mamba"}, "the architecture 'mamba' is not known, one of llama, qwen2, "),
]


@pytest.mark.parametrize(("change", "sentence"), BAD_FILES)
def test_a_file_that_can_not_run_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        DecoderConfig.from_hyperparameters(SMOLLM2 | change)


def test_a_missing_hyperparameter_is_named():
    without = {key: value for key, value in SMOLLM2.items() if key != "block_count"}
    with pytest.raises(ValueError, match="the hyperparameter 'block_count' is missing"):
        DecoderConfig.from_hyperparameters(without)


BAD_SIZES = [
    ({"n_layers": 0}, "n_layers is 0, at least 1 is needed"),
    ({"n_vocab": -3}, "n_vocab is -3, at least 1 is needed"),
    ({"rope_dim": 5}, "rope_dim is 5, an even number up to head_dim 6 is needed"),
    ({"rope_dim": 8}, "rope_dim is 8, an even number up to head_dim 6 is needed"),
    ({"rope_theta": float("nan")}, "rope_theta is nan, a finite number above 0 is needed"),
    ({"norm_eps": 0.0}, "norm_eps is 0.0, a finite number above 0 is needed"),
    ({"n_swa": -1, "swa_type": SwaType.STANDARD}, "n_swa is -1, at least 0 is needed"),
    ({"n_swa": 4}, "n_swa is 4 with window type none and 0 layers of it: all or none are needed"),
    ({"n_swa": 4, "swa_type": SwaType.CHUNKED}, "n_swa is 4 with window type chunked and 0 layers of it"),
    ({"swa_layers": (True, False)}, "n_swa is 0 with window type none and 1 layers of it"),
    ({"swa_layers": (False,)}, r"swa_layers has 1 entry, 2 \(one a layer\) or none are needed"),
    ({"attn_softcap": 0.0}, "attn_softcap is 0.0, a finite number above 0 is needed"),
    ({"activation": "relu"}, "the activation 'relu' is not known, one of silu, gelu is needed"),
    ({"biases": ("attn_norm",)}, "'attn_norm' has no bias, one of attn_q, "),
]


@pytest.mark.parametrize(("change", "sentence"), BAD_SIZES)
def test_sizes_that_can_not_be(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(GROUPED, **change)


@pytest.mark.parametrize("sections", [(1, 2), (1, 1, 2), (1, 1, 1, 1), (4, -1, 0)])
def test_sections_that_can_not_be(sections):
    with pytest.raises(
        ValueError, match=r"rope_sections are .*, 3 or 4 numbers of pairs that together are .* = 3"
    ):
        dataclasses.replace(GROUPED, rope_sections=sections)
