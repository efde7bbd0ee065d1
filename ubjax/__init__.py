"""ubjax: ragged language-model traffic in fixed shapes, llama.cpp's batch -> ubatch -> KV pipeline as a JAX program."""

from ubjax.analysis import count_compilations
from ubjax.batch import Batch
from ubjax.batch_builder import BatchBuilder
from ubjax.buckets import Bucket
from ubjax.compilation_cache import use_compilation_cache
from ubjax.config import BatchConfig, EngineConfig, MemoryConfig
from ubjax.control import required_ubatch
from ubjax.decode_loop import LoopRows, LoopState, loop_bucket, reserve_steps, staged_rows
from ubjax.encoder_engine import EncoderEngine
from ubjax.engine import Engine
from ubjax.generate import Sampling
from ubjax.ladders import BucketLadder, RectangleLadder
from ubjax.loaders import load_model
from ubjax.memory.one_each import place_one_each
from ubjax.outputs import Outputs
from ubjax.positions import mrope_positions
from ubjax.split import SplitPlan, split_equal, split_seq, split_simple, split_whole
from ubjax.status import DecodeError, InvalidBatchError, NoSlotError
from ubjax.step import Step
from ubjax.ubatch import Ubatch, take_ubatch
from ubjax.viz import show
from ubjax.whole_decode import decode_whole

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchBuilder",
    "BatchConfig",
    "Bucket",
    "BucketLadder",
    "DecodeError",
    "EncoderEngine",
    "Engine",
    "EngineConfig",
    "InvalidBatchError",
    "LoopRows",
    "LoopState",
    "MemoryConfig",
    "NoSlotError",
    "Outputs",
    "RectangleLadder",
    "Sampling",
    "SplitPlan",
    "Step",
    "Ubatch",
    "count_compilations",
    "decode_whole",
    "load_model",
    "loop_bucket",
    "mrope_positions",
    "place_one_each",
    "required_ubatch",
    "reserve_steps",
    "show",
    "split_equal",
    "split_seq",
    "split_simple",
    "split_whole",
    "staged_rows",
    "take_ubatch",
    "use_compilation_cache",
]
