"""Shapes counted by the jitted splits equal those of a split written down by hand, for every n_ubatch at once."""

import collections

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.shapes import STRATEGIES, batch_of_pieces, count_shapes
from ubjax.analysis.traces import Trace, synthetic_trace
from ubjax.batch import Batch
from ubjax.config import BatchConfig

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


@settings(max_examples=20)
@given(st.permutations(range(6)), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_batch_is_the_one_of_flat_arrays(ids, lengths):
    seq_id, n_tokens = np.zeros(6, np.int32), np.zeros(6, np.int32)
    seq_id[: len(lengths)], n_tokens[: len(lengths)] = ids[: len(lengths)], lengths
    batch = jax.jit(batch_of_pieces, static_argnums=2)(seq_id, n_tokens, 32)
    flat = np.repeat(seq_id, n_tokens)
    config = BatchConfig(n_vocab=1, n_batch=32, n_seq_max=6)
    expected = Batch.from_arrays(np.zeros(len(flat), np.int32), seq_id=flat, config=config, capacity=32)
    for name in ("seq", "order", "n_tokens", "type", "token"):
        assert np.array_equal(getattr(batch, name), getattr(expected, name)), name


def test_long_traffic_is_split_in_several_calls():
    trace = Trace.of(np.arange(150), np.arange(1, 151), np.ones(150, int))
    traffic = drive(trace, slots=1, n_batch=150)
    assert len(traffic.signatures()[2]) == 150
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
