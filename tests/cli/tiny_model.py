"""A tiny GGUF of the llama architecture with a byte-level vocabulary, for the command line's tests."""

from pathlib import Path

import numpy as np

from tests.loaders.tiny_gguf import EMBD, HYPER, llama_tensors, vocabulary_fields, write_gguf
from ubjax.loaders.bpe import BYTE_OF

TOKENS = [*BYTE_OF, "ab", "<|end|>"]


def write_tiny_model(path: Path, *, seed: int = 0, **fields) -> Path:
    """Random weights; `fields` replace or add metadata keys."""
    rng = np.random.default_rng(seed)
    tensors = llama_tensors(rng)
    tensors["token_embd.weight"] = rng.standard_normal((len(TOKENS), EMBD)).astype(np.float32)
    kinds = [1] * (len(TOKENS) - 1) + [3]
    words = vocabulary_fields(
        "gpt2", TOKENS, kinds, pre="gpt-2", merges=["a b"], eos_token_id=len(TOKENS) - 1
    )
    return write_gguf(path, {**HYPER, **words, **fields}, tensors)
