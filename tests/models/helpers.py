"""Tiny decoders with random weights, and a cache in plain numpy that runs hand-made ubatches through them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ubjax.batch import ROW_EMBD, ROW_ID
from ubjax.buckets import Bucket
from ubjax.config import SwaType
from ubjax.memory.kv import KV
from ubjax.models.attention import CellAccess
from ubjax.models.config import BIASED, DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.ubatch import Ubatch

TINY = {
    "n_layers": 2,
    "n_embd": 16,
    "n_ff": 24,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 6,
    "n_vocab": 37,
    "n_ctx_train": 64,
    "rope_dim": 6,
    "tie_embeddings": True,
}
GROUPED = DecoderConfig(**TINY)
# An untied head, every bias, rope factors, fewer rotated values than a head has, as many key heads as heads.
FULL = DecoderConfig(
    **TINY
    | {
        "tie_embeddings": False,
        "biases": BIASED,
        "rope_factors": True,
        "rope_dim": 4,
        "n_heads": 2,
        "norm_eps": 1e-3,
        "rope_theta": 50.0,
    }
)
# Every second layer with a window of 4 and a rotation of its own; norms, scales and caps wherever there may be any.
WINDOWED = DecoderConfig(
    **TINY
    | {
        "architecture": "gemma3",
        "n_layers": 3,
        "n_swa": 4,
        "swa_type": SwaType.STANDARD,
        "swa_layers": (True, False, True),
        "rope_theta": 100.0,
        "rope_scale": 0.5,
        "rope_theta_swa": 10.0,
        "rope_scale_swa": 1.0,
        "qk_norm": True,
        "post_norms": True,
        "activation": "gelu",
        "scale_embd": True,
        "attn_scale": 0.3,
        "attn_softcap": 2.0,
        "logit_softcap": 3.0,
    }
)
SINGLE_KEY_HEAD = DecoderConfig(**TINY | {"n_kv_heads": 1, "biases": ("attn_k", "ffn_up")})


def random_weights(config, seed=0):
    """Float32 arrays by llama.cpp's names, of a size that makes every part matter."""
    rng = np.random.default_rng(seed)
    n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    shapes = {"token_embd.weight": (config.n_vocab, config.n_embd), "output_norm.weight": (config.n_embd,)}
    if not config.tie_embeddings:
        shapes["output.weight"] = (config.n_vocab, config.n_embd)
    sizes = {
        "attn_q": (n_q, config.n_embd),
        "attn_k": (n_kv, config.n_embd),
        "attn_v": (n_kv, config.n_embd),
        "attn_output": (config.n_embd, n_q),
        "ffn_gate": (config.n_ff, config.n_embd),
        "ffn_up": (config.n_ff, config.n_embd),
        "ffn_down": (config.n_embd, config.n_ff),
    }
    norms = {"attn_norm": config.n_embd, "ffn_norm": config.n_embd}
    if config.qk_norm:
        norms |= {"attn_q_norm": config.head_dim, "attn_k_norm": config.head_dim}
    if config.post_norms:
        norms |= {"post_attention_norm": config.n_embd, "post_ffw_norm": config.n_embd}
    for block in range(config.n_layers):
        for norm, n in norms.items():
            shapes[f"blk.{block}.{norm}.weight"] = (n,)
        for name, shape in sizes.items():
            shapes[f"blk.{block}.{name}.weight"] = shape
            if name in config.biases:
                shapes[f"blk.{block}.{name}.bias"] = shape[:1]
    weights = {
        name: rng.normal(0, 1, shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 0.5) + ("norm" in name)
        for name, shape in shapes.items()
    }
    if config.rope_factors:
        weights["rope_freqs.weight"] = rng.uniform(0.5, 4, config.rope_dim // 2)
    return {name: w.astype(np.float32) for name, w in weights.items()}


@functools.cache
def decoder(config, seed=0, dtype=jnp.float32):
    return Decoder.from_weights(config, random_weights(config, seed).items(), dtype)


@functools.partial(jax.jit, static_argnums=0)
def call(graphdef, state, ubatch, kv, access):
    return nnx.merge(graphdef, state)(ubatch, kv, access)


class Cache:
    """K/V of NaN with its cells beside it: pos [NS, Ckv], -1 in an empty one, and the one sequence of each."""

    def __init__(self, model, n_cells=16, n_streams=1, dtype=jnp.float32):
        self.split = nnx.split(model)
        self.config = model.config
        c = self.config
        empty = jnp.full((n_streams, c.n_kv_heads, n_cells, c.head_dim), jnp.nan, dtype)
        layers = [len(c.cache_layers(cache)) for cache in range(c.n_caches)]
        self.kv = tuple(KV(k=(empty,) * n, v=(empty,) * n, n_cells=n_cells) for n in layers)
        self.pos = np.full((n_streams, n_cells), -1)
        self.seq = np.full((n_streams, n_cells), -1)

    def run(self, blocks, *, embd=None, length=None, n_outputs=None, lead=0, n_blocks=None, first_stream=0):
        """Logits [rows, V] of all rows of `blocks`, lists of (token, pos, seq, slot), block by block.

        Block b goes to stream first_stream + b of a cache with streams. `lead` blocks of padding come first, `length`,
        `n_outputs` and `n_blocks` are the bucket's; padded rows are filled with garbage.
        """
        length = length or max(len(b) for b in blocks)
        n_blocks = n_blocks or lead + len(blocks)
        bucket = Bucket(n_blocks=n_blocks, n_block_rows=length, n_outputs=n_outputs or sum(map(len, blocks)))
        fields = padded_rows(bucket, 0 if embd is None else self.config.n_embd)
        slot = np.full(bucket.n_rows, self.pos.shape[1], np.int32)
        stream = np.zeros(bucket.n_rows, np.int32)
        at = [(lead + b) * length + t for b, block in enumerate(blocks) for t in range(len(block))]
        rows = [row for block in blocks for row in block]
        for i, r in enumerate(at):
            token, fields["pos"][0, r], seq, slot[r] = rows[i]
            stream[r] = 0 if len(self.pos) == 1 else first_stream + r // length
            fields["token"][r], fields["type"][r] = (token, ROW_ID) if token is not None else (0, ROW_EMBD)
            if embd is not None:
                fields["embd"][r] = embd[i]
            self.pos[stream[r], slot[r]], self.seq[stream[r], slot[r]] = fields["pos"][0, r], seq
            fields["valid"][r] = True
        fields["out_rows"][: len(at)] = at
        mask = np.zeros((bucket.n_rows, self.pos.shape[1]), bool)
        for (_, pos, seq, _), r in zip(rows, at, strict=True):
            cells = self.pos[stream[r]]
            mask[r] = (cells >= 0) & (cells <= pos) & (self.seq[stream[r]] == seq)
        valid = self.pos if len(self.pos) == 1 else self.pos[first_stream : first_stream + n_blocks]
        # A window cache has the same cells here: only what is seen of them differs.
        far = fields["pos"][0][:, None] - self.pos[stream] >= self.config.n_swa
        access = tuple(
            CellAccess(
                slot=slot,
                stream=stream,
                first_stream=np.array(first_stream, np.int32),
                mask=seen.reshape(n_blocks, length, -1),
                valid=valid >= 0,
            )
            for seen in (mask, mask & ~far)[: self.config.n_caches]
        )
        logits, self.kv = call(*self.split, Ubatch(**fields, bucket=bucket), self.kv, access)
        return np.asarray(logits)[: len(at)]


def padding(bucket, n_cells, *, width=0):
    """A ubatch in which every row is padding, and what such rows see of one stream of empty cells: nothing."""
    access = CellAccess(
        slot=np.full(bucket.n_rows, n_cells, np.int32),
        stream=np.zeros(bucket.n_rows, np.int32),
        first_stream=np.zeros((), np.int32),
        mask=np.zeros((bucket.n_blocks, bucket.n_block_rows, n_cells), bool),
        valid=np.zeros((1, n_cells), bool),
    )
    return Ubatch(**padded_rows(bucket, width), bucket=bucket), access


def padded_rows(bucket, width):
    """Fields of an ubatch whose rows are all padding, with garbage where the model must not look."""
    n = bucket.n_rows
    scalar = np.ones((), np.int32)
    return {
        "token": np.resize(np.array([10**6, -7], np.int32), n),
        "embd": np.full((n, width), np.nan, np.float32),
        "state": np.zeros((n, 0), np.float32),
        "type": np.full(n, 7, np.int32),
        "pos": np.full((1, n), 12345, np.int32),
        "seq": np.zeros((n, 1), np.uint32),
        "output": np.zeros(n, bool),
        "valid": np.zeros(n, bool),
        "batch_idx": np.full(n, n, np.int32),
        "place": np.full(n, n, np.int32),
        "out_rows": np.full(bucket.n_outputs, n, np.int32),
        "seq_id_unq": np.zeros(32, np.int32),
        "seq_idx": np.zeros(32, np.int32),
        "n_seqs_unq": scalar,
        "n_tokens": scalar,
        "n_seqs": scalar,
    }


def rows_of(tokens, seq=0, start=0, slot=0):
    """Rows (token, pos, seq, slot) of consecutive positions in consecutive cells."""
    return [(t, start + i, seq, slot + i) for i, t in enumerate(tokens)]
