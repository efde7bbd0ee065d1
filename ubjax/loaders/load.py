"""A model file or folder to a model and its tokenizer."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ubjax.config import WEIGHT_DTYPES
from ubjax.loaders import bert
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import open_gguf
from ubjax.loaders.hf_check import check_config, text_part
from ubjax.loaders.hf_config import hf_hyperparameters
from ubjax.loaders.hf_folder import CONFIG, FolderError, HFFolder
from ubjax.loaders.hf_names import hf_weights, whole_name
from ubjax.loaders.hf_pooling import read_pooling
from ubjax.loaders.hf_tokenizer import read_tokenizer
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.metadata import GGUFError
from ubjax.loaders.names import OnTensor, load_weights
from ubjax.loaders.tokenizer import Tokenizer
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.models.encoder import Encoder, EncoderConfig
from ubjax.models.matrix import dtype_name
from ubjax.models.weights import Tensor

T = TypeVar("T", bound=Tensor)
STORED = "stored"


def load_model(
    name_or_path: str | os.PathLike[str], *, dtype: Any = "float32", on_tensor: OnTensor | None = None
) -> tuple[Decoder | Encoder, Tokenizer]:
    """The model and the tokenizer of a GGUF file, of a Hugging Face folder or of an installed model package.

    Packages are known as "smollm2", "gemma3" and "minilm"; owner/name is looked up on the Hugging Face hub where
    huggingface_hub is installed. A folder has config.json, tokenizer.json and its weights as safetensors (one file, or
    several with an index). The model is a decoder, or an encoder where the architecture is BERT's.

    Weights are dequantized or converted and stored as `dtype`, tensor by tensor; after each, `on_tensor(name, i, n)`
    is told that i of n are there. Vectors are float32 always, matrices are

        float32, bfloat16, float16    rounded to it, and what is multiplied with them (jax's and numpy's dtypes will do)
        int8      8 bits with a scale for each row; what is multiplied with them is rounded to twice 8 bits
        q8_0      8 bits with a scale for 32 values, as ggml rounds them; float32 where rows are no multiple of 32
        stored    as a GGUF file holds them, exactly, where that is Q4_0 or Q4_1 (4 bits), Q5_0, Q5_1 or Q8_0 (8 bits),
                  with a scale and perhaps an offset for 32 values; others become float32

    and stay so while programs run. Raises ValueError (ModelNotFoundError, GGUFError, FolderError) with one sentence
    when there is no such model or it can't be used, for weights that `dtype` can't keep, and for a folder to be loaded
    as "stored".
    """
    dtype = dtype_name(dtype)
    source = find_model(name_or_path)
    if isinstance(source, Path) and source.is_dir():
        if dtype == STORED:
            others = ", ".join(name for name in WEIGHT_DTYPES if name != STORED)
            raise FolderError(
                f"{source}: dtype is {STORED!r} but a folder holds no blocks, one of {others} is needed"
            )
        return _load_folder(HFFolder(source), dtype, on_tensor)
    file = open_gguf(source)
    if file.architecture == bert.MODEL_TYPE:
        config, pooling = bert.gguf_config(file)
        tokenizer = Tokenizer.from_gguf(file)
        weights = _told(bert.gguf_weights(file, stored=dtype == STORED), len(file.tensors), on_tensor)
        try:
            return Encoder.from_weights(config, weights, dtype, pooling), tokenizer
        except ValueError as error:
            raise error if isinstance(error, GGUFError) else file.metadata.error(str(error)) from None
    hyper = hyperparameters(file)
    tokenizer = Tokenizer.from_gguf(file)
    config = DecoderConfig.from_hyperparameters(hyper)
    weights = load_weights(file, hyper, on_tensor, stored=dtype == STORED)
    return Decoder.from_weights(config, weights, dtype), tokenizer


def load_decoder(
    name_or_path: str | os.PathLike[str], *, dtype: Any = "float32", on_tensor: OnTensor | None = None
) -> tuple[Decoder, Tokenizer]:
    """As `load_model`, where text is to be generated: ValueError for an encoder."""
    model, tokenizer = load_model(name_or_path, dtype=dtype, on_tensor=on_tensor)
    if not isinstance(model, Decoder):
        raise ValueError(f"{name_or_path} is an encoder, which generates no text: a decoder is needed")
    return model, tokenizer


def _load_folder(
    folder: HFFolder, dtype: str, on_tensor: OnTensor | None
) -> tuple[Decoder | Encoder, Tokenizer]:
    weights = _told(folder.weights(), len(folder.tensors), on_tensor)
    pooling = read_pooling(folder)
    try:
        settings = text_part(folder.config)
        check_config(settings, folder.tensors)
        if settings.get("model_type") == bert.MODEL_TYPE:
            config, hyper = bert.folder_config(settings, folder.shapes), {}
        else:
            hyper = hf_hyperparameters(settings, map(whole_name, folder.tensors))
            config = DecoderConfig.from_hyperparameters(hyper)
    except ValueError as error:
        raise folder.error(CONFIG, str(error)) from None
    tokenizer = read_tokenizer(folder, config.n_vocab)
    try:
        if isinstance(config, EncoderConfig):
            return Encoder.from_weights(config, bert.folder_weights(weights), dtype, pooling), tokenizer
        named = ((whole_name(name), weight) for name, weight in weights)
        return Decoder.from_weights(config, hf_weights(named, hyper), dtype, pooling), tokenizer
    except ValueError as error:
        raise error if isinstance(error, FolderError) else FolderError(f"{folder.path}: {error}") from None


def _told(weights: Iterable[tuple[str, T]], n: int, on_tensor: OnTensor | None) -> Iterator[tuple[str, T]]:
    """The weights; `on_tensor` hears of each when the next one is asked for."""
    for i, (name, weight) in enumerate(weights, 1):
        yield name, weight
        if on_tensor is not None:
            on_tensor(name, i, n)
