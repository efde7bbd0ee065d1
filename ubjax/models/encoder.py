"""Encoder: BERT and its kin; tokens, token types and learned positions, layers normed behind each part. No cache.

R rows of a padded ubatch, E width of the model, L labels of a classification head. Rows of one sequence are
neighbours, and see each other and nothing else.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.models.encoder_weights import encoder_places
from ubjax.models.layers import LayerNorm, Linear, random_matrix
from ubjax.models.matrix import Store, store_of
from ubjax.models.weights import Tensor, fill_weights
from ubjax.pooling import Pooling
from ubjax.ragged import first_seq
from ubjax.typing import Array, Bool, Float
from ubjax.ubatch import Ubatch

ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and constants of an encoder; frozen and hashable.

    `n_ctx_train` is the number of learned positions, `n_token_types` that of token types. `activation`: "gelu" (by
    erf), "gelu_tanh" or "relu". `pooler`: there is a dense layer with tanh on the first row; `n_labels`: labels of the
    classification head behind it (0: none). Raises ValueError for sizes that can't be.
    """

    architecture: str = "bert"
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_vocab: int
    n_ctx_train: int
    n_token_types: int = 2
    norm_eps: float = 1e-12
    activation: str = "gelu"
    pooler: bool = False
    n_labels: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "n_labels" else 1
            if field.type is int and value < least:
                raise ValueError(f"{field.name} is {value}, at least {least} is needed")
        if self.n_embd % self.n_heads:
            raise ValueError(
                f"{self.n_heads} heads can't share a width of {self.n_embd}, a divisor is needed"
            )
        if not (math.isfinite(self.norm_eps) and self.norm_eps > 0):
            raise ValueError(f"norm_eps is {self.norm_eps}, a finite number above 0 is needed")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"the activation is {self.activation!r}, one of {', '.join(ACTIVATIONS)} is needed"
            )


class EncoderLayer(nnx.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x)); q, k and v are stacked in one matrix."""

    def __init__(self, config: EncoderConfig, *, store: Store, rngs: nnx.Rngs):
        n, more = config.n_embd, {"bias": True, "store": store, "rngs": rngs}
        self.config = config
        self.qkv = Linear(n, 3 * n, **more)
        self.output = Linear(n, n, **more)
        self.attn_norm = LayerNorm(n, config.norm_eps)
        self.up = Linear(n, config.n_ff, **more)
        self.down = Linear(config.n_ff, n, **more)
        self.ffn_norm = LayerNorm(n, config.norm_eps)

    def __call__(self, x: Float[Array, "R E"], seen: Bool[Array, "B t w"]) -> Float[jax.Array, "R E"]:
        """The rows after this layer."""
        x = self.attn_norm(x + self.output(attend_near(self.qkv(x), seen, self.config.n_heads)))
        return self.ffn_norm(x + self.down(ACTIVATIONS[self.config.activation](self.up(x))))


class Encoder(nnx.Module):
    """A bidirectional encoder. `Encoder(config, rngs=nnx.Rngs(0))` has random weights.

    `pooling`: what the model's files say about pooling, where they do.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        rngs: nnx.Rngs,
        dtype: Any = jnp.float32,
        pooling: Pooling | None = None,
    ):
        n = config.n_embd
        self.config, self.pooling = config, pooling
        store = store_of(dtype, few_rows=False)
        self.embedding = random_matrix(rngs, config.n_vocab, n, store)
        self.positions = random_matrix(rngs, config.n_ctx_train, n, store)
        self.types = random_matrix(rngs, config.n_token_types, n, store)
        self.norm = LayerNorm(n, config.norm_eps)
        self.layers = nnx.List([EncoderLayer(config, store=store, rngs=rngs) for _ in range(config.n_layers)])
        head = {"bias": True, "store": store, "rngs": rngs}
        self.pooler = Linear(n, n, **head) if config.pooler else None
        self.classifier = Linear(n, config.n_labels, **head) if config.n_labels else None

    @classmethod
    def from_weights(
        cls,
        config: EncoderConfig,
        weights: Iterable[tuple[str, Tensor]],
        dtype: Any = jnp.float32,
        pooling: Pooling | None = None,
    ) -> "Encoder":
        """An encoder from (llama.cpp tensor name, array) pairs in any order, as `Decoder.from_weights` takes them."""
        model = nnx.eval_shape(lambda: cls(config, rngs=nnx.Rngs(0), dtype=dtype, pooling=pooling))
        fill_weights(dict(encoder_places(model)), weights, store_of(dtype, few_rows=False))
        return model

    def __call__(self, ubatch: Ubatch, span: int) -> Float[jax.Array, "R E"]:
        """The rows after the last layer; what padding gets is finite.

        span (static): rows of the longest sequence at most. Rows of an embedding are taken in place of a looked-up
        token, a state row of one value is the token's type (0 without). Raises ValueError (before tracing) for rows of
        another width.
        """
        x = self.norm(self._embed(ubatch))
        seen = visible(ubatch, span)
        for layer in self.layers:
            x = layer(x, seen)
        return x

    def rank(self, rows: Float[Array, "n E"]) -> Float[jax.Array, "n L"]:
        """The labels' logits from the first row of each sequence."""
        if self.classifier is None:
            raise ValueError("the model has no classification head, a model with one is needed to rank")
        pooled = jnp.asarray(rows) if self.pooler is None else jnp.tanh(self.pooler(rows))
        return self.classifier(pooled)

    def _embed(self, ubatch: Ubatch) -> Float[jax.Array, "R E"]:
        """Token, position and type, added."""
        if ubatch.embd.shape[1]:
            raise ValueError("the encoder takes token ids, embedding rows were found")
        n_types = ubatch.state.shape[1]
        kind = jnp.asarray(ubatch.state)[:, 0].astype(jnp.int32) if n_types else jnp.zeros_like(ubatch.token)
        tables = (self.embedding, ubatch.token), (self.positions, ubatch.pos[0]), (self.types, kind)
        rows = (table.rows(at) for table, at in tables)
        return sum(rows, start=jnp.zeros(()).reshape(1, 1))


def visible(ubatch: Ubatch, span: int) -> Bool[jax.Array, "B t w"]:
    """Which rows a row sees: those of its own sequence, of w that are near.

    A sequence of at most `span` rows lies within a tile of t = span rows and its two neighbours, so w = 3 t; where
    that is no saving, t and w are all R rows. B tiles.
    """
    ids = jnp.where(ubatch.valid, first_seq(ubatch.seq), -1)
    n_rows = ubatch.bucket.n_rows
    if 3 * span >= n_rows or n_rows % span:
        own, near = ids[None], ids[None]
    else:
        own = ids.reshape(-1, span)
        near = _neighbours(own, -1)
    return (own[:, :, None] == near[:, None, :]) & (near >= 0)[:, None, :]


def attend_near(
    qkv: Float[Array, "R E3"], seen: Bool[Array, "B t w"], n_heads: int
) -> Float[jax.Array, "R E"]:
    """softmax(q k / sqrt(D)) v over the rows that each row sees; q, k and v [R, E] side by side."""
    n_tiles, t, w = seen.shape
    n_rows, width = qkv.shape[0], qkv.shape[1] // 3
    d = width // n_heads
    q, k, v = jnp.split(jnp.asarray(qkv).reshape(n_tiles, t, 3 * n_heads, d), 3, axis=2)
    if w > t:
        k, v = _neighbours(k, 0), _neighbours(v, 0)
    highest = {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    score = jnp.einsum("bthd,bwhd->bhtw", q * d**-0.5, k, **highest)
    score = jnp.where(seen[:, None], score, jnp.finfo(jnp.float32).min)
    # Divided behind the product: dividing [t, w] weights took three times as long as all the rest on the CPU.
    weight = jnp.exp(score - jnp.max(score, axis=-1, keepdims=True))
    out = jnp.einsum("bhtw,bwhd->bhtd", weight, v, **highest) / jnp.sum(weight, axis=-1, keepdims=True)
    return out.transpose(0, 2, 1, 3).reshape(n_rows, width)


def _neighbours(tiles: Array, nothing: int) -> jax.Array:
    """Each tile [B, t, ...] between the one before and the one behind it: [B, 3 t, ...]."""
    edge = jnp.full_like(tiles[:1], nothing)
    before = jnp.concatenate([edge, tiles[:-1]])
    behind = jnp.concatenate([tiles[1:], edge])
    return jnp.concatenate([before, tiles, behind], axis=1)
