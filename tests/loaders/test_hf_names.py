import numpy as np
import pytest

from tests.loaders.test_names import SIZES
from ubjax.loaders.hf_names import hf_weights, llama_cpp_name

NAMES = [
    ("llama", "model.embed_tokens.weight", "token_embd.weight"),
    ("llama", "model.norm.weight", "output_norm.weight"),
    ("llama", "lm_head.weight", "output.weight"),
    ("llama", "model.layers.12.self_attn.o_proj.bias", "blk.12.attn_output.bias"),
    ("llama", "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
    ("qwen3", "model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"),
    ("phi3", "model.layers.0.self_attn.qkv_proj.weight", "blk.0.attn_qkv.weight"),
    ("phi3", "model.layers.0.mlp.gate_up_proj.weight", "blk.0.ffn_up.weight"),
    ("gemma3", "model.layers.0.post_attention_layernorm.weight", "blk.0.post_attention_norm.weight"),
    ("gemma3", "model.layers.0.pre_feedforward_layernorm.weight", "blk.0.ffn_norm.weight"),
    ("gemma3", "model.layers.0.post_feedforward_layernorm.weight", "blk.0.post_ffw_norm.weight"),
]


@pytest.mark.parametrize(("architecture", "name", "want"), NAMES)
def test_names(architecture, name, want):
    assert llama_cpp_name(name, architecture) == want


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.pre_feedforward_layernorm.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "lm_head.bias",
        "weight",
    ],
)
def test_an_unknown_name_is_refused(name):
    with pytest.raises(
        ValueError, match=f"the tensor '{name}' is not one that the architecture 'llama' uses"
    ):
        llama_cpp_name(name, "llama")


def weights_of(architecture, tied, tensors, factors=()):
    hyper = SIZES | {"architecture": architecture, "tie_embeddings": tied, "rope_factors": factors}
    return dict(hf_weights(tensors.items(), hyper))


def test_fused_tensors_come_as_their_parts_and_factors_as_a_tensor():
    qkv, gate_up = np.arange(21.0)[:, None], np.arange(16.0)[:, None]
    tensors = {
        "model.layers.0.self_attn.qkv_proj.weight": qkv,
        "model.layers.0.mlp.gate_up_proj.weight": gate_up,
    }
    found = weights_of("phi3", False, {name: w.astype(np.float32) for name, w in tensors.items()}, (1.0, 8.0))
    parts = {
        "attn_q": qkv[:12],
        "attn_k": qkv[12:16],
        "attn_v": qkv[16:],
        "ffn_gate": gate_up[:8],
        "ffn_up": gate_up[8:],
    }
    want = {f"blk.0.{part}.weight": w for part, w in parts.items()} | {"rope_freqs.weight": [1, 8]}
    assert found.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(("architecture", "one"), [("gemma3", 1), ("qwen3", 0)])
def test_norms_of_the_gemmas_and_tied_heads(architecture, one):
    norm = np.array([0.5, -1], np.float32)
    tensors = {
        "model.norm.weight": norm,
        "model.layers.0.self_attn.k_norm.weight": norm,
        "lm_head.weight": norm,
    }
    found = weights_of(architecture, True, tensors)
    assert found.keys() == {"output_norm.weight", "blk.0.attn_k_norm.weight"}
    for value in found.values():
        np.testing.assert_array_equal(value, norm + one)
    assert "output.weight" in weights_of(architecture, False, tensors)
