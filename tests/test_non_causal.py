"""Decodes that are not causal, and embedding mode: what is seen, how streams are cut, what is refused."""

import functools

import numpy as np
import pytest

from tests.models.helpers import GROUPED, WINDOWED, decoder, random_weights
from tests.models.oracle import Reference
from tests.ragged_rows import LENGTHS, TOKENS, close, rows
from tests.tiny import one_capacity, state, tiny_model, unchanged
from ubjax import BucketLadder, Engine, EngineConfig, InvalidBatchError, required_ubatch
from ubjax.analysis import forbid_compilations

A, B = [5, 1, 30, 7, 7, 2, 11, 9], [36, 0, 4, 22, 8, 3]
CHUNKS = {0: (3, 7), 1: (2, 5)}  # of A and B


@functools.cache
def engine(kind):
    """Ubatches of 8 rows, a program or two of the step."""
    config = WINDOWED if kind == "window" else GROUPED
    sizes = {
        "n_ctx": 64,
        "kv_pad": 32,
        "n_batch": 16,
        "n_ubatch": 8,
        "n_seq_max": 2,
        "kv_unified": kind != "streams",
    }
    ladders = {"rows": BucketLadder((8,)), "n_outputs": BucketLadder((8,))}
    cells = BucketLadder((32 if kind == "streams" else 64,))
    return one_capacity(Engine(decoder(config), None, EngineConfig(**sizes), n_kv=cells, **ladders))


def decode(on, parts, **mode):
    """Decode the positions [start, stop) of A and B in turn, as one batch: logits by (sequence, position)."""
    held = [(p, s) for s, (start, stop) in parts.items() for p in range(start, stop)]
    placed = [(s, p) for p, s in sorted(held)]
    batch = on.batch(
        [(A, B)[s][p] for s, p in placed],
        seq_id=[s for s, _ in placed],
        pos=[p for _, p in placed],
        output=[True] * len(placed),
    )
    outputs = on.decode(batch, **mode)
    return {row: outputs.logits(i) for i, row in enumerate(placed)}


@functools.cache
def dense(config):
    """Logits by (sequence, position), each sequence alone: text, a chunk that sees all of itself, text."""
    reference, found = Reference(config, random_weights(config)), {}
    for s, tokens in enumerate((A, B)):
        start, stop = CHUNKS[s]
        ends = [stop if start <= i < stop else i + 1 for i in range(len(tokens))]
        found |= {(s, i): row for i, row in enumerate(reference.logits(tokens, ends=ends))}
    return found


@pytest.mark.parametrize("kind", ["unified", "streams", pytest.param("window", marks=pytest.mark.slow)])
def test_a_chunk_sees_the_cached_text_and_all_of_itself_and_nothing_else(kind):
    on = engine(kind)
    on.clear()
    found = decode(on, {s: (0, start) for s, (start, _) in CHUNKS.items()})
    before = on.usage.copy()
    found |= decode(on, CHUNKS, causal=False)
    # with streams a sequence at a time
    assert sum(on.usage.since(before).buckets.values()) == (2 if kind == "streams" else 1)
    found |= decode(on, {0: (7, 8), 1: (5, 6)})
    want = dense(on.model_config)
    assert found.keys() == want.keys()
    for row, logits in found.items():
        np.testing.assert_allclose(logits, want[row], atol=2e-5, err_msg=str(row))
    causal = Reference(on.model_config, random_weights(on.model_config)).logits(A)
    assert np.abs(causal[3] - want[0, 3]).max() > 0.1


def test_a_mode_is_data():
    on = engine("unified")
    on.clear()
    decode(on, CHUNKS | {0: (0, 4), 1: (0, 3)})
    on.clear()
    with forbid_compilations():
        decode(on, {0: (0, 4), 1: (0, 3)}, causal=False)


def test_a_batch_above_n_ubatch_is_refused_before_any_work():
    on = engine("unified")
    on.clear()
    on.decode(on.batch(A[:3]))
    before = state(on)
    batch = on.batch(list(range(9)), pos=range(1, 10))  # 1 is the wrong position too
    assert (required_ubatch(batch), required_ubatch(batch, causal=False)) == (1, 9)
    with pytest.raises(InvalidBatchError) as caught:
        on.decode(batch, causal=False)
    assert str(caught.value) == (
        "the batch holds 9 tokens that are to see one another (not causal), which takes one ubatch: n_ubatch allows 8"
    )
    assert (caught.value.result, int(caught.value.status.found), int(caught.value.status.needed)) == (
        -1,
        9,
        8,
    )
    with pytest.raises(InvalidBatchError, match="sequence 0 starts at position 1, position 3 is needed"):
        on.decode(on.batch(list(range(8)), pos=range(1, 9)), causal=False)
    for name in ("causal", "embd_all"):
        with pytest.raises(ValueError, match=f"{name} is 1, True or False is needed"):
            on.decode(on.batch([1]), **{name: 1})
    assert unchanged(on, before)
    assert required_ubatch(on.batch(A), causal=np.False_) == 8


@pytest.mark.parametrize("order", ["in turn", "shuffled"])
def test_embedding_mode_cuts_streams_sequence_by_sequence(order):
    """Every row an output, in chunks of at most 4 rows of one sequence: the logits of the sequences alone."""
    on = streams_of_four()
    on.clear()
    placed, before = rows(order), on.usage.copy()
    batch = on.batch(
        [TOKENS[s][p] for s, p in placed],
        seq_id=[s for s, _ in placed],
        pos=[p for _, p in placed],
        output=None,
    )
    with pytest.warns(UserWarning, match=r"every token as an output: 17 unmarked tokens were marked"):
        outputs = on.decode(batch, embd_all=True)
    assert close({row: outputs.logits(i) for i, row in enumerate(placed)})
    n_ubatches = sum(-(-n // 4) for n in LENGTHS)
    assert sum(on.usage.since(before).buckets.values()) == n_ubatches == 7
    assert all(name.startswith("1x") for name in on.usage.since(before).buckets)


@functools.cache
def streams_of_four():
    config = EngineConfig(n_ctx=64, kv_pad=16, n_seq_max=4, n_ubatch=4)
    ladders = {"rows": BucketLadder((4,)), "n_outputs": BucketLadder((4,)), "n_kv": BucketLadder((16,))}
    return one_capacity(Engine(tiny_model(), None, config, **ladders))
