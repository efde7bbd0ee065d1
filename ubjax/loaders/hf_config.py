"""The hyperparameters of a Hugging Face config.json, under the names that `hyperparameters` gives those of a GGUF.

Both forms of the rotary keys are read: `rope_theta` beside `rope_scaling`, and `rope_parameters`, one set or one for
each kind of layer.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ubjax.loaders.hf_names import is_vision, llama_cpp_name
from ubjax.loaders.hyperparameters import WINDOW_PERIODS, WINDOW_ROPE_BASES
from ubjax.loaders.names import OPTIONAL_ROLES, split_name
from ubjax.models.config import ARCHITECTURES, MROPE

# Model types by the architecture of llama.cpp that computes them.
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen2_vl": "qwen2vl",
    "qwen2_vl_text": "qwen2vl",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
# Encoders that look like BERT's and count positions from the padding token's id on.
ROBERTAS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")
ACTIVATIONS = {"silu": ("silu", "swish"), "gelu": ("gelu_pytorch_tanh",)}
ROPE_BASES = {"gemma3": 1e6}  # where a file says nothing; else 10000
FULL, SLIDING = "full_attention", "sliding_attention"


def hf_hyperparameters(config: Mapping[str, Any], tensors: Iterable[str]) -> dict[str, Any]:
    """What `hyperparameters` gives for a GGUF, from a config.json and the names of the tensors beside it.

    One key more, `rope_factors`: what frequencies are divided by (scaling "llama3"), which a GGUF has as the tensor
    "rope_freqs.weight"; else (). Of a model that sees, the text part counts. Raises ValueError for a model type, an
    activation or a tensor that is not known, and for a key that is missing.
    """
    config = {**config, **(config.get("text_config") or {})}
    architecture = architecture_of(config)
    n_embd, n_head = need(config, "hidden_size"), need(config, "num_attention_heads")
    head_dim = config.get("head_dim") or n_embd // n_head
    rope = rotary(config, FULL)
    n_rot = int(head_dim * rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    factors = llama3_factors(rope, n_rot) if rope["rope_type"] == "llama3" else ()
    scalar = config.get("query_pre_attn_scalar")
    names = (llama_cpp_name(name, architecture) for name in tensors if not is_vision(name, architecture))
    roles = {split_name(name)[1] for name in names}
    if factors:
        roles.add("rope_freqs.weight")
    tied = config.get("tie_word_embeddings", "output.weight" not in roles)
    return {
        "architecture": architecture,
        "block_count": need(config, "num_hidden_layers"),
        "context_length": need(config, "max_position_embeddings"),
        "embedding_length": n_embd,
        "feed_forward_length": need(config, "intermediate_size"),
        "head_count": n_head,
        "head_count_kv": config.get("num_key_value_heads") or n_head,
        "key_length": head_dim,
        "value_length": head_dim,
        "rope_dimension_count": n_rot,
        "rope_dimension_sections": tuple(need(rope, "mrope_section")) if architecture in MROPE else (),
        "rope_freq_base": rope["rope_theta"],
        "rope_freq_base_swa": rotary(config, SLIDING)["rope_theta"],
        "rope_scaling": None
        if rope["rope_type"] in ("default", "llama3", "mrope")
        else rope | {"type": rope["rope_type"]},
        "rope_factors": factors,
        "layer_norm_rms_epsilon": need(config, "rms_norm_eps"),
        "vocab_size": need(config, "vocab_size"),
        **windows(config, architecture),
        "attention_scale": None if scalar is None else scalar**-0.5,
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "tie_embeddings": tied,
        "optional_tensors": tuple(sorted((roles & OPTIONAL_ROLES) - ({"output.weight"} if tied else set()))),
    }


def need(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key that must be there."""
    if config.get(key) is None:
        raise ValueError(f"the key {key!r} of config.json is missing")
    return config[key]


def architecture_of(config: Mapping[str, Any]) -> str:
    """llama.cpp's name, after a look at what would make it another model."""
    kind = need(config, "model_type")
    if kind not in MODEL_TYPES:
        more = " (its positions begin behind a padding token)" if kind in ROBERTAS else ""
        known = ", ".join((*MODEL_TYPES, "bert"))
        raise ValueError(f"the model type {kind!r} is not supported{more}, one of {known} is needed")
    allowed = ACTIVATIONS[ARCHITECTURES[MODEL_TYPES[kind]].get("activation", "silu")]
    activation = config.get("hidden_activation") or config.get("hidden_act") or allowed[0]
    if activation not in allowed:
        raise ValueError(f"the activation {activation!r} is not supported, {allowed[0]!r} is needed")
    if config.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is set, a causal model is needed")
    return MODEL_TYPES[kind]


def rotary(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """`rope_type`, `rope_theta` and what else there is about the rotations in layers of a kind."""
    architecture = MODEL_TYPES[config["model_type"]]
    found = config.get("rope_parameters") or {}
    found = dict(found.get(kind) or found)
    theta = config.get("rope_theta") or ROPE_BASES.get(architecture, 10000.0)
    if kind == SLIDING and architecture in WINDOW_ROPE_BASES:
        theta = config.get("rope_local_base_freq") or WINDOW_ROPE_BASES[architecture]
    else:
        found |= config.get("rope_scaling") or {}
    found.setdefault("rope_theta", theta)
    return found | {"rope_type": found.get("rope_type") or found.get("type") or "default"}


def llama3_factors(rope: Mapping[str, Any], n_rot: int) -> tuple[float, ...]:
    """What the frequencies are divided by: long waves by `factor`, short ones by 1, those between by what lies between.

    A wave is long from original_max_position_embeddings / low_freq_factor positions on, short up to the same
    divided by high_freq_factor.
    """
    factor, context = need(rope, "factor"), need(rope, "original_max_position_embeddings")
    low, high = need(rope, "low_freq_factor"), need(rope, "high_freq_factor")
    wave = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, n_rot, 2) / n_rot)
    short = np.clip((context / wave - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - short) / factor + short)).tolist())


def windows(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The window, and which layers have it."""
    n_layers, n_swa = need(config, "num_hidden_layers"), config.get("sliding_window") or 0
    if not config.get("use_sliding_window", architecture not in ("qwen2", "qwen2vl", "qwen3")):
        n_swa = 0
    if n_swa == 0:
        return {"sliding_window": 0, "sliding_window_layers": ()}
    if config.get("layer_types"):
        layers = tuple(kind == SLIDING for kind in config["layer_types"])
    elif "max_window_layers" in config:
        layers = tuple(layer >= config["max_window_layers"] for layer in range(n_layers))
    else:
        period = config.get("sliding_window_pattern") or WINDOW_PERIODS.get(architecture, 0)
        layers = tuple(period == 0 or layer % period < period - 1 for layer in range(n_layers))
    return {"sliding_window": n_swa, "sliding_window_layers": layers}
