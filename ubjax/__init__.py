"""ubjax: ragged language-model traffic in fixed shapes, llama.cpp's batch -> ubatch -> KV pipeline as a JAX program."""

from ubjax.analysis import count_compilations
from ubjax.batch import Batch
from ubjax.batch_builder import BatchBuilder
from ubjax.config import BatchConfig, EngineConfig, MemoryConfig
from ubjax.outputs import Outputs
from ubjax.split import split_equal, split_seq, split_simple

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchBuilder",
    "BatchConfig",
    "EngineConfig",
    "MemoryConfig",
    "Outputs",
    "count_compilations",
    "split_equal",
    "split_seq",
    "split_simple",
]
