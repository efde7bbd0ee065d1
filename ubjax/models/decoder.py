"""Decoder: embedding, layers of attention and feed-forward, head; one flax.nnx module for all decoder configurations.

R rows of a padded ubatch, E width of the model, O output rows, V vocabulary.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ubjax.batch import ROW_ID
from ubjax.memory.kv import KV, AllKV
from ubjax.models.attention import Attention, CellAccess
from ubjax.models.config import DecoderConfig
from ubjax.models.layers import GatedFeedForward, Linear, RMSNorm, linear, random_matrix
from ubjax.models.rope import Rotation, rotate, rotation
from ubjax.models.weights import fill_weights
from ubjax.typing import Array, Float, Int32
from ubjax.ubatch import Ubatch


class DecoderLayer(nnx.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: DecoderConfig, *, dtype: Any, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = Attention(config, dtype=dtype, rngs=rngs)
        self.ffn_norm = RMSNorm(config.n_embd, config.norm_eps)
        self.ffn = GatedFeedForward(
            config.n_embd,
            config.n_ff,
            in_bias=any(name in config.biases for name in ("ffn_gate", "ffn_up")),
            out_bias="ffn_down" in config.biases,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "R E"],
        k: Float[Array, "NS Hk Ckv D"],
        v: Float[Array, "NS Hk Ckv D"],
        access: CellAccess,
        at: Rotation,
    ) -> tuple[Float[jax.Array, "R E"], Float[jax.Array, "NS Hk Ckv D"], Float[jax.Array, "NS Hk Ckv D"]]:
        """The rows after this layer, and its K and V."""
        gathered, k, v = self.attn(self.attn_norm(x), k, v, access, at)
        x = gathered + x
        return self.ffn(self.ffn_norm(x)) + x, k, v


class Decoder(nnx.Module):
    """A causal language model over a K/V cache.

    `Decoder(config, rngs=nnx.Rngs(0))` has random weights, `Decoder.from_weights` those of a file.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, dtype: Any = jnp.float32):
        self.config = config
        self.embedding = random_matrix(rngs, config.n_vocab, config.n_embd, dtype)
        self.rope_factors = nnx.Param(jnp.ones(config.rope_dim // 2)) if config.rope_factors else None
        self.layers = nnx.List([DecoderLayer(config, dtype=dtype, rngs=rngs) for _ in range(config.n_layers)])
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.head = (
            None
            if config.tie_embeddings
            else Linear(config.n_embd, config.n_vocab, bias=False, dtype=dtype, rngs=rngs)
        )

    @classmethod
    def from_weights(
        cls, config: DecoderConfig, weights: Iterable[tuple[str, np.ndarray]], dtype: Any = jnp.float32
    ) -> "Decoder":
        """A decoder from (llama.cpp tensor name, array) pairs in any order; matrices [out, in], q and k in NEOX order.

        Matrices are stored as `dtype`, vectors as float32, and nothing is held twice: the peak is the weights and
        one tensor. Raises ValueError for a tensor that is unknown, missing, given twice or of another shape.
        """
        model = nnx.eval_shape(lambda: cls(config, rngs=nnx.Rngs(0), dtype=dtype))
        fill_weights(model, config, weights)
        return model

    def __call__(
        self, ubatch: Ubatch, kv: AllKV, access: tuple[CellAccess, ...]
    ) -> tuple[Float[jax.Array, "O V"], AllKV]:
        """Logits of the output rows (ubatch.out_rows; what padding gets is undefined but finite) and the new K/V.

        K/V and access are those of each cache, K/V with the cache's layers in order.
        Raises ValueError (before tracing) when rows of embeddings have another width than the model.
        """
        x = self._embed(ubatch)
        factors = None if self.rope_factors is None else self.rope_factors[...]
        at = rotation(jnp.asarray(ubatch.pos)[0], self.config.rope_dim, self.config.rope_theta, factors)
        ks, vs = [list(own.k) for own in kv], [list(own.v) for own in kv]
        for layer, (cache, i) in zip(self.layers, self.config.layer_places, strict=True):
            x, ks[cache][i], vs[cache][i] = layer(x, ks[cache][i], vs[cache][i], access[cache], at)
        return self._logits(x, ubatch), tuple(
            KV(k=tuple(k), v=tuple(v), n_cells=own.n_cells) for k, v, own in zip(ks, vs, kv, strict=True)
        )

    def shift_keys(self, kv: AllKV, shift: tuple[Int32[Array, "NS C"], ...]) -> AllKV:
        """K/V with the K rows of every cell rotated on by its shift, those with shift 0 untouched bit for bit.

        A K row computed at position p becomes that of position p + shift. K may hold fewer cells than C.
        """
        factors = None if self.rope_factors is None else self.rope_factors[...]

        def shifted(k: Float[Array, "NS Hk Ckv D"], by: Int32[Array, "NS C"]) -> jax.Array:
            n_streams, n_heads, n_cells, width = k.shape
            by = by[:, :n_cells].reshape(-1)
            at = rotation(by, self.config.rope_dim, self.config.rope_theta, factors)
            rows = k.transpose(0, 2, 1, 3).reshape(-1, n_heads, width)
            rows = jnp.where(
                (by != 0)[:, None, None], rotate(rows.astype(jnp.float32), at).astype(k.dtype), rows
            )
            return rows.reshape(n_streams, n_cells, n_heads, width).transpose(0, 2, 1, 3)

        return tuple(
            KV(k=tuple(shifted(k, by) for k in own.k), v=own.v, n_cells=own.n_cells)
            for own, by in zip(kv, shift, strict=True)
        )

    def _embed(self, ubatch: Ubatch) -> Float[jax.Array, "R E"]:
        """Rows with an id are looked up, the others are taken as they are."""
        width = ubatch.embd.shape[1]
        if width not in (0, self.config.n_embd):
            raise ValueError(f"embedding rows have {width} values, the model needs {self.config.n_embd}")
        looked_up = self.embedding[...].at[ubatch.token].get(mode="clip").astype(jnp.float32)
        if width == 0:
            return looked_up
        has_id = (jnp.asarray(ubatch.type) & ROW_ID) != 0
        return jnp.where(has_id[:, None], looked_up, jnp.asarray(ubatch.embd))

    def _logits(self, x: Float[Array, "R E"], ubatch: Ubatch) -> Float[jax.Array, "O V"]:
        if ubatch.bucket.n_outputs == 0:
            return jnp.zeros((0, self.config.n_vocab))
        wanted = jnp.asarray(x).at[ubatch.out_rows].get(mode="fill", fill_value=0)
        normed = self.norm(wanted)
        return linear(normed, self.embedding[...]) if self.head is None else self.head(normed)
