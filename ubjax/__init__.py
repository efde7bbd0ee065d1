"""ubjax: ragged language-model traffic in fixed shapes, llama.cpp's batch -> ubatch -> KV pipeline as a JAX program."""

from ubjax.batch import Batch
from ubjax.batch_builder import BatchBuilder
from ubjax.config import BatchConfig, MemoryConfig

__version__ = "0.1.0"

__all__ = ["Batch", "BatchBuilder", "BatchConfig", "MemoryConfig"]
