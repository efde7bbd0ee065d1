"""Every token of every request is decoded once, in order, within the limits; drawn examples as drawn."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.traces import Trace, synthetic_trace

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), min_size=1, max_size=12)


def trace_of(lengths, gap=0.0):
    return Trace.of([gap * i for i in range(len(lengths))], *zip(*lengths, strict=True))


def test_the_drawn_example():
    traffic = drive(trace_of([(3, 2), (4, 1)]), slots=2, n_batch=4)
    assert list(traffic) == [[(0, 3), (1, 1)], [(0, 1), (1, 3)]]
    assert traffic.pos.tolist() == [[0, 0], [3, 1]]
    assert traffic.output.tolist() == [[True, False], [True, True]]
    assert len(traffic) == 2 and traffic.tokens == 8


def test_slots_run_together_and_are_taken_again():
    traffic = drive(trace_of([(2, 4), (1, 3), (3, 1)]), slots=2, n_batch=8)
    assert list(traffic) == [[(0, 2), (1, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 3)]]
    assert traffic.repeats.tolist() == [1, 2, 1]
    assert traffic.n_cells.tolist() == [3, 5, 8]
    place, kind = traffic.kinds()
    assert sorted(place.tolist()) == [0, 1, 2] and place[kind].tolist() == [0, 1, 2]
    assert [x.tolist() for x in traffic.needed_cells(unified=True)] == [[0, 1, 1, 2], [3, 5, 7, 8]]
    assert [x.tolist() for x in traffic.needed_cells(unified=False)] == [[0, 1, 1, 2], [2, 3, 4, 5]]


def test_an_open_loop_waits_for_arrivals():
    trace = trace_of([(2, 9), (2, 2)], gap=3.5)
    open_loop = list(drive(trace, slots=2, n_batch=8, seconds=lambda n: 1.0))
    assert open_loop[:4] == [
        [(0, 2)],
        [(0, 1)],
        [(0, 1)],
        [(0, 1)],
    ]  # at 0, 1, 2, 3 s; the second comes at 3.5
    assert open_loop[4:] == [[(0, 1), (1, 2)], [(0, 1), (1, 1)], [(0, 1)], [(0, 1)], [(0, 1)]]
    idle = list(drive(trace_of([(2, 1), (3, 1)], gap=100), slots=2, n_batch=8, seconds=lambda n: 1.0))
    assert idle == [[(0, 2)], [(0, 3)]]
    with pytest.raises(ValueError, match="a decode took 0 seconds, a positive time is needed"):
        drive(trace, seconds=lambda n: 0)


@given(LENGTHS, st.integers(1, 5), st.integers(0, 20), st.sampled_from([None, 0.4, 2.0]))
def test_every_token_is_decoded_once(lengths, slots, more, step):
    n_batch = slots + more
    seconds = None if step is None else lambda n: step
    traffic = drive(trace_of(lengths, gap=1.0), slots=slots, n_batch=n_batch, seconds=seconds)
    assert traffic.tokens == sum(prompt + max(output - 1, 0) for prompt, output in lengths)
    assert sum(n for pieces in traffic for _, n in pieces) == traffic.tokens
    assert len(list(traffic)) == len(traffic)
    assert traffic.cells_seen == sum(n * (n + 1) // 2 for n in (p + max(g - 1, 0) for p, g in lengths))
    check_cells(traffic)
    ends = collections.Counter()
    for seq_id, n_tokens, pos, output, repeats in zip(
        traffic.seq_id, traffic.n_tokens, traffic.pos, traffic.output, traffic.repeats, strict=True
    ):
        used = n_tokens > 0
        n_pieces = int(used.sum())
        assert used[:n_pieces].all() and not (
            seq_id[n_pieces:].any() or pos[n_pieces:].any() or output[n_pieces:].any()
        )
        assert n_tokens.sum() <= n_batch and len(set(seq_id[used].tolist())) == n_pieces
        assert repeats == 1 or (n_tokens[used] == 1).all()
        for s, n, at in zip(seq_id[used].tolist(), n_tokens[used].tolist(), pos[used].tolist(), strict=True):
            assert at in (0, ends[s])  # a sequence goes on, or a new request begins
            ends[s] = at + n - 1 + int(repeats)


def check_cells(traffic):
    """Follow every sequence row by row: the cells of the longest in a decode, and those of all together."""
    held, streams = collections.Counter(), []
    for seq_id, n_tokens, pos, n_cells, repeats in zip(
        traffic.seq_id, traffic.n_tokens, traffic.pos, traffic.n_cells, traffic.repeats, strict=True
    ):
        for time in range(repeats):
            for s, n, at in zip(seq_id.tolist(), n_tokens.tolist(), pos.tolist(), strict=True):
                if n:
                    held[s] = at + n + time
            streams.append(max(held[s] for s, n in zip(seq_id.tolist(), n_tokens.tolist(), strict=True) if n))
            if time == 0:
                assert n_cells <= sum(held.values())  # those of finished requests are still counted here
    assert traffic.needed_cells(unified=False)[1].tolist() == streams
    place, together = traffic.needed_cells(unified=True)
    assert (together >= traffic.needed_cells(unified=False)[1]).all() and len(place) == len(traffic)


@given(LENGTHS, st.integers(1, 5), st.integers(0, 20))
def test_prompts_are_packed_whole(lengths, slots, more):
    n_batch = slots + more
    traffic = pack_prompts(trace_of(lengths), slots=slots, n_batch=n_batch)
    prompts = [prompt for prompt, _ in lengths]
    assert traffic.tokens == sum(prompts)
    pieces = [n for decode in traffic for _, n in decode]
    cut = [
        n
        for prompt in prompts
        for n in [*([n_batch] * ((prompt - 1) // n_batch)), (prompt - 1) % n_batch + 1]
    ]
    assert pieces == cut
    for decode in traffic:
        assert [s for s, _ in decode] == list(range(len(decode))) and len(decode) <= slots
        assert sum(n for _, n in decode) <= n_batch


def test_a_closed_loop_keeps_the_slots_busy():
    traffic = drive(synthetic_trace(60, prompt=(50, 1, 400), output=(20, 0.5, 60)), slots=4, n_batch=128)
    busy = (traffic.n_tokens > 0).sum(axis=1)
    assert np.average(busy, weights=traffic.repeats) > 3.5


def test_no_requests_are_no_decodes():
    empty = trace_of([(1, 1)])[1:]
    assert len(drive(empty)) == 0 and list(pack_prompts(empty)) == []


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"slots": 0}, "0 slots were asked for, 1 to 256 are needed"),
        ({"slots": 257}, "257 slots were asked for"),
        ({"slots": 8, "n_batch": 7}, "n_batch is 7, at least one token for each of the 8 slots is needed"),
    ],
)
def test_sizes_are_checked(sizes, sentence):
    for form in (drive, pack_prompts):
        with pytest.raises(ValueError, match=sentence):
            form(trace_of([(1, 1)]), **sizes)
