"""Hyperparameters from config.json; the older form of its keys here, the newer one in `tests/models/test_peers.py`."""

import numpy as np
import pytest

from ubjax.loaders.hf_config import hf_hyperparameters
from ubjax.models.config import DecoderConfig

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000.0,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "vocab_size": 262208,
}
HEAD = ("model.embed_tokens.weight", "lm_head.weight")


def test_llama_3_with_factors():
    hyper = hf_hyperparameters(LLAMA, HEAD)
    assert (hyper["architecture"], hyper["rope_scaling"], hyper["tie_embeddings"]) == ("llama", None, False)
    assert hyper["optional_tensors"] == ("output.weight", "rope_freqs.weight")
    factors = np.array(hyper["rope_factors"])
    wave = 2 * np.pi * 500000.0 ** (np.arange(32) / 32)
    np.testing.assert_array_equal(factors[wave < 8192 / 4], 1)
    np.testing.assert_allclose(factors[wave > 8192], 32)
    between = factors[(wave > 8192 / 4) & (wave < 8192)]
    assert (
        len(between) == 3 and (np.diff(factors) >= 0).all() and (between > 1).all() and (between < 32).all()
    )
    assert DecoderConfig.from_hyperparameters(hyper).rope_factors


def test_gemma_3_in_the_older_form():
    config = DecoderConfig.from_hyperparameters(hf_hyperparameters(GEMMA3, HEAD[:1]))
    assert (config.rope(0), config.rope(1)) == ((1e6, 0.125), (1e4, 1.0))
    assert (config.n_swa, config.cache_layers(0)) == (1024, (5,))
    assert config.tie_embeddings and config.attn_scale == 1 / 16
    newer = {key: value for key, value in GEMMA3.items() if not key.startswith(("rope", "sliding_window_"))}
    newer |= {
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    assert DecoderConfig.from_hyperparameters(hf_hyperparameters(newer, HEAD[:1])) == config


WINDOWS = [
    ({"model_type": "mistral", "sliding_window": 4096}, tuple(range(16))),
    ({"model_type": "mistral", "sliding_window": None}, ()),
    ({"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 14}, ()),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 14},
        (14, 15),
    ),
]


@pytest.mark.parametrize(("change", "layers"), WINDOWS)
def test_windows(change, layers):
    config = DecoderConfig.from_hyperparameters(hf_hyperparameters(LLAMA | change, HEAD))
    assert config.cache_layers(1) == layers


def test_biases_and_what_a_file_may_leave_out():
    plain = {key: value for key, value in LLAMA.items() if not key.startswith("rope")}
    del plain["head_dim"], plain["num_key_value_heads"]
    biases = [f"model.layers.3.self_attn.{part}_proj.bias" for part in "qkv"]
    config = DecoderConfig.from_hyperparameters(hf_hyperparameters(plain, (*HEAD, *biases)))
    assert config.biases == ("attn_q", "attn_k", "attn_v")
    assert (config.head_dim, config.n_kv_heads, config.rope(0)) == (64, 32, (10000.0, 1.0))
    assert not config.rope_factors and config.n_caches == 1


REFUSED = [
    ({"model_type": "bert"}, "the model type 'bert' is not supported, one of llama, mistral, "),
    ({"model_type": None}, "the key 'model_type' of config.json is missing"),
    ({"hidden_size": None}, "the key 'hidden_size' of config.json is missing"),
    ({"hidden_act": "relu"}, "the activation 'relu' is not supported, 'silu' is needed"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention is set, a causal model is needed"),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "'original_max_position_embeddings' of config.json is",
    ),
    ({"rope_scaling": {"type": "longrope"}}, "positions scaled by 'longrope' are not supported"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_what_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        DecoderConfig.from_hyperparameters(hf_hyperparameters(LLAMA | change, HEAD))
