"""Shapes counted by the jitted splits equal those of a split written down by hand, for every n_ubatch at once."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.shapes import STRATEGIES, batch_of_pieces, count_shapes, count_ubatches
from ubjax.analysis.traces import Trace, synthetic_trace
from ubjax.batch import Batch
from ubjax.config import BatchConfig
from ubjax.ladders import BucketLadder

SIZES = (2, 3, 7, 64)


def simple_by_hand(pieces, n_ubatch):
    total = sum(n for _, n in pieces)
    return [(1, min(n_ubatch, total - at)) for at in range(0, total, n_ubatch)]


def seq_by_hand(pieces, n_ubatch):
    return [(1, min(n_ubatch, n - at)) for _, n in pieces for at in range(0, n, n_ubatch)]


def equal_by_hand(pieces, n_ubatch):
    left, found = [list(piece) for piece in pieces], []
    while any(n for _, n in left):
        chosen = []
        for place, (seq_id, n) in enumerate(left):
            if n and len(chosen) < n_ubatch and (not chosen or seq_id == left[chosen[-1]][0] + 1):
                chosen.append(place)
        rows = min(*(left[place][1] for place in chosen), max(n_ubatch // len(chosen), 1), 10**9)
        for place in chosen:
            left[place][1] -= rows
        found.append((len(chosen), rows))
    return found


BY_HAND = {"simple": simple_by_hand, "equal": equal_by_hand, "seq": seq_by_hand}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_counts_equal_the_splits_by_hand(strategy):
    trace = synthetic_trace(25, prompt=(20, 1, 90), output=(10, 1, 30), seed=5)
    traffic = (pack_prompts if strategy == "seq" else drive)(trace, slots=5, n_batch=48)
    counted = count_shapes(traffic, SIZES, strategy)
    for n_ubatch in SIZES:
        expected = collections.Counter(
            shape for pieces in traffic for shape in BY_HAND[strategy](pieces, n_ubatch)
        )
        assert counted[n_ubatch] == expected
        assert sum(s * t * count for (s, t), count in counted[n_ubatch].items()) == traffic.tokens


def test_outputs_and_cells_by_hand():
    traffic = drive(Trace.of([0, 0], [6, 1], [3, 4]), slots=2, n_batch=8)
    assert list(traffic) == [[(0, 6), (1, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 1)], [(1, 1)]]
    cells = BucketLadder((4, 6, 8, 16))
    assert count_ubatches(traffic, [4], "equal", cells)[4] == {
        (2, 1, 1, 6): 1,  # 0 and 1, the output of 1
        (1, 4, 0, 6): 1,
        (1, 1, 1, 6): 1,
        (2, 1, 2, 8): 2,  # sequence 0 has 7, then 8 cells
        (1, 1, 1, 8): 1,  # K/V does not shrink
    }
    assert count_ubatches(traffic, [4], "simple", cells)[4] == {
        (1, 4, 0, 8): 1,
        (1, 3, 2, 8): 1,
        (1, 2, 2, 16): 2,  # 9 and 11 cells of both together
        (1, 1, 1, 16): 1,
    }
    assert count_ubatches(pack_prompts(Trace.of([0], [6], [3])), [4], "seq")[4] == {
        (1, 4, 4, 0): 1,
        (1, 2, 2, 0): 1,
    }
    with pytest.raises(ValueError, match="8 does not fit any bucket"):
        count_ubatches(traffic, [4], "equal", BucketLadder((4, 6)))


@settings(max_examples=20)
@given(st.permutations(range(6)), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_batch_is_the_one_of_flat_arrays(ids, lengths):
    rng = np.random.default_rng(len(lengths))
    seq_id, n_tokens = np.zeros(6, np.int32), np.zeros(6, np.int32)
    seq_id[: len(lengths)], n_tokens[: len(lengths)] = ids[: len(lengths)], lengths
    output = rng.random(6) < 0.5
    batch = jax.jit(batch_of_pieces, static_argnums=3)(
        *(jnp.asarray(x) for x in (seq_id, n_tokens, output)), 32
    )
    flat = np.repeat(seq_id, n_tokens)
    config = BatchConfig(n_vocab=1, n_batch=32, n_seq_max=6)
    flags = np.concatenate([np.arange(n) == n - 1 for n in lengths]) & np.repeat(output, n_tokens)
    expected = Batch.from_arrays(
        np.zeros(len(flat), np.int32), seq_id=flat, output=flags, config=config, capacity=32
    )
    for name in ("seq", "output", "order", "n_tokens", "type", "token"):
        assert np.array_equal(getattr(batch, name), getattr(expected, name)), name


def test_long_traffic_is_split_in_several_calls():
    trace = Trace.of(np.arange(150), np.arange(1, 151), np.ones(150, int))
    traffic = drive(trace, slots=1, n_batch=150)
    assert len(traffic.kinds()[0]) == 150
    assert count_shapes(traffic, [128], "simple")[128] == {
        (1, n): 1 if 22 < n < 128 else 2 if n < 23 else 23 for n in range(1, 129)
    }


@pytest.mark.parametrize(
    ("n_ubatch", "strategy", "sentence"),
    [
        ([8], "other", "the strategy is 'other', one of simple, equal, seq is needed"),
        ([], "simple", r"n_ubatch is \[\], sizes of at least 1 are needed"),
        ([8, 0], "simple", r"n_ubatch is \[8, 0\], sizes"),
    ],
)
def test_what_cannot_be_is_refused(n_ubatch, strategy, sentence):
    traffic = drive(synthetic_trace(2))
    with pytest.raises(ValueError, match=sentence):
        count_shapes(traffic, n_ubatch, strategy)
    with pytest.raises(ValueError, match="the traffic has no decodes"):
        count_shapes(drive(synthetic_trace(2)[2:]), [8], "simple")
