"""The loop gives the tokens, cells and K/V that decode and sample give step by step, or changes nothing."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.tiny import CONFIG
from ubjax import Engine, EngineConfig
from ubjax.config import SwaType
from ubjax.decode_loop import Ended, LoopRows, LoopState, decode_loop, reserve_steps
from ubjax.models.decoder import Decoder
from ubjax.sampling import Constraints, LastTokens, SamplingParams, accept, sample
from ubjax.status import Reason
from ubjax.step import Step

S, N, V = 4, 8, CONFIG.n_vocab
WINDOW = dataclasses.replace(CONFIG, n_swa=4, swa_type=SwaType.STANDARD, swa_layers=(True, False))
KINDS = {
    "unified": (CONFIG, {"n_ctx": 48, "kv_unified": True}),
    "streams": (CONFIG, {"n_ctx": 192}),
    "unified windows": (WINDOW, {"n_ctx": 48, "kv_unified": True}),
    "windows in streams": (WINDOW, {"n_ctx": 192}),
}
PROMPTS = {
    0: [1, 2, 3, 4],
    1: [5, 6],
    3: [7, 8, 9],
}  # sequence 2 is absent: a row of padding between the others


@functools.cache
def made(kind):
    """An engine of this kind, and the loop as one program on its model."""
    config, sizes = KINDS[kind]
    model = Decoder(config, rngs=nnx.Rngs(0))
    engine = Engine(model, None, EngineConfig(n_seq_max=S, n_ubatch=4, n_batch=16, kv_pad=48, **sizes))
    step = Step(model, engine.caches)
    loop = jax.jit(
        functools.partial(
            decode_loop, functools.partial(step.pure, step.leaves), caches=engine.caches, max_steps=N
        )
    )
    return engine, loop


def prompted(engine):
    """The prompts decoded; the most likely token behind each."""
    engine.clear()
    ids = [t for tokens in PROMPTS.values() for t in tokens]
    seq_id = [s for s, tokens in PROMPTS.items() for _ in tokens]
    ends = np.cumsum([len(tokens) for tokens in PROMPTS.values()]) - 1
    outputs = engine.decode(engine.batch(ids, seq_id=seq_id, output=np.isin(np.arange(len(ids)), ends)))
    return {s: int(np.argmax(outputs.logits(int(i)))) for s, i in zip(PROMPTS, ends, strict=True)}


def rows_of(first, left=99, stop=(-1, -1)):
    held = np.isin(np.arange(S), list(first))
    return LoopRows(
        seqs=np.arange(S, dtype=np.int32),
        token=np.asarray([first.get(s, 0) for s in range(S)], np.int32),
        pos=np.asarray([len(PROMPTS.get(s, ())) for s in range(S)], np.int32),
        active=held,
        dropped=np.zeros(S, np.int32),
        left=np.broadcast_to(np.asarray(left, np.int32), S).copy(),
        stop=np.tile(np.asarray(stop, np.int32), (S, 1)),
    )


def state_of(engine, rows):
    cells, kv = vars(engine)["_cells"], vars(engine)["_kv"]
    return LoopState(cells=cells, kv=kv, rows=rows, last=LastTokens.of(n_seq_max=S))


def step_by_step(engine, first, params, n):
    """The tokens of n decodes of all sequences, drawn by `sample`, the first ones not among them."""
    last, found = LastTokens.of(n_seq_max=S), {s: [token] for s, token in first.items()}
    seqs = np.asarray(list(first), np.int32)
    for i in range(n):
        outputs = engine.decode(
            engine.batch([found[s][-1] for s in first], seq_id=seqs, output=np.ones(len(first), bool))
        )
        logits = np.stack([outputs.logits(r) for r in range(len(first))])
        pos = np.asarray([len(PROMPTS[s]) + i + 1 for s in first], np.int32)
        drawn = sample(logits, seqs, pos, params, Constraints.of(V, S), last)
        last = accept(last, seqs, drawn.token)
        for s, token in zip(first, np.asarray(drawn.token).tolist(), strict=True):
            found[s].append(token)
    return {s: tokens[1:] for s, tokens in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_cells_equal_those_of_single_steps(kind):
    engine, loop = made(kind)
    for seed in range(4):
        params = SamplingParams.of(
            S, temperature=[0.0, 1.5, 1.0, 3.0 * (seed > 0)], seed=np.arange(S) + 7 * seed, repeat_penalty=1.1
        )
        want = step_by_step(engine, first := prompted(engine), params, N)
        cells = jax.tree.map(np.asarray, vars(engine)["_cells"])
        assert prompted(engine) == first
        result, after = loop(state_of(engine, rows_of(first)), params, Constraints.of(V, S), np.int32(N))
        assert {s: np.asarray(result.tokens)[s].tolist() for s in first} == want
        assert result.count.tolist() == [N, N, 0, N] and result.ended.tolist() == [0] * S
        jax.tree.map(np.testing.assert_array_equal, after.cells, cells)


@pytest.mark.parametrize("kind", ["unified", "streams"])
def test_a_loop_goes_on_where_another_ended(kind):
    engine, loop = made(kind)
    params, constraints = SamplingParams.of(S, temperature=1.0, seed=3), Constraints.of(V, S)
    first = prompted(engine)
    whole, _ = loop(state_of(engine, rows_of(first)), params, constraints, np.int32(N))
    prompted(engine)
    part, state = loop(state_of(engine, rows_of(first)), params, constraints, np.int32(3))
    rest, _ = loop(state, params, constraints, np.int32(N - 3))
    joined = np.concatenate([part.tokens[:, :3], rest.tokens[:, : N - 3]], axis=1)
    np.testing.assert_array_equal(joined, whole.tokens)
    assert (int(part.n_steps), int(rest.n_steps)) == (3, N - 3)


@pytest.mark.parametrize("kind", ["unified", "streams"])
def test_rows_end_by_themselves_and_leave_the_others_alone(kind):
    engine, loop = made(kind)
    params, constraints = SamplingParams.of(S, temperature=2.0, seed=[1, 2, 3, 4]), Constraints.of(V, S)
    first = prompted(engine)
    free, _ = loop(state_of(engine, rows_of(first)), params, constraints, np.int32(N))
    tokens = np.asarray(free.tokens)
    at = next(i for i in range(1, N) if tokens[0, i] not in tokens[0, :i])
    prompted(engine)
    rows = rows_of(first, left=[99, 2, 99, 99])
    rows.stop[0, 1] = tokens[0, at]
    result, state = loop(state_of(engine, rows), params, constraints, np.int32(N))
    assert result.ended.tolist() == [Ended.STOP, Ended.LENGTH, Ended.NOT, Ended.NOT]
    assert result.count.tolist() == [at, 2, 0, N]
    for s, n in enumerate(result.count.tolist()):
        assert np.asarray(result.tokens)[s, :n].tolist() == tokens[s, :n].tolist()
        # in a shared stream the cells lie elsewhere once a row has ended, and sums are in another order
        np.testing.assert_allclose(result.logprobs[s, :n], free.logprobs[s, :n], rtol=0, atol=1e-5)
    assert state.rows.active.tolist() == [False, False, False, True]
    # decoded are all tokens before the one that stopped a row, and all but the last of one that reached its length
    assert state.rows.pos.tolist() == [4 + at + 1, 2 + 2, 0, 3 + N]


def test_nothing_left_to_choose_ends_a_row():
    engine, loop = made("unified")
    first = prompted(engine)
    banned = Constraints.of(V, S)
    banned.allowed[1] = 0
    result, _ = loop(state_of(engine, rows_of(first)), SamplingParams.of(S), banned, np.int32(2))
    assert result.ended.tolist() == [0, Ended.NOTHING_ALLOWED, 0, 0] and result.count.tolist() == [2, 0, 0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_without_room_for_all_steps_nothing_happens(kind):
    engine, loop = made(kind)
    first = prompted(engine)
    more = 33 if engine.memory.unified else 40
    for n in (16, 16, more - 32):
        engine.decode(engine.batch([1] * n, seq_id=[0] * n))
    rows = dataclasses.replace(rows_of(first), pos=np.asarray([4 + more, 2, 0, 3], np.int32))
    state = state_of(engine, rows)
    before = jax.tree.map(np.array, state)
    result, after = loop(state, SamplingParams.of(S), Constraints.of(V, S), np.int32(N))
    status = jax.tree.map(int, result.status)
    free, fits = (6, 2) if engine.memory.unified else (4, 4)
    needed = 3 if engine.memory.unified else 1
    assert (status.code, status.where, status.found, status.needed) == (Reason.NO_SLOT, fits, 0, needed)
    assert not result.count.any() and int(result.n_steps) == 0
    jax.tree.map(np.testing.assert_array_equal, after, before)
    result, _ = loop(state, SamplingParams.of(S), Constraints.of(V, S), np.int32(fits))
    assert int(result.status.code) == 0 and int(result.n_steps) == fits
    n_kv, _ = reserve_steps(state.cells, rows, np.int32(fits), engine.caches)
    assert int(n_kv[0]) == 48 - free + fits * needed if engine.memory.unified else 48
