"""Batch invariance, bit for bit: company, cuts, n_ubatch, a sequence's number and the order of rows change no logit."""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import CONFIG, Letters, one_capacity, state, tiny_encoder, tiny_model, unchanged
from ubjax import Engine, EngineConfig
from ubjax.config import SwaType
from ubjax.generate import Sampling
from ubjax.loaders import load_model
from ubjax.models.decoder import Decoder

pytestmark = pytest.mark.slow  # many programs

S, LENGTH = 3, 24
IDS = np.random.default_rng(3).integers(1, CONFIG.n_vocab, LENGTH).tolist()


@functools.cache
def engine_of(n_ubatch=512, model=None, **more):
    """48 cells for each of 3 sequences; blocks of 5 rows."""
    sizes = {"n_ctx": 48 * S, "kv_pad": 48, "n_seq_max": S, "n_batch": 32, "batch_invariant": True}
    config = EngineConfig(**{**sizes, "n_ubatch": n_ubatch, **more})
    return one_capacity(Engine(model or tiny_model(), Letters(), config, rows=f"{S}x5"))


def bits(logits):
    return np.asarray(logits).view(np.uint32)


@functools.cache
def alone():
    """The logits of every token of IDS, from one batch of it alone."""
    return logits_of(engine_of(), [(0, token) for token in IDS], 0)


def logits_of(engine, rows, seq, output=None):
    """Decode (sequence, token) rows; the logits of those of one sequence, in order."""
    seqs, tokens = zip(*rows, strict=True)
    mine = np.asarray(seqs) == seq
    output = mine if output is None else mine | output
    outputs = engine.decode(engine.batch(tokens, seq_id=seqs, output=output))
    found = np.stack([outputs.logits(i) for i in np.flatnonzero(mine)])
    return found


@st.composite
def ways(draw):
    """How IDS may go through an engine: its sequence, and for each batch the rows of others among its own."""
    seq = draw(st.integers(0, S - 1))
    others = [s for s in range(S) if s != seq]
    batches, at = [], 0
    while at < LENGTH:
        n = draw(st.integers(1, min(12, LENGTH - at)))
        company = draw(st.lists(st.tuples(st.sampled_from(others), st.integers(1, 60)), max_size=4))
        mine = draw(st.permutations([True] * n + [False] * len(company)))
        own, other = iter(IDS[at : at + n]), iter(company)
        batches.append([(seq, next(own)) if is_mine else next(other) for is_mine in mine])
        at += n
    return seq, batches


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([4, 512]), ways())
def test_logits_are_the_same_bits_whatever_the_way(n_ubatch, way):
    seq, batches = way
    engine = engine_of(n_ubatch)
    engine.clear()
    found = np.concatenate([logits_of(engine, rows, seq) for rows in batches])
    engine.clear()
    np.testing.assert_array_equal(bits(found), bits(alone()))


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_narrow_keys_and_values_are_invariant_too(kv_dtype):
    check_in_company(engine_of(kv_dtype=kv_dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "q8_0"])
@pytest.mark.parametrize("n_ubatch", [4, 512])
def test_narrow_weights_are_invariant_too(dtype, n_ubatch):
    wide = dataclasses.replace(CONFIG, n_embd=32, n_ff=64)  # rows of blocks
    check_in_company(engine_of(n_ubatch, Decoder(wide, rngs=nnx.Rngs(0), dtype=dtype)))


def check_in_company(engine):
    """A sequence alone, in one batch, and in pieces under another number beside two others."""
    pairs = [(2, token) for token in IDS]
    whole = logits_of(engine, [(0, token) for token in IDS], 0)
    company = [(s, 7) for s in (0, 1) for _ in range(3)]
    engine.clear()
    pieces = [logits_of(engine, [*company, *pairs[at : at + 4]], 2) for at in range(0, LENGTH, 4)]
    engine.clear()
    np.testing.assert_array_equal(bits(np.concatenate(pieces)), bits(whole))


def test_every_ubatch_has_one_shape_and_a_warm_up_one_step():
    engine = engine_of()
    engine.usage.buckets.clear()
    logits_of(engine, [(0, token) for token in IDS], 0)
    logits_of(engine, [(1, 5), (2, 6)], 1)
    engine.clear()
    assert list(engine.usage.buckets) == ["3x5|kv 48|out 15"]
    assert engine.buckets.loops(S) == () and engine.loop_bucket([0, 1]) is None
    assert engine.buckets.shapes() == (
        (engine.buckets.ubatch(n_tokens=1, n_seqs=1, n_outputs=0, equal_seqs=True), (48,)),
    )


def test_copies_ends_that_are_cut_off_and_states_keep_the_bits():
    engine = engine_of()
    logits_of(engine, [(0, token) for token in IDS[:20]] + [(1, 9)] * 3, 0)
    engine.cp(0, 1)
    engine.rm(0, 10)
    data = engine.get_state(0)
    engine.rm(0)
    engine.set_state(data, 2)
    parts = [logits_of(engine, [(s, token) for token in IDS[at:]], s) for s, at in ((1, 20), (2, 10))]
    engine.clear()
    for found, at in zip(parts, (20, 10), strict=True):
        np.testing.assert_array_equal(bits(found), bits(alone()[at:]))


def test_what_would_move_a_token_out_of_its_cell_is_refused_and_changes_nothing():
    engine = engine_of()
    logits_of(engine, [(0, token) for token in IDS[:8]], 0)
    before = state(engine)
    assert not engine.can_shift and engine.can_remove(0, 5) and not engine.can_remove(0, 2, 5)
    for operation, why in (
        (lambda: engine.rm(0, 2, 5), r"position 5 of sequence 0 would lie in cell 5, above 2 others"),
        (
            lambda: engine.add(0, 0, -1, 3),
            r"can't be moved by 3: batch_invariant needs the token at position p in cell p",
        ),
        (lambda: engine.div(0, 0, -1, 2), r"can't be divided by 2: batch_invariant needs"),
        (lambda: engine.shift(0, 1, 3), r"can't be moved from 3 down to 1: batch_invariant needs"),
        (
            lambda: engine.decode(engine.batch([5], seq_id=[1], pos=[4])),
            r"token 0 has position 4, position 0 of sequence 1 is",
        ),
        (
            lambda: engine.decode(engine.batch([5, 6], pos=[8, 8])),
            r"token 1 has position 8, position 9 of sequence 0 is needed",
        ),
        (
            lambda: engine.decode(engine.batch([5]), causal=False),
            r"causal is False, which takes ubatches of any size: batch_",
        ),
        (
            lambda: engine.decode(engine.batch([5]), embd_all=True),
            r"embd_all is True, which takes ubatches of one sequence",
        ),
        (
            lambda: engine.decode(engine.batch([5]), hidden=True),
            r"hidden is True, which takes another program",
        ),
        (
            lambda: engine.decode(engine.batch(embd=np.ones((1, 16)))),
            r"embedding or state rows of 16 values, which take another",
        ),
        (lambda: engine.decode_at_once(engine.batch([5])), r"decode_at_once takes another program"),
        (lambda: engine.embed(["a"]), r"batch_invariant gives logits alone"),
    ):
        with pytest.raises(ValueError, match=why):
            operation()
        assert unchanged(engine, before)
    engine.clear()


def test_a_state_with_a_hole_is_refused():
    engine, sizes = (
        engine_of(),
        {"n_ctx": 48 * S, "kv_pad": 48, "n_seq_max": S, "n_batch": 32, "n_ubatch": 5 * S},
    )
    plain = one_capacity(
        Engine(tiny_model(), None, EngineConfig(**sizes), rows=[(S, 5 * S)], n_outputs=[5 * S])
    )
    plain.decode(plain.batch(IDS[:6]))
    plain.rm(0, 2, 4)
    with pytest.raises(ValueError, match="can't be loaded: position 4 of sequence 1 would lie in cell 2"):
        engine.set_state(plain.get_state(0), 1)
    assert engine.pos_max(1) == -1


HOT = Sampling(temperature=1.2, top_k=30, top_p=0.9, repeat_penalty=1.1, seed=11)
COOL = Sampling(temperature=0.7, min_p=0.02, typical_p=0.95, presence_penalty=0.3, seed=5)


def test_every_output_of_generate_equals_a_lone_run_to_the_bit():
    """More prompts than sequences, two outputs of each, prefixes kept: tokens and log-probabilities."""
    engine, rng = engine_of(prefix_cache=True), np.random.default_rng(8)
    common = rng.integers(1, CONFIG.n_vocab, 9).tolist()
    prompts = [common + rng.integers(1, CONFIG.n_vocab, n).tolist() for n in (1, 14, 3, 7)]
    wanted = [Sampling(), HOT, COOL, HOT]
    options = {"max_tokens": 10, "logprobs": 0, "context_shift": True}
    together = engine.generate(prompts, sampling=wanted, n=2, **options)
    assert list(together[0].report.usage.buckets) == ["3x5|kv 48|out 15"]
    other = engine_of(n_ubatch=4)
    for found, prompt, own in zip(together, prompts, wanted, strict=True):
        for i, output in enumerate((found, *found.others)):
            lone = other.generate(prompt, sampling=dataclasses.replace(own, seed=own.seed + i), **options)
            assert (output.tokens, output.finish_reason) == (lone.tokens, lone.finish_reason)
            assert [t.logprob for t in output.logprobs] == [t.logprob for t in lone.logprobs]
    engine.clear()


def test_a_full_context_ends_an_output_since_nothing_can_be_moved():
    found = engine_of().generate(IDS, max_tokens=100, context_shift=True, logprobs=0)
    assert found.finish_reason == "context" and len(found.tokens) == 48 - LENGTH + 1


@pytest.mark.parametrize(
    ("config", "ladders", "why"),
    [
        ({"kv_unified": True}, {}, "kv_unified is True: batch_invariant needs a stream for each sequence"),
        ({"batch_invariant": 1}, {}, "batch_invariant is 1, True or False is needed"),
        (
            {},
            {"rows": "1x8,2x8"},
            "the rows of a ubatch are 1x8,2x8: one shape 2xT, a block of T rows for each",
        ),
        ({}, {"rows": "3x8"}, "the rows of a ubatch are 3x8: one shape 2xT"),
        ({}, {"rows": [16]}, r"the rows of a ubatch are \[16\]: one shape 2xT"),
        ({}, {"n_kv": "16,32"}, "n_kv is 16,32: the one size 32 is needed"),
        ({}, {"n_outputs": [4]}, r"n_outputs is \[4\]: the one size 16 is needed"),
    ],
)
def test_configurations_that_could_not_keep_the_promise_are_refused(config, ladders, why):
    with pytest.raises(ValueError, match=why):
        sizes = {"n_ctx": 64, "n_seq_max": 2, "kv_pad": 32, "batch_invariant": True}
        Engine(tiny_model(), None, EngineConfig(**{**sizes, **config}), **ladders)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"n_swa": 4, "swa_type": SwaType.STANDARD, "swa_layers": (True, False)},
            "the model has sliding windows, whose cells are",
        ),
        ({"rope_sections": (2, 1, 1, 0)}, "a token has 4 positions here"),
    ],
)
def test_models_that_use_cells_otherwise_are_refused(change, why):
    model = Decoder(dataclasses.replace(CONFIG, **change), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=why):
        Engine(model, None, EngineConfig(batch_invariant=True))
    with pytest.raises(ValueError, match="the model is an encoder: batch_invariant needs a decoder"):
        Engine(tiny_encoder(), None, EngineConfig(batch_invariant=True))


def test_the_shape_is_of_the_sequences_alone():
    for n_seq_max, shape in ((1, (1, 16)), (2, (2, 8)), (4, (4, 4)), (16, (16, 4))):
        for n_ubatch in (1, 512):
            sizes = {"n_ctx": 64, "n_seq_max": n_seq_max, "n_ubatch": n_ubatch, "kv_pad": 4}
            engine = Engine(tiny_model(), None, EngineConfig(**sizes, batch_invariant=True))
            assert engine.buckets.rows.rectangles == (shape,)
            assert engine.n_ubatch == min(n_ubatch, shape[0] * shape[1])


def test_smollm2_gives_the_same_bits_alone_and_in_company():
    model, _ = load_model("smollm2")
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 40000, 14).tolist()
    sizes = {"n_ctx": 1024, "n_seq_max": 4, "batch_invariant": True}
    engine = Engine(model, None, EngineConfig(**sizes))
    whole = logits_of(engine, [(0, token) for token in ids], 0)
    for seq, cuts in ((0, (1, 5, 8)), (2, (6, 1, 1, 6)), (3, (3, 11))):
        engine.clear()
        found, at = [], 0
        for n in cuts:
            company = [
                (s, int(rng.integers(40000))) for s in range(4) for _ in range(rng.integers(4)) if s != seq
            ]
            found.append(logits_of(engine, [*company, *((seq, token) for token in ids[at : at + n])], seq))
            at += n
        np.testing.assert_array_equal(bits(np.concatenate(found)), bits(whole))
