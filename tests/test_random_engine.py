"""Operations in any order on an engine, against a cache in plain Python: cells, positions, and K computed afresh.

The model has one layer: the K row of a cell depends on its token and the position it is rotated to, nothing else.
"""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import CONFIG, state, unchanged
from ubjax import Engine, EngineConfig
from ubjax.models.decoder import Decoder
from ubjax.status import InvalidBatchError, NoSlotError

ONE_LAYER = dataclasses.replace(CONFIG, n_layers=1)
S = 3
SIZES = {
    "unified": {"n_ctx": 32, "kv_unified": True},
    "streams": {"n_ctx": 48, "kv_unified": False},
}


@functools.cache
def model():
    return Decoder(ONE_LAYER, rngs=nnx.Rngs(0))


@functools.cache
def plain_keys():
    """K of every token before it is rotated, [V, Hk, D]."""
    layer = model().layers[0]
    table = model().embedding.rows(np.arange(ONE_LAYER.n_vocab, dtype=np.int32))
    n_q = ONE_LAYER.n_heads
    heads = np.asarray(layer.attn.qkv(layer.attn_norm(table))).reshape(len(table), -1, ONE_LAYER.head_dim)
    return heads[:, n_q : n_q + ONE_LAYER.n_kv_heads]


def keys_at(pos):
    """K of every token at a position, in complex numbers: pair i of a head is turned by pos * theta ** (-2 i / D)."""
    d = ONE_LAYER.head_dim
    turn = np.exp(1j * pos * ONE_LAYER.rope_theta ** (-np.arange(0, d, 2) / d))
    turned = (plain_keys()[..., : d // 2] + 1j * plain_keys()[..., d // 2 :]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def engine_of(kind):
    return Engine(model(), None, EngineConfig(**SIZES[kind], n_batch=8, n_ubatch=4, n_seq_max=S, kv_pad=16))


@dataclasses.dataclass
class Token:
    """One cell of the plain cache."""

    id: int
    pos: int
    seqs: set[int]


class Plain:
    """Streams of tokens; what the engine has to hold."""

    def __init__(self, engine):
        self.unified = engine.memory.unified
        self.size = engine.memory.n_cells
        self.streams = [[] for _ in range(engine.memory.n_streams)]

    def of(self, seq):
        return self.streams[0 if self.unified else seq]

    def own(self, seqs, p0=-1, p1=-1):
        """Tokens of any of these sequences in a range."""
        streams = self.streams if not self.unified else self.streams[:1]
        return [
            t for s in streams for t in s if t.seqs & set(seqs) and t.pos >= p0 and (p1 < 0 or t.pos < p1)
        ]

    def last(self, seq):
        return max((t.pos for t in self.own([seq])), default=-1)

    def sweep(self):
        for stream in self.streams:
            stream[:] = [t for t in stream if t.seqs and t.pos >= 0]

    def decode(self, seq, ids):
        if len(ids) > self.size - len(self.of(seq)):
            return False
        start = self.last(seq) + 1
        self.of(seq).extend(Token(t, start + i, {seq}) for i, t in enumerate(ids))
        return True

    def rm(self, seq, p0, p1):
        for t in self.own([seq] if seq >= 0 else range(S), p0, p1):
            t.seqs -= {seq} if seq >= 0 else t.seqs
        return True

    def cp(self, src, dst, p0, p1):
        if self.unified:
            for t in self.own([src], p0, p1):
                t.seqs.add(dst)
        elif src != dst:
            if len(self.own([src], p0, p1)) < len(self.own([src])):
                return False
            self.of(dst)[:] = [Token(t.id, t.pos, {dst}) for t in self.of(src)]
        return True

    def keep(self, seq):
        for t in self.of(seq):
            t.seqs &= {seq}
        return True

    def load(self, src, dst):
        """A copy of one sequence's tokens in place of another's."""
        copies = [Token(t.id, t.pos, {dst}) for t in self.own([src])]
        others = [t for t in self.of(dst) if t.seqs != {dst}]
        if len(others) + len(copies) > self.size:
            return False
        self.rm(dst, -1, -1)
        self.of(dst).extend(copies)
        return True

    def load_all(self):
        return True

    def move(self, seqs, p0, p1, to):
        moved = self.own(seqs, p0, p1)
        if any(t.seqs - set(seqs) for t in moved):
            return False
        for t in moved:
            t.pos = to(t.pos)
        return True


def carry_out(plain, kind, args):
    """Whether the plain cache does it."""
    if kind == "add":
        done = plain.move(*args[:3], lambda p: p + args[3])
    elif kind == "div":
        done = plain.move(*args[:3], lambda p: p // args[3])
    else:
        done = getattr(plain, kind)(*args)
    plain.sweep()
    return done


def contents(engine):
    """What the engine holds: (token, position, sequences) of each stream's cells, sorted; K tells which token it is."""
    (cells,), kv = vars(engine)["_cells"], vars(engine)["_kv"]
    k = (
        np.asarray(kv[0].k[0]) if kv else np.zeros(cells.pos.shape)
    )  # nothing is cached before K/V is allocated
    found = []
    for s, (pos, k_pos, seq) in enumerate(zip(cells.pos, cells.k_pos, cells.seq, strict=True)):
        rows = k[int(cells.src[s])]
        stream = []
        for i in np.flatnonzero(np.asarray(pos) >= 0):
            errors = np.abs(keys_at(int(k_pos[i])) - rows[:, i][None]).max(axis=(1, 2))
            assert errors.min() < 1e-4, f"stream {s} cell {i} holds no key of position {int(k_pos[i])}"
            stream.append((int(errors.argmin()), int(pos[i]), int(seq[i, 0])))
        found.append(sorted(stream))
    return found


def check(engine, plain):
    wanted = [sorted((t.id, t.pos, sum(1 << s for s in t.seqs)) for t in stream) for stream in plain.streams]
    assert contents(engine) == wanted
    assert engine.n_free_cells() == sum(plain.size - len(stream) for stream in plain.streams)
    for seq in range(S):
        span = sorted(t.pos for t in plain.own([seq])) or [-1]
        assert (engine.pos_min(seq), engine.pos_max(seq)) == (span[0], span[-1])


seqs, bounds, ids = st.integers(0, S - 1), st.integers(-1, 12), st.integers(0, CONFIG.n_vocab - 1)
some = st.sets(seqs, min_size=1).map(sorted)
operations = st.one_of(
    st.tuples(st.just("decode"), seqs, st.lists(ids, min_size=1, max_size=8)),
    st.tuples(st.just("decode"), seqs, st.lists(ids, min_size=1, max_size=8)),
    st.tuples(st.just("jump"), seqs, ids),
    st.tuples(st.just("rm"), st.integers(-1, S - 1), bounds, bounds),
    st.tuples(st.just("cp"), seqs, seqs, bounds, bounds),
    st.tuples(st.just("cp"), seqs, seqs, st.just(-1), st.just(-1)),
    st.tuples(st.just("keep"), seqs),
    st.tuples(st.just("add"), some, bounds, bounds, st.integers(-6, 6)),
    st.tuples(st.just("div"), some, bounds, bounds, st.integers(1, 3)),
    st.tuples(st.just("load"), seqs, seqs),
    st.tuples(st.just("load_all")),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
@settings(max_examples=25)
@given(todo=st.lists(operations, min_size=3, max_size=12))
def test_operations_in_any_order(kind, todo):
    engine = engine_of(kind)
    plain = Plain(engine)
    for name, *args in todo:
        if name.startswith("load"):
            saved = engine.get_state(*args[:1])
        before = state(engine)
        if name == "jump":  # a hole: the decode is refused
            pos = np.array([1, 3]) + plain.last(args[0])
            with pytest.raises(InvalidBatchError):
                engine.decode(engine.batch(args[1:] * 2, seq_id=[args[0]] * 2, pos=pos))
            done = False
        elif name == "decode":
            seq, tokens = args
            done = carry_out(plain, name, args)
            try:
                engine.decode(engine.batch(tokens, seq_id=[seq] * len(tokens)))
                assert done
                (cells,) = vars(engine)["_cells"]
                assert np.array_equal(cells.pos, cells.k_pos)  # nothing is pending after a decode
            except NoSlotError:
                assert not done
        else:
            done = carry_out(plain, name, args)
            try:
                if name.startswith("load"):
                    engine.set_state(saved, *args[1:])
                else:
                    getattr(engine, name)(*args)
                assert done
            except ValueError:
                assert not done
        assert done or unchanged(engine, before)
        check(engine, plain)
