"""ubjax: ragged language-model traffic in fixed shapes, llama.cpp's batch -> ubatch -> KV pipeline as a JAX program."""

from ubjax.analysis import count_compilations
from ubjax.batch import Batch
from ubjax.batch_builder import BatchBuilder
from ubjax.config import BatchConfig, EngineConfig, MemoryConfig
from ubjax.engine import Engine
from ubjax.loaders import load_model
from ubjax.outputs import Outputs
from ubjax.split import split_equal, split_seq, split_simple

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchBuilder",
    "BatchConfig",
    "Engine",
    "EngineConfig",
    "MemoryConfig",
    "Outputs",
    "count_compilations",
    "load_model",
    "split_equal",
    "split_seq",
    "split_simple",
]
