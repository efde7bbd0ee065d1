"""A tiny random decoder and engines on it, for tests that need logits but no language."""

import dataclasses
import functools

import jax
import numpy as np
from flax import nnx

from ubjax import BucketLadder, EncoderEngine, Engine, EngineConfig
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.models.encoder import Encoder, EncoderConfig

CONFIG = DecoderConfig(
    n_layers=2,
    n_embd=16,
    n_ff=32,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    n_vocab=61,
    n_ctx_train=64,
    rope_dim=8,
    tie_embeddings=True,
)


@functools.cache
def tiny_model() -> Decoder:
    """The same random decoder for the whole session, so that programs are shared."""
    return Decoder(CONFIG, rngs=nnx.Rngs(0))


ENCODER = EncoderConfig(
    n_layers=2,
    n_embd=16,
    n_ff=24,
    n_heads=2,
    n_vocab=61,
    n_ctx_train=48,
    pooler=True,
    n_labels=1,
)


@functools.cache
def tiny_encoder() -> Encoder:
    """The same random encoder with a classification head for the whole session."""
    return Encoder(ENCODER, rngs=nnx.Rngs(0))


def tiny_encoder_engine(tokenizer=None, **sizes) -> EncoderEngine:
    """An engine on it, of 8 sequences, 32 tokens in a batch and 16 rows in a ubatch unless the sizes say otherwise."""
    sizes = {"n_seq_max": 8, "n_batch": 32, "n_ubatch": 16, **sizes}
    return EncoderEngine(tiny_encoder(), tokenizer, EngineConfig(**sizes))


def tiny_engine(tokenizer=None, **sizes) -> Engine:
    """An engine on it; 64 cells, rounded to 16, unless the sizes say otherwise."""
    return Engine(tiny_model(), tokenizer, EngineConfig(**{"n_ctx": 64, "kv_pad": 16, **sizes}))


def one_capacity(engine: Engine) -> Engine:
    """The engine with batches of one capacity: fewer programs that plan and stage them."""
    capacity = BucketLadder((engine.buckets.capacity.top,))
    engine.buckets = dataclasses.replace(engine.buckets, capacity=capacity)
    return engine


def state(engine: Engine) -> list[np.ndarray]:
    """Copies of every array of the cache: cells, then K/V."""
    cells, kv = vars(engine)["_cells"], vars(engine)["_kv"]
    return [np.array(x) for x in jax.tree.leaves((cells, kv))]


def unchanged(engine: Engine, before: list[np.ndarray]) -> bool:
    """Whether the cache is bit for bit as it was."""
    after = state(engine)
    return all(a.tobytes() == b.tobytes() for a, b in zip(after, before, strict=True))


class Letters:
    """A tokenizer of one byte a token: id 1 + index in the alphabet; 0 ends a generation."""

    eog_ids = frozenset({0})
    alphabet = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:!?-"

    def encode(self, text: str, /) -> list[int]:
        return [1 + self.alphabet.index(letter) for letter in text]

    def stream(self) -> "Letters":
        return self

    def feed(self, ids, /) -> str:
        return "".join(self.alphabet[i - 1] for i in ids)

    def flush(self) -> str:
        return ""
