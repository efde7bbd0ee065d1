"""Every architecture against transformers on torch: tiny random weights, the same logits.

The weights go through the names and hyperparameters of `loaders.hf_names` and `loaders.hf_config`.
"""

import functools
from typing import Any

import numpy as np
import pytest

from tests.models.helpers import Cache, rows_of
from tests.models.torch_peers import randomized
from ubjax import Engine, EngineConfig
from ubjax.loaders.hf_config import hf_hyperparameters
from ubjax.loaders.hf_names import hf_weights
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder

pytestmark = pytest.mark.slow

TINY = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHORT = {"rope_type": "default", "rope_theta": 100.0}  # waves that turn within a short prompt
CAPS = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0}
GEMMA = {"head_dim": 6, "query_pre_attn_scalar": 9}
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50.0},
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
# Model type, its class in transformers, what differs from TINY, and the caches that it has.
MODELS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "llama, factors, biases": (
        "llama",
        "Llama",
        {"rope_parameters": LLAMA3, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
        1,
    ),
    "llama, linear": (
        "llama",
        "Llama",
        {"rope_parameters": SHORT | {"rope_type": "linear", "factor": 4.0}},
        1,
    ),
    "mistral": ("mistral", "Mistral", {"rope_parameters": SHORT, "sliding_window": 4, "head_dim": 6}, 2),
    "qwen2": ("qwen2", "Qwen2", {"rope_parameters": SHORT, "tie_word_embeddings": True}, 1),
    "qwen2, upper layers": (
        "qwen2",
        "Qwen2",
        {"rope_parameters": SHORT, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        2,
    ),
    "qwen3": ("qwen3", "Qwen3", {"rope_parameters": SHORT, "head_dim": 6}, 1),
    "phi3": ("phi3", "Phi3", {"rope_parameters": SHORT, "num_key_value_heads": 4}, 1),
    "phi3, window, part of a head": (
        "phi3",
        "Phi3",
        {"rope_parameters": SHORT | {"partial_rotary_factor": 0.5}, "sliding_window": 8},
        2,
    ),
    "gemma2": (
        "gemma2",
        "Gemma2",
        GEMMA | CAPS | {"rope_parameters": SHORT, "num_hidden_layers": 3, "sliding_window": 4},
        2,
    ),
    "gemma3": (
        "gemma3_text",
        "Gemma3",
        GEMMA
        | {"rope_parameters": GEMMA3_ROPE, "num_hidden_layers": 3, "layer_types": MIXED, "sliding_window": 5},
        2,
    ),
}


@functools.cache
def peer(name):
    """A model of transformers with random weights."""
    import transformers

    kind, cls, change, _ = MODELS[name]
    # "eager" is the implementation that has soft caps.
    config = transformers.AutoConfig.for_model(kind, attn_implementation="eager", **TINY | change)
    return randomized(getattr(transformers, f"{cls}ForCausalLM")(config))


def logits_of(model, tokens):
    import torch

    with torch.no_grad():
        return model(torch.asarray(tokens)[None]).logits[0].numpy()


def decoder_of(model):
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    hyper = hf_hyperparameters(model.config.to_dict(), tensors)
    return Decoder.from_weights(DecoderConfig.from_hyperparameters(hyper), hf_weights(tensors.items(), hyper))


A = [5, 1, 30, 7, 7, 2, 19, 36, 3, 11, 28, 4, 9, 22]  # longer than every window
B = [36, 8, 4, 17, 6]


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(name):
    """Two sequences in one ubatch; then the longer one again, six tokens together and the rest one by one."""
    model = peer(name)
    want_a, want_b = logits_of(model, A), logits_of(model, B)
    assert np.ptp(want_a) > 2
    decoder = decoder_of(model)
    assert decoder.config.n_caches == MODELS[name][-1]
    cache = Cache(decoder, n_cells=24)
    both = cache.run([rows_of(A) + rows_of(B, seq=1, slot=len(A))])
    np.testing.assert_allclose(both, np.concatenate([want_a, want_b]), atol=2e-5)
    cache = Cache(decoder, n_cells=24)
    first = cache.run([rows_of(A[:6])], length=len(both), n_outputs=len(both))
    rest = [cache.run([[row]]) for row in rows_of(A)[6:]]
    np.testing.assert_allclose(np.concatenate([first, *rest]), want_a, atol=2e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_hidden_rows_equal_transformers(name):
    """The normed rows of the last layer, of every token, beside the logits."""
    import torch

    model = peer(name)
    engine = Engine(decoder_of(model), None, EngineConfig(n_ctx=32, kv_pad=32, n_ubatch=8))
    with torch.no_grad():
        want = model.model(torch.asarray(A)[None]).last_hidden_state[0].numpy()
    outputs = engine.decode(engine.batch(A), hidden=True)
    np.testing.assert_allclose(outputs.embeddings(), want, atol=2e-5)
    np.testing.assert_allclose(outputs.logits(-1), logits_of(model, A)[-1], atol=2e-5)
    engine.clear()
    np.testing.assert_allclose(engine.embed([A], pooling="mean"), want.mean(0)[None], atol=2e-5)
