"""Whether the values of an untrusted config.json are of their kind, before anything is made of them."""

import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

MAX_SIZE = 2**31 - 1
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "max_position_embeddings", "vocab_size", "sliding_window_pattern", "type_vocab_size"),
)
COUNTS = ("sliding_window", "max_window_layers")  # may be 0
NUMBERS = (
    *("rms_norm_eps", "layer_norm_eps", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
)
TEXTS = ("model_type", "hidden_act", "hidden_activation", "position_embedding_type")
CHOICES = ("tie_word_embeddings", "use_sliding_window", "use_bidirectional_attention", "is_decoder")
LAYER = re.compile(r"(?:^|\.)layers?\.(\d{1,9})\.", re.ASCII)


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with that of its text part, where it has one, in front of it."""
    _check(config, "text_config", lambda x: isinstance(x, Mapping), "an object")
    return {**config, **(config.get("text_config") or {})}


def check_config(config: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """Raises ValueError for a value of config.json that is not of its kind, naming the first.

    Sizes and counts are whole, other numbers finite and above 0; None is as good as missing. No more layers than there
    are tensors of: something is made for each of them.
    """
    for key in (*SIZES, *COUNTS):
        least = 0 if key in COUNTS else 1
        _check(config, key, lambda x, low=least: _whole(x, low), f"a whole number from {least}")
    for key in NUMBERS:
        _check(config, key, _positive, "a number above 0")
    for key in TEXTS:
        _check(config, key, lambda x: isinstance(x, str), "a text")
    for key in CHOICES:
        _check(config, key, lambda x: isinstance(x, bool), "true or false")
    for key in ("rope_parameters", "rope_scaling"):
        _check_rope(config, key, depth=1)
    n_layers = config.get("num_hidden_layers") or 0
    found = {match[1] for match in map(LAYER.search, tensors) if match}
    if n_layers > len(found):
        raise ValueError(f"num_hidden_layers is {n_layers}, and there are tensors of {len(found)} layers")
    _check(
        config, "layer_types", lambda x: _texts(x) and len(x) == n_layers, "a list of a text for each layer"
    )


def _check(config: Mapping[str, Any], key: str, fits: Any, needed: str) -> None:
    value = config.get(key)
    if value is not None and not fits(value):
        raise ValueError(f"{key} is {reprlib.repr(value)}, {needed} is needed")


def _check_rope(config: Mapping[str, Any], key: str, depth: int) -> None:
    """Rotary keys: numbers, the type, lists of numbers, and one set of them for each kind of layer."""
    _check(config, key, lambda x: isinstance(x, Mapping), "an object")
    rope = config.get(key) or {}
    for name, value in rope.items():
        if name in ("type", "rope_type"):
            _check(rope, name, lambda x: isinstance(x, str), "a text")
        elif isinstance(value, Mapping) and depth:
            _check_rope(rope, name, depth - 1)
        else:
            fits = (
                (lambda x: _positive(x) or isinstance(x, bool)) if not isinstance(value, list) else _numbers
            )
            _check(rope, name, fits, "a number above 0")


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_SIZE


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value < 1e30


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(_positive(x) or (type(x) is int and x == 0) for x in value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
