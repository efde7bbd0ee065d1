"""A model file or folder to a model and its tokenizer."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from ubjax.config import check_dtype
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import open_gguf
from ubjax.loaders.hf_check import check_config
from ubjax.loaders.hf_config import hf_hyperparameters
from ubjax.loaders.hf_folder import CONFIG, HFFolder
from ubjax.loaders.hf_names import hf_weights, whole_name
from ubjax.loaders.hf_tokenizer import read_tokenizer
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import OnTensor, load_weights
from ubjax.loaders.tokenizer import Tokenizer
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.typing import Text


def load_model(
    name_or_path: str | os.PathLike[str], *, dtype: Text = "float32", on_tensor: OnTensor | None = None
) -> tuple[Decoder, Tokenizer]:
    """The decoder and the tokenizer of a GGUF file, of a Hugging Face folder or of an installed model package.

    Packages are known as "smollm2", "gemma3" and "minilm"; owner/name is looked up on the Hugging Face hub where
    huggingface_hub is installed. A folder has config.json, tokenizer.json and its weights as safetensors (one file, or
    several with an index).

    Weights are dequantized or converted and stored as `dtype`, tensor by tensor; after each, `on_tensor(name, i, n)`
    is told that i of n are there. Raises ValueError (ModelNotFoundError,
    GGUFError, FolderError) with one sentence when there is no such model or it can't be used.
    """
    check_dtype("dtype", dtype)
    source = find_model(name_or_path)
    if isinstance(source, Path) and source.is_dir():
        return _load_folder(HFFolder(source), dtype, on_tensor)
    file = open_gguf(source)
    hyper = hyperparameters(file)
    tokenizer = Tokenizer.from_gguf(file)
    config = DecoderConfig.from_hyperparameters(hyper)
    return Decoder.from_weights(config, load_weights(file, hyper, on_tensor), dtype), tokenizer


def _load_folder(folder: HFFolder, dtype: Text, on_tensor: OnTensor | None) -> tuple[Decoder, Tokenizer]:
    try:
        check_config(folder.config, folder.tensors)
        hyper = hf_hyperparameters(folder.config, map(whole_name, folder.tensors))
        config = DecoderConfig.from_hyperparameters(hyper)
    except ValueError as error:
        raise folder.error(CONFIG, str(error)) from None
    tokenizer = read_tokenizer(folder, config.n_vocab)
    tensors = ((whole_name(name), weight) for name, weight in _told(folder, on_tensor))
    model = Decoder.from_weights(config, hf_weights(tensors, hyper), dtype)
    return model, tokenizer


def _told(folder: HFFolder, on_tensor: OnTensor | None) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    """The tensors of a folder; `on_tensor` hears of each when the next one is asked for."""
    for i, (name, weight) in enumerate(folder.weights(), 1):
        yield name, weight
        if on_tensor is not None:
            on_tensor(name, i, len(folder.tensors))
