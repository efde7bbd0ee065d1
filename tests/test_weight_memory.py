"""Weights stay as small as they are stored while an engine's programs run: no matrix is held in float32 beside them."""

import dataclasses

import gguf
import jax
import pytest
from flax import nnx

from tests.models.helpers import GROUPED, random_weights
from ubjax import Engine, EngineConfig
from ubjax.config import WEIGHT_DTYPES
from ubjax.loaders.blocks import FORMATS, read_blocks
from ubjax.models.decoder import Decoder

# 20 MiB in float32: 4 of each layer, 4 of the embedding.
SIZES = {"n_layers": 4, "n_embd": 256, "n_ff": 1024, "n_vocab": 4096}
MODEL = dataclasses.replace(GROUPED, **SIZES, n_heads=4, n_kv_heads=4, head_dim=64, rope_dim=64)
MIB = 2**20
PART = 2.75 * MIB  # 2**19 values in float32, before that perhaps in 8 bits, and what is around them


def weights_as(name):
    """Random weights: by a dtype's name, or as blocks of a file's format."""
    weights = random_weights(MODEL)
    if name not in FORMATS:
        return weights.items()
    kind = gguf.GGMLQuantizationType[name]
    return [
        (tensor, read_blocks(gguf.quants.quantize(value, kind), name) if value.ndim == 2 else value)
        for tensor, value in weights.items()
    ]


def warmed(name):
    dtype = name if name in WEIGHT_DTYPES else "stored"
    model = Decoder.from_weights(MODEL, weights_as(name), dtype)
    engine = Engine(model, None, EngineConfig(n_ctx=64, n_seq_max=2, n_ubatch=32, kv_pad=64, kv_unified=True))
    programs = {(p.function, p.shape): p.temp_bytes for p in engine.warmup().programs}
    return engine, programs, sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model))) / MIB


@pytest.fixture(scope="module")
def of_float32():
    return warmed("float32")[1]


@pytest.mark.parametrize(
    ("name", "n_mib"),
    [
        ("bfloat16", 10.0),
        ("float16", 10.0),
        ("int8", 5.0),
        ("q8_0", 5.3),
        ("Q8_0", 5.3),
        ("Q4_0", 2.8),
        ("Q4_1", 3.1),
        ("Q5_0", 5.3),
        ("Q5_1", 5.6),
    ],
)
def test_no_program_holds_the_weights_in_float32(of_float32, name, n_mib):
    engine, programs, found = warmed(name)
    assert programs.keys() == of_float32.keys()
    functions = {function for function, _ in programs}
    assert {"step", "decode_steps"} <= functions
    more = {program: n - of_float32[program] for program, n in programs.items()}
    assert max(more.values()) < PART, max(more, key=more.get)
    assert found == pytest.approx(n_mib, abs=0.1)
    assert f"weights {found:.0f} MiB, K/V of 0 cells: 0 MiB)" in repr(engine)
