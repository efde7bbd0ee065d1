"""BERT's configuration and tensor names, of a Hugging Face folder and of a GGUF."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float32

from ubjax.loaders.gguf import GGUFFile
from ubjax.loaders.hf_config import need
from ubjax.loaders.hyperparameters import check_blocks, positive, size, vocab_size
from ubjax.models.encoder import EncoderConfig
from ubjax.models.weights import Tensor
from ubjax.pooling import Pooling

MODEL_TYPE = "bert"
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
GLOBAL_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
LAYER_NAME = re.compile(r"encoder\.layer\.(\d{1,9})\.(.+)", re.ASCII)
KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}  # the last two of old files
LANGUAGE_HEAD = "cls."  # of Hugging Face's names: guesses masked words, an encoder does without
# llama.cpp's pooling types.
POOLING_TYPES = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}


def llama_cpp_name(name: str) -> str | None:
    """llama.cpp's name of a Hugging Face tensor, None for one that is not needed. ValueError for an unknown one.

    >>> llama_cpp_name("bert.encoder.layer.3.attention.self.query.bias")
    'blk.3.attn_q.bias'
    """
    own = name.removeprefix("bert.")
    if own.startswith(LANGUAGE_HEAD):
        return None
    stem, _, kind = own.rpartition(".")
    layer = LAYER_NAME.fullmatch(stem)
    known = LAYER_NAMES.get(layer[2]) if layer else GLOBAL_NAMES.get(stem)
    if known is None or kind not in KINDS:
        raise ValueError(f"the tensor {name!r} is not one that the architecture 'bert' uses")
    return f"blk.{layer[1]}.{known}.{KINDS[kind]}" if layer else f"{known}.{KINDS[kind]}"


def folder_config(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> EncoderConfig:
    """The configuration of a folder from its config.json and the shapes of its tensors."""
    names = {llama_cpp_name(name): shape for name, shape in shapes.items()}
    activation = config.get("hidden_act") or "gelu"
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"the activation {activation!r} is not supported, one of {', '.join(ACTIVATIONS)} is needed"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError("position_embedding_type is not 'absolute', learned positions are needed")
    if config.get("is_decoder"):
        raise ValueError("is_decoder is true, a model whose tokens see all of their text is needed")
    return EncoderConfig(
        n_layers=need(config, "num_hidden_layers"),
        n_embd=need(config, "hidden_size"),
        n_ff=need(config, "intermediate_size"),
        n_heads=need(config, "num_attention_heads"),
        n_vocab=need(config, "vocab_size"),
        n_ctx_train=need(config, "max_position_embeddings"),
        n_token_types=config.get("type_vocab_size") or 2,
        norm_eps=config.get("layer_norm_eps") or 1e-12,
        activation=ACTIVATIONS[activation],
        pooler="cls.weight" in names,
        n_labels=_rows(names, "cls.output.weight", 0),
    )


def _rows(shapes: Mapping[Any, tuple[int, ...]], name: str, default: int) -> int:
    """Rows of a tensor, `default` without it; 1 of one without axes, which is refused when it is to be loaded."""
    return (*shapes[name], 1)[0] if name in shapes else default


def folder_weights(
    tensors: Iterable[tuple[str, Float32[np.ndarray, "..."]]],
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    """The weights one by one under llama.cpp's names."""
    for name, weight in tensors:
        known = llama_cpp_name(name)
        if known is not None:
            yield known, weight


def gguf_config(file: GGUFFile) -> tuple[EncoderConfig, Pooling | None]:
    """The configuration of a GGUF of the architecture "bert", and the pooling it asks for."""
    n_layers = size(file, "block_count")
    check_blocks(file, n_layers)
    if file.metadata.optional("bert.attention.causal", bool, False):
        raise file.metadata.error(
            "bert.attention.causal is true, a model whose tokens see all of their text is needed"
        )
    shapes = {name: info.shape for name, info in file.tensors.items()}
    config = EncoderConfig(
        n_layers=n_layers,
        n_embd=size(file, "embedding_length"),
        n_ff=size(file, "feed_forward_length"),
        n_heads=size(file, "attention.head_count"),
        n_vocab=vocab_size(file),
        n_ctx_train=_rows(shapes, "position_embd.weight", size(file, "context_length")),
        n_token_types=_rows(shapes, "token_types.weight", 1),
        norm_eps=positive(file, "attention.layer_norm_epsilon"),
        pooler="cls.weight" in shapes,
        n_labels=_rows(shapes, "cls.output.weight", 0),
    )
    kind = file.metadata.optional("bert.pooling_type", int, None)
    if kind is None:
        return config, None
    if kind not in POOLING_TYPES:
        raise file.metadata.error(f"bert.pooling_type is {kind}, 0 to {max(POOLING_TYPES)} is needed")
    return config, Pooling(kind=POOLING_TYPES[kind])


def gguf_weights(file: GGUFFile, *, stored: bool = False) -> Iterator[tuple[str, Tensor]]:
    """The weights one by one; `stored` as of `names.load_weights`."""
    read = file.stored if stored else file.tensor
    for name in file.tensors:
        yield name, read(name)
