"""A model file to a decoder and its tokenizer."""

import os

from ubjax.config import check_dtype
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import open_gguf
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import OnTensor, load_weights
from ubjax.loaders.tokenizer import Tokenizer
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.typing import Text


def load_model(
    name_or_path: str | os.PathLike[str], *, dtype: Text = "float32", on_tensor: OnTensor | None = None
) -> tuple[Decoder, Tokenizer]:
    """The decoder and the tokenizer of a GGUF file, or of an installed model package ("smollm2", "gemma3").

    Weights are dequantized and stored as `dtype`, tensor by tensor; after each, `on_tensor(name, i, n)` is told
    that i of n are there. Raises ValueError (ModelNotFoundError,
    GGUFError) with one sentence when there is no such model or the file can't be used.
    """
    check_dtype("dtype", dtype)
    file = open_gguf(find_model(name_or_path))
    hyper = hyperparameters(file)
    tokenizer = Tokenizer.from_gguf(file)
    config = DecoderConfig.from_hyperparameters(hyper)
    return Decoder.from_weights(config, load_weights(file, hyper, on_tensor), dtype), tokenizer
