"""Small GGUF files for tests: well-formed ones by gguf's writer, and odd ones byte by byte."""

import struct
from pathlib import Path

import gguf
import numpy as np

GGML = gguf.GGMLQuantizationType
HYPER = {
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 12,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 3,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
VOCAB, EMBD, FF, HEADS, KV_HEADS, WIDTH = 10, 12, 16, 3, 1, 4


def write_gguf(path: Path, fields: dict, tensors: dict, architecture: str = "llama") -> Path:
    """Write a file; integers become u32, floats f32; a tensor is an F32 array or (blocks, type)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        array, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_tensors(rng: np.random.Generator, n_blocks: int = 2) -> dict[str, np.ndarray]:
    """Random F32 tensors of a tied llama with the sizes of HYPER, no biases."""
    shapes = {"token_embd.weight": (VOCAB, EMBD), "output_norm.weight": (EMBD,)}
    for block in range(n_blocks):
        for role, shape in {
            "attn_norm.weight": (EMBD,),
            "attn_q.weight": (HEADS * WIDTH, EMBD),
            "attn_k.weight": (KV_HEADS * WIDTH, EMBD),
            "attn_v.weight": (KV_HEADS * WIDTH, EMBD),
            "attn_output.weight": (EMBD, HEADS * WIDTH),
            "ffn_norm.weight": (EMBD,),
            "ffn_gate.weight": (FF, EMBD),
            "ffn_up.weight": (FF, EMBD),
            "ffn_down.weight": (EMBD, FF),
        }.items():
            shapes[f"blk.{block}.{role}"] = shape
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def vocabulary_fields(
    model: str, tokens: list[str], kinds: list[int] | None = None, scores: list[float] | None = None, **more
) -> dict:
    """The keys of a tokenizer; `more` are names under tokenizer.ggml."""
    fields = {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens}
    fields["tokenizer.ggml.token_type"] = kinds or [1] * len(tokens)
    if scores:
        fields["tokenizer.ggml.scores"] = scores
    return fields | {f"tokenizer.ggml.{name}": value for name, value in more.items()}


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    """One metadata key with its value."""
    return text(name) + struct.pack("<I", kind) + payload


def tensor_row(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    """One row of the tensor table; dims innermost first."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def raw_gguf(keys: list[bytes], rows: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    """A whole file from its parts, padded to 32 before the data."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(keys)) + b"".join(keys + rows)
    return header + b"\0" * (-len(header) % 32) + data
