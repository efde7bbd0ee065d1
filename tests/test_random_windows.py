"""Operations in any order on a full and a window cache, against a cache in plain Python.

The full cache holds what the plain one holds; the window cache all of that which the next position of a sequence sees.
"""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_failed_windows import Fails
from tests.test_random_engine import (
    ONE_LAYER,
    Plain,
    S,
    bounds,
    carry_out,
    ids,
    keys_at,
    operations,
    seqs,
)
from tests.tiny import state, unchanged
from ubjax import BucketLadder, Engine, EngineConfig
from ubjax.config import SwaType
from ubjax.ladders import RectangleLadder
from ubjax.models.decoder import Decoder
from ubjax.status import DecodeError

W = 4
CONFIG = dataclasses.replace(ONE_LAYER, n_swa=W, swa_type=SwaType.STANDARD, swa_layers=(True,))
SIZES = {
    "unified": {"n_ctx": 24, "kv_unified": True},
    "streams": {"n_ctx": 72},
    "whole windows": {"n_ctx": 24, "kv_unified": True, "swa_full": True},
}


@functools.cache
def engine_of(kind) -> Engine:
    """24 cells for three sequences, or for each; windows of 4 in 16 cells, or 8 for each. One shape of everything."""
    sizes = EngineConfig(**SIZES[kind], n_batch=8, n_ubatch=4, n_seq_max=S, kv_pad=8)
    engine = Engine(Decoder(CONFIG, rngs=nnx.Rngs(0)), None, sizes)
    engine.buckets = dataclasses.replace(
        engine.buckets,
        capacity=BucketLadder((8,)),
        rows=RectangleLadder.grid(BucketLadder((engine.memory.n_streams,)), BucketLadder((4,))),
        n_kv=tuple(BucketLadder((ladder.top,)) for ladder in engine.buckets.n_kv),
        n_outputs=BucketLadder((4,)),
    )
    return engine


def held(engine, c):
    """(token, position, sequences) of each stream's cells in a cache, sorted; token -1 where no layer has K."""
    cells, kv = vars(engine)["_cells"][c], vars(engine)["_kv"]
    pos, k_pos, seq = (np.asarray(x) for x in (cells.pos, cells.k_pos, cells.seq))
    found = []
    for s, source in enumerate(np.asarray(cells.src).tolist()):
        stream = []
        for i in np.flatnonzero(pos[s] >= 0).tolist():
            token = -1
            if c:
                row = np.asarray(kv[c].k[0][source, :, i])
                errors = np.abs(keys_at(int(k_pos[s, i])) - row[None]).max(axis=(1, 2))
                assert errors.min() < 1e-4, f"stream {s} cell {i} holds no key of position {k_pos[s, i]}"
                token = int(errors.argmin())
            owners = {q for q in range(S) if int(seq[s, i, 0]) >> q & 1}
            stream.append((token, int(pos[s, i]), owners))
        found.append(stream)
    return found


def check(engine, plain):
    wanted = [sorted((t.pos, sorted(t.seqs)) for t in stream) for stream in plain.streams]
    assert [
        sorted((pos, sorted(owners)) for _, pos, owners in stream) for stream in held(engine, 0)
    ] == wanted
    windows = held(engine, 1)
    for stream, tokens in zip(
        windows, plain.streams, strict=True
    ):  # nothing that the full cache does not hold
        left = [(t.id, t.pos, t.seqs) for t in tokens]
        for token, pos, owners in stream:
            fitting = [t for t in left if t[:2] == (token, pos) and owners <= t[2]]
            assert fitting, f"the window cache holds token {token} at {pos} for {owners}"
            left.remove(min(fitting, key=lambda t: len(t[2])))
    for seq in range(S):
        seen = plain.last(seq) + 1 - W  # of what lies behind it nothing may be missing
        needed = sorted((t.id, t.pos) for t in plain.own([seq]) if t.pos > seen)
        there = [(token, pos) for stream in windows for token, pos, owners in stream if seq in owners]
        assert sorted(pair for pair in there if pair[1] > seen) == needed
        assert engine.pos_max(seq) == plain.last(seq)
    report = engine.memory_report()
    assert (report.used, report.free) == (sum(map(len, plain.streams)), engine.n_free_cells())


more = st.one_of(
    st.tuples(st.just("decode"), seqs, st.lists(ids, min_size=4, max_size=8)),
    operations,
    st.tuples(st.just("fail"), seqs, st.lists(ids, min_size=5, max_size=8)),
    st.tuples(st.just("shift"), seqs, bounds, bounds),
    st.tuples(st.just("elsewhere"), seqs, st.sampled_from(sorted(SIZES))),
)


def act(engine, name, args):
    """Carry out an operation on an engine."""
    if name in ("decode", "fail"):
        engine.decode(engine.batch(args[1], seq_id=[args[0]] * len(args[1])))
    elif name == "jump":
        pos = np.array([1, 3]) + engine.pos_max(args[0])
        engine.decode(engine.batch(args[1:] * 2, seq_id=[args[0]] * 2, pos=pos))
    elif name == "load":
        engine.set_state(engine.get_state(args[0]), args[1])
    elif name == "load_all":
        engine.set_state(engine.get_state())
    elif name == "elsewhere":  # by way of a cache of another kind
        other = engine_of(args[1])
        if other is not engine:
            other.clear()
            other.set_state(engine.get_state(args[0]), 1)
            engine.set_state(other.get_state(1), args[0])
    else:
        getattr(engine, name)(*args)


def follow(plain, name, args):
    """The same on the plain cache, once it is known to have been done."""
    if name == "fail":
        plain.decode(args[0], args[1][:4])
    elif name == "shift":
        seq, p0, p1 = args
        plain.rm(seq, p0, p1)
        plain.sweep()
        plain.move([seq], p1, -1, lambda p: p - (p1 - p0))
    elif name == "elsewhere":
        if plain.unified:
            plain.load(args[0], args[0])
    elif name != "jump":
        return carry_out(plain, name, args)
    plain.sweep()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unified", "streams"])
@settings(max_examples=12)
@given(todo=st.lists(more, min_size=6, max_size=16))
def test_operations_in_any_order(kind, todo):
    engine = engine_of(kind)
    engine.clear()
    plain = Plain(engine)
    step = vars(engine)["_step"]
    for name, *args in todo:
        if name in ("load", "load_all", "elsewhere"):
            engine.get_state()  # carries out what is pending
        before = state(engine)
        engine._step = Fails(step, 1, "before") if name == "fail" else step
        try:
            act(engine, name, args)
            done = True
        except DecodeError as error:
            done = name == "fail" and error.result == 2
        except ValueError:
            done = False
        engine._step = step
        assert done or unchanged(engine, before)
        assert not done or follow(plain, name, args)
        check(engine, plain)
