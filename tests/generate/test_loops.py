"""Many steps in one dispatch give what single steps give, whatever joins, ends, stops or finds no cell."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.generate.engines import clear_until, prompts, shared, streams
from tests.tiny import CONFIG, Letters, state, tiny_engine, unchanged
from ubjax import Engine, EngineConfig, NoSlotError, Sampling
from ubjax.config import SwaType
from ubjax.generate import NextToken, drawing_of
from ubjax.generate.steps import MAX_STEPS, Pace
from ubjax.models.decoder import Decoder
from ubjax.status import DecodeError, Reason

V = CONFIG.n_vocab
WINDOW = dataclasses.replace(CONFIG, n_swa=4, swa_type=SwaType.STANDARD, swa_layers=(True, False))


@functools.cache
def windows():
    """A cache of windows beside the full one, 96 cells for 4 sequences."""
    sizes = {"n_ctx": 96, "kv_pad": 96, "n_seq_max": 4, "n_batch": 8, "n_ubatch": 4, "kv_unified": True}
    return Engine(Decoder(WINDOW, rngs=nnx.Rngs(0)), Letters(), EngineConfig(**sizes))


@functools.cache
def small():
    return tiny_engine(n_ctx=16, kv_pad=16, kv_unified=True, n_seq_max=2)


ENGINES = {"unified": shared, "streams": streams, "windows": windows}
REQUESTS = prompts(9, 12, seed=3)
SAMPLING = [
    Sampling(temperature=0.7 * (i % 3), seed=i, top_k=20, repeat_penalty=1.0 + 0.2 * (i % 2))
    for i in range(9)
]


@functools.cache
def one_by_one(kind):
    """The outputs of single steps: log-probabilities of other tokens are made by them alone."""
    return ENGINES[kind]().generate(REQUESTS, sampling=SAMPLING, max_tokens=13, logprobs=2)


@pytest.mark.parametrize(
    "kind",
    [
        "unified",
        pytest.param("streams", marks=pytest.mark.slow),
        pytest.param("windows", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("steps", [1, 5, MAX_STEPS])
def test_tokens_equal_those_of_single_steps(kind, steps):
    """Nine prompts on four sequences: some wait, and join when another ends."""
    found = ENGINES[kind]().generate(
        REQUESTS, sampling=SAMPLING, max_tokens=13, logprobs=0, steps_per_dispatch=steps
    )
    for ours, theirs in zip(found, one_by_one(kind), strict=True):
        n = clear_until(theirs)
        assert ours.tokens[:n] == theirs.tokens[:n]
        np.testing.assert_allclose(
            [x.logprob for x in ours.logprobs[:n]],
            [x.logprob for x in theirs.logprobs[:n]],
            rtol=0,
            atol=1e-3,
        )
        assert n < len(theirs.tokens) or ours.finish_reason == theirs.finish_reason
    usage = found[0].report.usage
    assert usage.decodes < one_by_one(kind)[0].report.usage.decodes or steps == 1


def test_what_waits_joins_when_something_ends():
    """A row that ends while something waits ends the dispatch."""
    engine = shared()
    lengths = [3, 9, 9, 9, 4]
    with engine.stream([[5]] * 5, max_tokens=9, stop_tokens=(), steps_per_dispatch=MAX_STEPS) as pieces:
        loop = vars(pieces)["_loop"]
        for run, n in zip([*loop.schedule.waiting], lengths, strict=True):
            run.request = dataclasses.replace(run.request, max_tokens=n)
            vars(vars(loop)["_outputs"][run].transcript)["_request"] = run.request
        steps = []
        while loop.schedule:
            before = loop.report.usage.ubatches
            vars(pieces)["_pieces"].extend(loop.step())
            steps.append(loop.report.usage.ubatches - before)
    # four prompts; two steps end the first output, and the fifth joins at once; the rest is one dispatch
    assert steps == [1, 2, 1, 5]
    assert [len(result.tokens) for result in pieces.results] == lengths


@pytest.mark.parametrize("stop", ["e", "ab"])
def test_what_is_decoded_behind_a_stop_string_is_taken_back(stop):
    hot = Sampling(temperature=30.0, seed=11)
    engine = tiny_engine(Letters(), n_ctx=64, kv_pad=64, kv_unified=True, n_seq_max=2, prefix_cache=True)
    free = engine.generate([1, 2, 3], max_tokens=40, sampling=hot)
    engine.clear()
    text = free.text
    cut = text.find(stop)
    stop = stop if 0 < cut < len(text) - 1 else text[2:4]
    result = engine.generate([1, 2, 3], max_tokens=40, sampling=hot, stop=stop)
    assert result.text == text[: text.find(stop)] and result.finish_reason == "stop"
    n = len(result.tokens)
    assert 0 < n < 40 and result.tokens == free.tokens[:n]
    (kept,) = engine.kept().values()
    assert list(kept) == [1, 2, 3, *result.tokens[:-1]]
    engine.clear()


def test_a_loop_without_room_names_the_step_and_changes_nothing():
    engine = tiny_engine(n_ctx=16, kv_pad=16, kv_unified=True, n_seq_max=2)
    engine.decode(engine.batch([1, 2, 3, 4, 5, 6, 7], seq_id=[0] * 4 + [1] * 3))
    rows = [NextToken(seq=0, token=9, pos=4, left=50), NextToken(seq=1, token=8, pos=3, left=50)]
    drawing = jax.device_put(drawing_of(2, V), engine.device)
    before = state(engine)
    with pytest.raises(NoSlotError, match=r"step 4 of 32 needs 2 cells of one stream, 1 is free") as refused:
        engine.decode_steps(rows, MAX_STEPS, drawing)
    assert str(refused.value).endswith("; nothing was changed: rm frees cells, a larger n_ctx has more")
    assert refused.value.fits == 4 and unchanged(engine, before)
    steps = engine.decode_steps(rows, 4, drawing)
    assert [len(drawn) for drawn in steps.drawn] == [4, 4]
    assert engine.n_free_cells() == 1 and [engine.pos_max(s) for s in (0, 1)] == [7, 6]


def test_kept_prefixes_make_way_for_a_loop_or_stay_when_that_is_not_enough():
    engine = tiny_engine(n_ctx=16, kv_pad=16, kv_unified=True, n_seq_max=3)
    engine.decode(engine.batch([1, 2, 3, 4, 5, 6], seq_id=[1] * 6))
    engine.keep_prefix(1, [1, 2, 3, 4, 5, 6])
    engine.decode(engine.batch([1, 2, 3], seq_id=[0] * 3))
    drawing = jax.device_put(drawing_of(3, V), engine.device)
    row = [NextToken(seq=0, token=9, pos=3, left=50)]
    before = state(engine)
    with pytest.raises(NoSlotError):
        engine.decode_steps(row, 14, drawing)
    assert unchanged(engine, before) and list(engine.kept()) == [1]
    engine.decode_steps(row, 7, drawing)
    assert list(engine.kept()) == [1]
    engine.decode_steps([NextToken(seq=0, token=9, pos=10, left=50)], 4, drawing)
    assert not engine.kept() and engine.pos_max(0) == 13


def test_a_loop_that_fails_after_it_took_the_buffers_clears_the_cache(monkeypatch):
    engine = tiny_engine(n_ctx=16, kv_pad=16, kv_unified=True, n_seq_max=2)
    engine.decode(engine.batch([1, 2, 3]))

    def broken(*_):
        def program(leaves, kv, *_):
            jax.tree.map(lambda x: x.delete(), kv)
            raise RuntimeError("out of memory")

        return program

    monkeypatch.setattr("ubjax.loops.loop_program", broken)
    drawing = jax.device_put(drawing_of(2, V), engine.device)
    with pytest.raises(DecodeError) as failed:
        engine.decode_steps([NextToken(seq=0, token=9, pos=3, left=50)], 4, drawing)
    assert int(failed.value.status.code) == Reason.LOST and engine.pos_max(0) == -1
    monkeypatch.undo()
    assert engine.generate([1, 2, 3], max_tokens=3).tokens


@pytest.mark.parametrize(
    ("rows", "n", "words"),
    [
        ([], 1, "a loop has 0 rows, at least 1 is needed"),
        ([{}], 0, r"n_steps is 0, a number in \[1, 32\] is needed"),
        ([{}], 33, r"n_steps is 33, a number in \[1, 32\] is needed"),
        ([{}, {}], 1, "sequence 0 has two rows, one is needed"),
        ([{"seq": 2}], 1, r"a row has sequence 2, a sequence in \[0, 2\) is needed"),
        ([{"token": V}], 1, rf"the row of sequence 0 has token {V}, one in \[0, {V}\) is needed"),
        ([{"left": 0}], 1, "sequence 0 has 0 tokens left to draw, at least 1 is needed"),
        ([{"pos": 2}], 1, "sequence 0 starts at position 2, position 3 is needed"),
        ([{"pos": 4}], 1, "sequence 0 starts at position 4, position 3 is needed"),
        ([{"seq": 1}], 1, "sequence 1 starts at position 3, position 0 is needed"),
    ],
)
def test_rows_that_are_wrong_are_refused_and_nothing_changes(rows, n, words):
    engine = small()
    engine.clear()
    engine.decode(engine.batch([1, 2, 3]))
    before = state(engine)
    given = [NextToken(**{"seq": 0, "token": 9, "pos": 3, "left": 5, **row}) for row in rows]
    with pytest.raises(ValueError, match=words):
        engine.decode_steps(given, n, drawing_of(2, V))
    assert unchanged(engine, before)


def test_a_stream_that_nobody_holds_gives_its_sequences_back():
    engine = small()
    engine.clear()
    for _ in engine.stream([[1, 2], [3]], max_tokens=9):
        break
    assert engine.n_free_cells() == 16 and engine.free_sequences() == [0, 1]


def test_sequences_far_apart_are_decoded_one_by_one():
    """With streams a loop reads all between the first and the last."""
    engine = streams()
    assert engine.loop_bucket([0, 3]) is None and engine.loop_bucket([1, 2]) is not None
    whole = engine.loop_bucket([0, 1, 2, 3])
    assert whole is not None and whole.n_blocks == 4
    with pytest.raises(ValueError, match=r"sequences \[0, 3\] are no loop"):
        engine.decode_steps([NextToken(seq=s, token=1, pos=0, left=1) for s in (0, 3)], 1, drawing_of(4, V))
    small = tiny_engine(n_ctx=64, n_seq_max=4, n_ubatch=2, kv_unified=True)
    assert small.loop_bucket([0, 1, 2]) is None and small.loop_bucket([0, 2]) is not None


def test_steps_of_a_dispatch_are_those_asked_for_or_those_of_a_tenth_of_a_second():
    for wrong in (0, MAX_STEPS + 1):
        with pytest.raises(
            ValueError, match=rf"steps_per_dispatch is {wrong}, a number in \[1, 32\] is needed"
        ):
            shared().generate([1], steps_per_dispatch=wrong)
    assert Pace(7).steps == 7
    pace = Pace(None)
    assert pace.steps == 1
    for seconds, steps, want in ((0.05, 1, 2), (0.02, 2, 10), (1e-3, 10, 32), (9.0, 32, 1)):
        pace.took(seconds, steps)
        assert pace.steps == want


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
def test_many_seeds_draw_the_same_in_loops(kind):
    for seed in range(20):
        asked, hot = (
            prompts(6, 12, seed=seed),
            [Sampling(temperature=0.9 * (i % 3), seed=i + seed) for i in range(6)],
        )
        single = ENGINES[kind]().generate(asked, sampling=hot, max_tokens=11, logprobs=2)
        looped = ENGINES[kind]().generate(asked, sampling=hot, max_tokens=11, logprobs=0)
        for ours, theirs in zip(looped, single, strict=True):
            n = clear_until(theirs)
            assert ours.tokens[:n] == theirs.tokens[:n], seed
