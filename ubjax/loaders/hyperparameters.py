"""What the metadata of a GGUF says about the model: plain values under llama.cpp's names, checked.

The keys are those of llama.cpp's `llama_hparams` loading: `{architecture}.block_count` and so on.
"""

import math
from collections.abc import Mapping
from typing import Any

from ubjax.loaders.gguf import GGUFFile
from ubjax.loaders.metadata import Scalar, short
from ubjax.loaders.names import OPTIONAL_ROLES, split_name
from ubjax.models.config import ARCHITECTURES, MROPE

MAX_SIZE = 2**31 - 1  # sizes and positions are int32 everywhere
SCALING_KINDS = {
    "type": str,
    "factor": float,
    "original_context_length": int,
    "finetuned": bool,
    "attn_factor": float,
    "yarn_log_multiplier": float,
    "yarn_ext_factor": float,
    "yarn_attn_factor": float,
    "yarn_beta_fast": float,
    "yarn_beta_slow": float,
}
# Where a file says nothing, as in llama.cpp. Of every `period` layers the last attends everything; 0: none does.
WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6}
WINDOWS = {"gemma2": 4096}
WINDOW_ROPE_BASES = {"gemma3": 10000.0}
ATTENTION_CAPS = {"gemma2": 50.0}
LOGIT_CAPS = {"gemma2": 30.0}
# Number of layers of the models (of 27B) whose q is scaled by the width of the model, not of a head.
SCALED_BY_MODEL = {"gemma2": 46, "gemma3": 62}


def hyperparameters(file: GGUFFile) -> dict[str, Any]:
    """The model's hyperparameters.

    Returns a dict with: `architecture` (str); the sizes `block_count`, `context_length`, `embedding_length`,
    `feed_forward_length`, `head_count`, `head_count_kv` (default: head_count), `key_length` and
    `value_length` (default: embedding_length // head_count), `rope_dimension_count` (default: key_length),
    `vocab_size` (rows of token_embd); `rope_freq_base` (default 10000.0), `rope_freq_base_swa` (None: the same in
    window layers), `rope_dimension_sections` (of M-RoPE, else ()), `layer_norm_rms_epsilon`; `rope_scaling` (None,
    or a dict with `type`, `factor` and what else the file has under rope.scaling); `sliding_window` (0: none) and
    `sliding_window_layers`, whether each layer has it; `attention_scale`, `attn_logit_softcapping` and
    `final_logit_softcapping` (None without);
    `tie_embeddings` (no output.weight: the head is token_embd); `optional_tensors`, the roles beyond the
    required ones that the file has, such as "attn_q.bias" or "output.weight".

    Raises:
        GGUFError: unknown architecture (named, with the supported ones), a missing key, a value that cannot
            be.
    """
    architecture = file.architecture
    if architecture not in ARCHITECTURES:
        raise file.metadata.error(
            f"the architecture {short(architecture)} is not supported, one of {', '.join(ARCHITECTURES)}, "
            "bert is needed"
        )
    if (experts := size(file, "expert_count", 0, least=0)) != 0:
        raise file.metadata.error(
            f"{architecture}.expert_count is {experts}: mixtures of experts are not supported"
        )
    if (parts := file.metadata.optional("split.count", int, 1)) > 1:
        raise file.metadata.error(f"this is one of {parts} parts of a model, a whole file is needed")
    hyper: dict[str, Any] = {"architecture": architecture}
    for name in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
        hyper[name] = size(file, name)
    hyper |= attention_sizes(file, hyper["embedding_length"])
    hyper["rope_dimension_sections"] = rope_sections(file)
    hyper["rope_freq_base"] = positive(file, "rope.freq_base", 10000.0)
    window_base = WINDOW_ROPE_BASES.get(architecture)
    hyper["rope_freq_base_swa"] = positive_or_none(file, "rope.freq_base_swa", window_base)
    hyper["layer_norm_rms_epsilon"] = positive(file, "attention.layer_norm_rms_epsilon")
    hyper["rope_scaling"] = rope_scaling(file)
    hyper["vocab_size"] = vocab_size(file)
    check_blocks(file, hyper["block_count"])
    hyper |= windows(file, hyper["block_count"])
    hyper |= scales(file, hyper)
    hyper["tie_embeddings"] = "output.weight" not in file.tensors
    hyper["optional_tensors"] = optional_tensors(file)
    return hyper


def size(file: GGUFFile, name: str, default: int | None = None, least: int = 1) -> int:
    """The key `{architecture}.{name}`, an integer of at least `least`."""
    key = f"{file.architecture}.{name}"
    if default is not None and key not in file.metadata:
        return default
    value = file.metadata.require(key, int)
    if not least <= value <= MAX_SIZE:
        raise file.metadata.error(f"the metadata key {key!r} is {value}, {least} to {MAX_SIZE} is needed")
    return value


def positive(file: GGUFFile, name: str, default: float | None = None) -> float:
    """The key `{architecture}.{name}`, a finite number above 0."""
    key = f"{file.architecture}.{name}"
    if default is not None and key not in file.metadata:
        return default
    value = file.metadata.require(key, float)
    if not (math.isfinite(value) and value > 0):
        raise file.metadata.error(f"the metadata key {key!r} is {value}, a finite number above 0 is needed")
    return value


def positive_or_none(file: GGUFFile, name: str, default: float | None) -> float | None:
    """As `positive`; None for a key that is missing and has no default."""
    missing = default is None and f"{file.architecture}.{name}" not in file.metadata
    return None if missing else positive(file, name, default)


def attention_sizes(file: GGUFFile, n_embd: int) -> dict[str, int]:
    """Heads and their widths, and how many values of a head are rotated."""
    n_head = size(file, "attention.head_count")
    n_head_kv = size(file, "attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise file.metadata.error(f"{n_head} heads cannot share {n_head_kv} key heads, a divisor is needed")
    if n_head > n_embd:
        raise file.metadata.error(f"{n_head} heads do not fit an embedding_length of {n_embd}")
    key_length = size(file, "attention.key_length", n_embd // n_head)
    n_rot = size(file, "rope.dimension_count", key_length)
    if n_rot % 2 or n_rot > key_length:
        raise file.metadata.error(
            f"rope.dimension_count is {n_rot}, an even number up to the key length {key_length} is needed"
        )
    return {
        "head_count": n_head,
        "head_count_kv": n_head_kv,
        "key_length": key_length,
        "value_length": size(file, "attention.value_length", n_embd // n_head),
        "rope_dimension_count": n_rot,
    }


def rope_sections(file: GGUFFile) -> tuple[int, ...]:
    """How many rotated pairs turn by each of a row's positions, where the architecture has several (M-RoPE)."""
    if file.architecture not in MROPE:
        return ()
    key = f"{file.architecture}.rope.dimension_sections"
    sections = file.metadata.require(key, tuple)
    if not all(type(n) is int and 0 <= n <= MAX_SIZE for n in sections):
        raise file.metadata.error(f"{key} holds {short(str(sections))}, numbers of pairs are needed")
    return sections


def rope_scaling(file: GGUFFile) -> dict[str, Scalar] | None:
    """The keys under `rope.scaling.` by their last part; None when positions are not scaled.

    A factor without a type means "linear", and so does the older key `rope.scale_linear`, as in llama.cpp; a file
    with short and long factors means "longrope", whether or not it says so.
    """
    prefix = f"{file.architecture}.rope.scaling."
    long = "rope_factors_long.weight" in file.tensors
    found: dict[str, Scalar] = {"type": "longrope" if long else "linear"}
    for name, kind in SCALING_KINDS.items():
        if prefix + name in file.metadata:
            found[name] = file.metadata.require(prefix + name, kind)
    if "factor" in found:
        found["factor"] = positive(file, "rope.scaling.factor")
    elif f"{file.architecture}.rope.scale_linear" in file.metadata:
        found["factor"] = positive(file, "rope.scale_linear")
    unscaled = found["type"] == "none" or (found["type"] == "linear" and "factor" not in found)
    return None if unscaled else found


def windows(file: GGUFFile, n_layers: int) -> dict[str, Any]:
    """The window, and which layers have it: as the file's pattern says (a period or a flag a layer), else all.

    llama.cpp reads a window of the Gemmas alone; here it counts wherever a file names one.
    """
    architecture = file.architecture
    n_swa = size(file, "attention.sliding_window", WINDOWS.get(architecture, 0), least=0)
    if n_swa == 0:
        return {"sliding_window": 0, "sliding_window_layers": ()}
    name = "attention.sliding_window_pattern"
    if isinstance(file.metadata.get(f"{architecture}.{name}"), tuple):
        flags = file.metadata.require(f"{architecture}.{name}", tuple)
        if len(flags) != n_layers:
            raise file.metadata.error(
                f"{architecture}.{name} has {len(flags)} values, {n_layers} (one a block) are needed"
            )
        if not all(isinstance(flag, int) for flag in flags):
            raise file.metadata.error(f"{architecture}.{name} holds {short(str(flags[0]))}, flags are needed")
        layers = tuple(bool(flag) for flag in flags)
    else:
        period = size(file, name, WINDOW_PERIODS.get(architecture, 0), least=0)
        layers = tuple(period == 0 or layer % period < period - 1 for layer in range(n_layers))
    return {"sliding_window": n_swa, "sliding_window_layers": layers}


def scales(file: GGUFFile, hyper: Mapping[str, Any]) -> dict[str, float | None]:
    """What q is multiplied by, if not by 1 / sqrt(key_length), and the soft caps of scores and logits."""
    architecture = hyper["architecture"]
    by_model = SCALED_BY_MODEL.get(architecture) == hyper["block_count"]
    scale = (hyper["embedding_length"] // hyper["head_count"]) ** -0.5 if by_model else None
    caps = ATTENTION_CAPS.get(architecture), LOGIT_CAPS.get(architecture)
    return {
        "attention_scale": positive_or_none(file, "attention.scale", scale),
        "attn_logit_softcapping": positive_or_none(file, "attn_logit_softcapping", caps[0]),
        "final_logit_softcapping": positive_or_none(file, "final_logit_softcapping", caps[1]),
    }


def check_blocks(file: GGUFFile, block_count: int) -> None:
    """Refuse more blocks than the file has tensors of, before anything is made for each of them."""
    blocks = {split_name(name)[0] for name in file.tensors} - {None}
    if block_count > len(blocks):
        raise file.metadata.error(
            f"{file.architecture}.block_count is {block_count}, and there are tensors of {len(blocks)} blocks"
        )


def vocab_size(file: GGUFFile) -> int:
    """Rows of token_embd.weight, which must be as many as the tokenizer has tokens."""
    rows = file.info("token_embd.weight").shape[0]
    key = "tokenizer.ggml.tokens"
    n_tokens = file.metadata.array_length(key) if key in file.metadata else rows
    if n_tokens != rows:
        raise file.metadata.error(
            f"token_embd.weight has {rows} rows, one for each of the {n_tokens} tokens is needed"
        )
    return rows


def optional_tensors(file: GGUFFile) -> tuple[str, ...]:
    """Roles that a model may lack and this file has, sorted."""
    roles = {split_name(name)[1] for name in file.tensors}
    return tuple(sorted(roles & OPTIONAL_ROLES))
