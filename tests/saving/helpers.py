"""Engines of few sizes, and how their states are read and written by hand."""

import dataclasses
import functools
import io

import jax
import numpy as np
from flax import nnx

from tests.tiny import CONFIG
from ubjax import BucketLadder, Engine, EngineConfig
from ubjax.config import SwaType
from ubjax.models.decoder import Decoder
from ubjax.safetensors import encode, read_header, read_tensors
from ubjax.saving.state import ONE, SavedRows, State

WINDOW = dataclasses.replace(CONFIG, n_swa=4, swa_type=SwaType.STANDARD, swa_layers=(True, False))
KINDS = {
    "unified": (CONFIG, {"n_ctx": 32, "kv_unified": True}),
    "streams": (CONFIG, {"n_ctx": 128}),
    "window": (WINDOW, {"n_ctx": 32, "kv_unified": True}),
    "window streams": (WINDOW, {"n_ctx": 128}),
}
SIZES = {"n_batch": 8, "n_ubatch": 4, "n_seq_max": 4, "kv_pad": 8}  # tokens come one by one: one program


@functools.cache
def model(config=CONFIG, seed=0):
    return Decoder(config, rngs=nnx.Rngs(seed))


def engine_of(kind, **sizes) -> Engine:
    """32 cells for 4 sequences, or for each; windows of 4 in a cache of 24 (unified), or 8 for each. K/V is whole."""
    config, own = KINDS[kind]
    engine = Engine(model(config), None, EngineConfig(**{**SIZES, **own, **sizes}))
    ladders = tuple(BucketLadder((ladder.top,)) for ladder in engine.buckets.n_kv)
    engine.buckets = dataclasses.replace(engine.buckets, n_kv=ladders)
    engine.clear()
    return engine


def put(engine, seq, tokens) -> np.ndarray:
    """Decode tokens of a sequence, one after the other; the logits of the last."""
    for token in tokens:
        outputs = engine.decode(engine.batch([token], seq_id=[seq]))
    return outputs.logits(-1)


def fill(engine, seq, n) -> None:
    """Let a sequence hold positions 0 to n - 1, with K and V of zeros, without a decode."""
    form, rows = engine._form, []
    for n_layers in form.layers:
        zeros = np.zeros((n_layers, form.n_heads, n, form.head_dim), form.dtype)
        rows.append(SavedRows(pos=np.arange(n, dtype=np.int32)[None], seq=None, k=zeros, v=zeros))
    saved = State(tokens=np.zeros(0, np.int32), caches=tuple(rows))
    engine.set_state(joined(form.metadata(ONE), saved.tensors()), seq)


def text(n, seed=0) -> list[int]:
    """Random ids."""
    return np.random.default_rng(seed).integers(0, CONFIG.n_vocab, n).tolist()


def goes_on(a, seq_a, b, seq_b, n=6) -> None:
    """Both sequences give the same logits, token after token."""
    assert a.pos_max(seq_a) == b.pos_max(seq_b)
    for token in text(n, seed=9):
        np.testing.assert_allclose(put(a, seq_a, [token]), put(b, seq_b, [token]), rtol=0, atol=1e-5)


def parts(data) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata and tensors (copies) of a state."""
    file = io.BytesIO(data)
    header = read_header(file, len(data))
    return dict(header.metadata), {name: x.copy() for name, x in read_tensors(file, header).items()}


def joined(metadata, tensors) -> bytes:
    """A state with the digest of what is in it, as a liar would write it."""
    return b"".join(encode(metadata, tensors))


def filled(engine) -> list[int]:
    """The indices of the cells that are in use, in the first stream of the full cache."""
    return np.flatnonzero(np.asarray(vars(engine)["_cells"][0].pos)[0] >= 0).tolist()


def delete(kv) -> None:
    """What a program does to the K/V that it has taken over."""
    jax.tree.map(lambda leaf: leaf.delete(), kv)
