"""Hugging Face's tensor names to llama.cpp's, and its weights to what a decoder is filled with.

Its q and k rows already are in NEOX order. The Gemmas' norms multiply by 1 + weight; here, as in a GGUF, the 1 is in
the weight.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float32

from ubjax.loaders.names import axis_sizes, parts_of
from ubjax.models.config import ARCHITECTURES
from ubjax.models.weights import Tensor

GLOBAL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Where each part has a norm behind it too, the one behind attention takes the name of the one before the feed-forward.
POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# A text part beside a vision part has a prefix of its own, or the one that it has alone.
TEXT_PREFIX = re.compile(r"(model\.)?language_model\.")
VISION_PREFIXES = {"qwen2vl": ("visual.", "model.visual.")}
LAYER_NAME = re.compile(r"model\.layers\.(\d{1,9})\.(.+)\.(weight|bias)", re.ASCII)


def is_vision(name: str, architecture: str) -> bool:
    """Whether a tensor belongs to the vision part, which a decoder does not have."""
    return name.startswith(VISION_PREFIXES.get(architecture, ()))


def whole_name(name: str) -> str:
    """The tensor's name in a model with a head: a model that was saved without one has its names without "model."."""
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def llama_cpp_name(name: str, architecture: str) -> str:
    """llama.cpp's name of a Hugging Face tensor. Raises ValueError for a name that is not known.

    >>> llama_cpp_name("model.layers.3.self_attn.q_proj.bias", "qwen2")
    'blk.3.attn_q.bias'
    """
    inner = TEXT_PREFIX.sub("model.", name, count=1) if architecture in VISION_PREFIXES else name
    layer = LAYER_NAME.fullmatch(inner)
    names = LAYER_NAMES | (POST_NORM_NAMES if ARCHITECTURES[architecture].get("post_norms") else {})
    if layer and layer[2] in names:
        return f"blk.{layer[1]}.{names[layer[2]]}.{layer[3]}"
    stem, _, kind = inner.rpartition(".")
    if stem not in GLOBAL_NAMES or kind != "weight":
        raise ValueError(f"the tensor {name!r} is not one that the architecture {architecture!r} uses")
    return f"{GLOBAL_NAMES[stem]}.weight"


def hf_weights(
    tensors: Iterable[tuple[str, Float32[np.ndarray, "..."]]], hyper: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The weights one by one, as `load_weights` gives those of a GGUF; `hyper` from `hf_hyperparameters`.

    The head of a model that ties it to its embeddings is left out, and so is a vision part. Raises ValueError for a
    name that is not known.
    """
    architecture, sizes = hyper["architecture"], axis_sizes(hyper)
    if hyper["rope_factors"]:
        yield "rope_freqs.weight", np.asarray(hyper["rope_factors"], np.float32)
    for name, weight in tensors:
        if is_vision(name, architecture):
            continue
        known = llama_cpp_name(name, architecture)
        if known == "output.weight" and hyper["tie_embeddings"]:
            continue
        if known.endswith("norm.weight") and architecture in ("gemma2", "gemma3"):
            weight = weight + 1
        yield from parts_of(known, weight, sizes)
