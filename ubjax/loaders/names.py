"""llama.cpp's tensor names: roles and shapes by architecture, fused tensors, and the order of the rotated rows.

A name is a role, or a role inside a block: `output_norm.weight`, `blk.3.attn_q.weight` (block 3, role
"attn_q.weight").

Fused tensors lie in a file over one another, and are loaded as their parts:

    attn_qkv                        attn_q, attn_k, attn_v
    ffn_up with 2 ff rows (phi3)    ffn_gate, ffn_up

Rotary rows. The converter from Hugging Face to GGUF reorders the rows of q and k of the architecture `llama`, so
that the two values of a rotated pair are neighbours (ggml's NORM rope) instead of half a head apart (NEOX,
Hugging Face's rotate_half). Loading puts them back, within each head, for example with n_rot = 6 and a head
of 7:

    file    0  1  2  3  4  5  6     pairs (0, 1) (2, 3) (4, 5), 6 not rotated
    loaded  0  2  4  1  3  5  6     pairs (0, 3) (1, 4) (2, 5) of the new places
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ubjax.loaders.gguf import GGUFFile
from ubjax.loaders.metadata import short
from ubjax.models.config import ARCHITECTURES
from ubjax.models.weights import Tensor

OnTensor = Callable[[str, int, int], object]  # name of a tensor, its number from 1, how many there are

BLOCK_NAME = re.compile(r"blk\.(\d{1,9})\.(.+)", re.ASCII | re.DOTALL)

# The axes of each role in numpy order, by the names in `axis_sizes`.
GLOBAL_ROLES = {
    "token_embd.weight": ("vocab", "embd"),
    "output_norm.weight": ("embd",),
    "output.weight": ("vocab", "embd"),
    "rope_freqs.weight": ("rope_pairs",),
}
BLOCK_ROLES = {
    "attn_norm.weight": ("embd",),
    "attn_q.weight": ("q", "embd"),
    "attn_k.weight": ("k", "embd"),
    "attn_v.weight": ("v", "embd"),
    "attn_output.weight": ("embd", "heads_v"),
    "attn_q.bias": ("q",),
    "attn_k.bias": ("k",),
    "attn_v.bias": ("v",),
    "attn_output.bias": ("embd",),
    "ffn_norm.weight": ("embd",),
    "ffn_gate.weight": ("ff", "embd"),
    "ffn_up.weight": ("ff", "embd"),
    "ffn_down.weight": ("embd", "ff"),
    "ffn_gate.bias": ("ff",),
    "ffn_up.bias": ("ff",),
    "ffn_down.bias": ("embd",),
}
QK_NORM_ROLES = {"attn_q_norm.weight": ("head",), "attn_k_norm.weight": ("head",)}
POST_NORM_ROLES = {"post_attention_norm.weight": ("embd",), "post_ffw_norm.weight": ("embd",)}
FUSED_QKV = "attn_qkv.weight"
OPTIONAL_ROLES = frozenset(
    {
        "output.weight",
        "rope_freqs.weight",
        FUSED_QKV,
        *(role for role in BLOCK_ROLES if role.endswith(".bias")),
    }
)
# Parts of a fused tensor from its first row on, with their axes.
FUSED = {
    "attn_qkv.weight": {"attn_q.weight": "q", "attn_k.weight": "k", "attn_v.weight": "v"},
    "ffn_up.weight": {"ffn_gate.weight": "ff", "ffn_up.weight": "ff"},
}
ROTATED_ROLES = {
    "attn_q.weight": "head_count",
    "attn_q.bias": "head_count",
    "attn_k.weight": "head_count_kv",
    "attn_k.bias": "head_count_kv",
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor that the file must have: name, shape in numpy order."""

    name: str
    shape: tuple[int, ...]


def split_name(name: str) -> tuple[int | None, str]:
    """Block and role of a tensor name; the block is None for tensors of the whole model.

    >>> split_name("blk.3.attn_q.weight"), split_name("output_norm.weight")
    ((3, 'attn_q.weight'), (None, 'output_norm.weight'))
    """
    match = BLOCK_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)


def axis_sizes(hyper: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of the axes in the tables of roles."""
    return {
        "vocab": hyper["vocab_size"],
        "embd": hyper["embedding_length"],
        "ff": hyper["feed_forward_length"],
        "gate_up": 2 * hyper["feed_forward_length"],
        "head": hyper["key_length"],
        "q": hyper["head_count"] * hyper["key_length"],
        "k": hyper["head_count_kv"] * hyper["key_length"],
        "v": hyper["head_count_kv"] * hyper["value_length"],
        "qkv": (hyper["head_count"] + hyper["head_count_kv"]) * hyper["key_length"]
        + hyper["head_count_kv"] * hyper["value_length"],
        "heads_v": hyper["head_count"] * hyper["value_length"],
        "rope_pairs": hyper["rope_dimension_count"] // 2,
    }


def block_roles(hyper: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The roles inside a block of this architecture, optional ones included, with their axes."""
    architecture = hyper["architecture"]
    fixed = ARCHITECTURES[architecture]
    roles = dict(BLOCK_ROLES)
    if fixed.get("qk_norm"):
        roles |= QK_NORM_ROLES
    if fixed.get("post_norms"):
        roles |= POST_NORM_ROLES
    if FUSED_QKV in hyper["optional_tensors"]:
        for part in FUSED[FUSED_QKV]:
            del roles[part]
        roles[FUSED_QKV] = ("qkv", "embd")
    if architecture == "phi3":
        for role in ("ffn_gate.weight", "ffn_gate.bias", "ffn_up.bias"):
            del roles[role]
        roles["ffn_up.weight"] = ("gate_up", "embd")
    return roles


def tensor_specs(hyper: Mapping[str, Any]) -> Iterator[TensorSpec]:
    """Every tensor of a file with these hyperparameters: first those of the whole model, then by block."""
    sizes = axis_sizes(hyper)
    has = set(hyper["optional_tensors"])
    of_block = block_roles(hyper)
    for block in range(-1, hyper["block_count"]):
        prefix, roles = ("", GLOBAL_ROLES) if block < 0 else (f"blk.{block}.", of_block)
        for role, axes in roles.items():
            if role in has or role not in OPTIONAL_ROLES:
                yield TensorSpec(prefix + role, tuple(sizes[axis] for axis in axes))


def check_tensors(file: GGUFFile, hyper: Mapping[str, Any]) -> list[TensorSpec]:
    """The tensors to load, after comparing the file's table with the hyperparameters; reads no data.

    Raises:
        GGUFError: a tensor is missing, has another shape (both are given) or a type that cannot be
            dequantized, or the file has a tensor that this architecture does not use (leaving it out would
            change the results).
    """
    specs = []
    for spec in tensor_specs(hyper):  # ends at the first missing tensor, whatever block_count claims
        if spec.name not in file.tensors:
            raise file.metadata.error(
                f"the tensor {spec.name!r} is missing, shape {list(spec.shape)} is needed"
            )
        found = file.tensors[spec.name].shape
        if found != spec.shape:
            raise file.metadata.error(
                f"the tensor {spec.name!r} has shape {list(found)}, {list(spec.shape)} is needed"
            )
        file.check_type(spec.name)
        specs.append(spec)
    unused = file.tensors.keys() - {spec.name for spec in specs}
    if unused:
        raise file.metadata.error(
            f"the tensor {short(min(unused))} is not one that the architecture "
            f"{hyper['architecture']!r} with {hyper['block_count']} blocks uses"
        )
    return specs


def unpermute_rope(weight: Tensor, n_head: int, n_rot: int) -> Tensor:
    """Rows of q or k (weights or biases) from ggml's NORM order to NEOX order, head by head.

    `n_head` is the tensor's own number of heads (head_count for q, head_count_kv for k); only the first
    `n_rot` rows of a head are rotated, the others stay. With it, NEOX rope on the result gives what NORM rope
    gives on `weight`, up to the same reordering of q and k, which their product does not see.

    Raises:
        ValueError: the rows are not `n_head` heads of at least `n_rot` rows, or `n_rot` is odd.
    """
    rows = len(weight)
    if n_head < 1 or rows % n_head or n_rot % 2 or n_rot > rows // n_head:
        raise ValueError(f"{rows} rows are not {n_head} heads of which an even number, {n_rot}, is rotated")
    head = np.arange(rows // n_head)
    order = np.concatenate([head[0:n_rot:2], head[1:n_rot:2], head[n_rot:]])
    first = np.arange(0, rows, len(head))
    return weight[(first[:, None] + order).ravel()]


def parts_of(name: str, weight: Tensor, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """A tensor, or the parts of a fused one, by name; `sizes` as `axis_sizes` gives them."""
    block, role = split_name(name)
    parts = FUSED.get(role, {})
    if block is None or len(weight) != sum(sizes[axis] for axis in parts.values()):
        yield name, weight
        return
    start = 0
    for part, axis in parts.items():
        yield f"blk.{block}.{part}", weight[start : start + sizes[axis]]
        start += sizes[axis]


def load_weights(
    file: GGUFFile, hyper: Mapping[str, Any], on_tensor: OnTensor | None = None, *, stored: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """The weights one by one, as (llama.cpp name, float32 array in numpy order), rotated rows in NEOX order.

    `stored`: matrices come as `GGUFFile.stored` gives them, in 8 bits where the file has blocks of 32.

    A fused tensor comes as its parts. Everything is checked before the first tensor comes, and one tensor at a time is
    held: a caller that stores each at once peaks at the weights plus one tensor. `on_tensor(name, i, n)` is called when
    the caller has stored tensor i (from 1) of n. Errors as `check_tensors`.
    """
    specs = check_tensors(file, hyper)
    sizes = axis_sizes(hyper)
    heads = ROTATED_ROLES if hyper["architecture"] == "llama" else {}
    read = file.stored if stored else file.tensor
    for i, spec in enumerate(specs, 1):
        for name, weight in parts_of(spec.name, read(spec.name), sizes):
            n_head = heads.get(split_name(name)[1])
            yield name, weight if n_head is None else _neox(weight, hyper[n_head], hyper)
        if on_tensor is not None:
            on_tensor(spec.name, i, len(specs))


def _neox(weight: Tensor, n_head: int, hyper: Mapping[str, Any]) -> Tensor:
    return unpermute_rope(weight, n_head, hyper["rope_dimension_count"])
