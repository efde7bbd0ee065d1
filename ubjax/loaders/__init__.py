"""Model files and folders into hyperparameters, weights and a tokenizer; its use needs the extra `ubjax[gguf]`."""

from ubjax.loaders.find import ModelNotFoundError, find_model
from ubjax.loaders.gguf import GGUFFile, open_gguf
from ubjax.loaders.hf_folder import FolderError, HFFolder
from ubjax.loaders.load import load_decoder, load_model
from ubjax.loaders.metadata import GGUFError
from ubjax.loaders.tokenizer import StreamDecoder, Tokenizer

__all__ = [
    "FolderError",
    "GGUFError",
    "GGUFFile",
    "HFFolder",
    "ModelNotFoundError",
    "StreamDecoder",
    "Tokenizer",
    "find_model",
    "load_decoder",
    "load_model",
    "open_gguf",
]
