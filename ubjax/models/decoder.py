"""Decoder: embedding, layers of attention and feed-forward, head; one flax.nnx module for all decoder configurations.

R rows of a padded ubatch, E width of the model, O output rows, V vocabulary.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.batch import ROW_ID
from ubjax.memory.kv import KV, AllKV
from ubjax.models.attention import Attention, CellAccess
from ubjax.models.config import DecoderConfig
from ubjax.models.layers import GatedFeedForward, Linear, RMSNorm, random_matrix, soft_cap
from ubjax.models.matrix import Store, store_of
from ubjax.models.rope import Rotation, rotation, shift_rows
from ubjax.models.weights import Tensor, decoder_places, fill_weights
from ubjax.pooling import Pooling
from ubjax.typing import Array, Bool, Float, Int32
from ubjax.ubatch import Ubatch


class DecoderLayer(nnx.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); what is added may be normed once more."""

    def __init__(self, config: DecoderConfig, *, store: Store, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = Attention(config, store=store, rngs=rngs)
        self.attn_post_norm = RMSNorm(config.n_embd, config.norm_eps) if config.post_norms else None
        self.ffn_norm = RMSNorm(config.n_embd, config.norm_eps)
        self.ffn = GatedFeedForward(
            config.n_embd,
            config.n_ff,
            in_bias=any(name in config.biases for name in ("ffn_gate", "ffn_up")),
            out_bias="ffn_down" in config.biases,
            store=store,
            rngs=rngs,
            activation=config.activation,
        )
        self.ffn_post_norm = RMSNorm(config.n_embd, config.norm_eps) if config.post_norms else None

    def __call__(
        self,
        x: Float[Array, "R E"],
        k: Float[Array, "NS Hk Ckv D"],
        v: Float[Array, "NS Hk Ckv D"],
        access: CellAccess,
        at: Rotation,
        wanted: Int32[Array, " O"] | None = None,
    ) -> tuple[Float[jax.Array, "_ E"], Float[jax.Array, "NS Hk Ckv D"], Float[jax.Array, "NS Hk Ckv D"]]:
        """The rows after this layer, all of them or those that are `wanted` (0 out of range), and its K and V."""
        gathered, k, v = self.attn(self.attn_norm(x), k, v, access, at)
        if wanted is not None:
            gathered, x = (_rows(of, wanted) for of in (gathered, x))
        if self.attn_post_norm is not None:
            gathered = self.attn_post_norm(gathered)
        x = gathered + x
        added = self.ffn(self.ffn_norm(x))
        if self.ffn_post_norm is not None:
            added = self.ffn_post_norm(added)
        return added + x, k, v


class Decoder(nnx.Module):
    """A causal language model over a K/V cache.

    `Decoder(config, rngs=nnx.Rngs(0))` has random weights, `Decoder.from_weights` those of a file. `pooling`: what the
    model's files say about pooling, where they do. A class of one's own that reads the state rows of a ubatch says how
    wide they are with `n_embd_state`; then batches may carry them.
    """

    n_embd_state: int = 0

    def __init__(
        self,
        config: DecoderConfig,
        *,
        rngs: nnx.Rngs,
        dtype: Any = jnp.float32,
        pooling: Pooling | None = None,
    ):
        self.config, self.pooling = config, pooling
        store = store_of(dtype, few_rows=True)
        self.embedding = random_matrix(rngs, config.n_vocab, config.n_embd, store)
        self.rope_factors = nnx.Param(jnp.ones(config.rope_dim // 2)) if config.rope_factors else None
        self.layers = nnx.List([DecoderLayer(config, store=store, rngs=rngs) for _ in range(config.n_layers)])
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.head = (
            None
            if config.tie_embeddings
            else Linear(config.n_embd, config.n_vocab, bias=False, store=store, rngs=rngs)
        )

    @classmethod
    def from_weights(
        cls,
        config: DecoderConfig,
        weights: Iterable[tuple[str, Tensor]],
        dtype: Any = jnp.float32,
        pooling: Pooling | None = None,
    ) -> "Decoder":
        """A decoder from (llama.cpp tensor name, array) pairs in any order; matrices [out, in], q and k in NEOX order.

        Matrices are stored as `dtype` (`config.WEIGHT_DTYPES`), those that come as `QuantizedRows` as they are (parts
        of one matrix if all of them do), vectors as float32, one after the other: the peak is the weights and a
        few copies of one matrix. Raises ValueError for a tensor that is unknown, missing, given twice, of another
        shape, or with numbers that `dtype` can't keep.
        """
        model = nnx.eval_shape(lambda: cls(config, rngs=nnx.Rngs(0), dtype=dtype, pooling=pooling))
        fill_weights(dict(decoder_places(model, config)), weights, store_of(dtype, few_rows=True))
        return model

    def __call__(
        self, ubatch: Ubatch, kv: AllKV, access: tuple[CellAccess, ...]
    ) -> tuple[Float[jax.Array, "O V"], AllKV]:
        """Logits of the output rows (ubatch.out_rows; what padding gets is undefined but finite) and the new K/V.

        One KV and one CellAccess per cache: `kv[c].k[i]` is the K of the i-th layer of cache c (`config.cache_layers`).
        Raises ValueError (before tracing) when rows of embeddings have another width than the model.
        """
        wanted = ubatch.out_rows if ubatch.bucket.n_outputs else None
        x, kv = self._run(ubatch, kv, access, wanted)
        if wanted is None:
            return self._logits(x[:0]), kv
        if len(x) == ubatch.bucket.n_rows:
            return self._logits(x), kv
        some = jnp.any(jnp.asarray(wanted) < ubatch.bucket.n_rows)
        return self._logits_if(some, x), kv

    def with_hidden(
        self, ubatch: Ubatch, kv: AllKV, access: tuple[CellAccess, ...]
    ) -> tuple[Float[jax.Array, "O V"], Float[jax.Array, "R E"], AllKV]:
        """As a call, with the hidden row of every token (the normed output of the last layer) beside the logits."""
        x, kv = self._run(ubatch, kv, access)
        return self._logits(_rows(x, ubatch.out_rows)), self.norm(x), kv

    def _run(
        self,
        ubatch: Ubatch,
        kv: AllKV,
        access: tuple[CellAccess, ...],
        wanted: Int32[Array, " O"] | None = None,
    ) -> tuple[Float[jax.Array, "_ E"], AllKV]:
        """The rows after the last layer, all or those that are wanted, and the new K/V."""
        x = self._embed(ubatch)
        at = [self._rotation(ubatch.pos, cache) for cache in range(len(kv))]
        ks: list[list[Array]] = [[] for _ in kv]
        vs: list[list[Array]] = [[] for _ in kv]
        for layer, c in zip(self.layers, self.config.layer_caches, strict=True):
            i, last = len(ks[c]), layer is self.layers[-1]
            x, k, v = layer(x, kv[c].k[i], kv[c].v[i], access[c], at[c], wanted if last else None)
            ks[c].append(k)
            vs[c].append(v)
        return x, tuple(
            KV(k=tuple(k), v=tuple(v), n_cells=own.n_cells) for k, v, own in zip(ks, vs, kv, strict=True)
        )

    def shift_keys(self, kv: AllKV, shift: tuple[Int32[Array, "NS _"], ...]) -> AllKV:
        """K/V with the K rows of every cell rotated on by its shift, those with shift 0 untouched bit for bit; pure.

        A K row computed at position p becomes that of position p + shift, each layer with its own rotation. K may hold
        fewer cells than C.
        """
        shifted = []
        for c, (own, by) in enumerate(zip(kv, shift, strict=True)):
            held = jnp.asarray(by)[:, : own.n_cells]
            # M-RoPE: cells move by one number in every section
            at = self._rotation(jnp.broadcast_to(held.reshape(1, -1), (self.config.n_pos, held.size)), c)
            shifted.append(KV(k=tuple(shift_rows(k, held, at) for k in own.k), v=own.v, n_cells=own.n_cells))
        return tuple(shifted)

    def _rotation(self, pos: Int32[Array, "P R"], cache: int) -> Rotation:
        """The rotation of the layers of a cache at positions `pos`."""
        theta, scale = self.config.rope(cache)
        factors = None if self.rope_factors is None else self.rope_factors[...]
        return rotation(pos, self.config.rope_dim, theta, factors, scale, self.config.rope_sections)

    def _embed(self, ubatch: Ubatch) -> Float[jax.Array, "R E"]:
        """Rows with an id are looked up (and scaled, if the model does that), the others are taken as they are."""
        width = ubatch.embd.shape[1]
        if width not in (0, self.config.n_embd):
            raise ValueError(f"embedding rows have {width} values, the model needs {self.config.n_embd}")
        looked_up = self.embedding.rows(ubatch.token)
        if self.config.scale_embd:
            looked_up = looked_up * self.config.n_embd**0.5
        if width == 0:
            return looked_up
        has_id = (jnp.asarray(ubatch.type) & ROW_ID) != 0
        return jnp.where(has_id[:, None], looked_up, jnp.asarray(ubatch.embd))

    def _logits(self, x: Float[Array, "O E"]) -> Float[jax.Array, "O V"]:
        if len(x) == 0:
            return jnp.zeros((0, self.config.n_vocab), jnp.float32)
        normed = self.norm(x)
        logits = self.embedding(normed) if self.head is None else self.head(normed)
        return soft_cap(logits, self.config.logit_softcap)

    def _logits_if(self, some: Bool[Array, ""], x: Float[Array, "O E"]) -> Float[jax.Array, "O V"]:
        """On CPU nothing is computed for the parts of a prompt that have no output, and no program of their own.

        Elsewhere a condition would wait for what is under way, longer than reading the head takes.
        """
        empty = jnp.zeros((len(x), self.config.n_vocab), jnp.float32)
        return jax.lax.platform_dependent(
            x, cpu=lambda x: jax.lax.cond(some, self._logits, lambda _: empty, x), default=self._logits
        )


def _rows(x: Float[Array, "R E"], wanted: Int32[Array, " O"]) -> Float[jax.Array, "O E"]:
    """Rows of x by number; zeros where it is out of range."""
    return jnp.asarray(x).at[wanted].get(mode="fill", fill_value=0)
