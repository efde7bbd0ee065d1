"""The schedule on its own, on a made-up cache: first come, first served, within every limit, to the end."""

from hypothesis import given
from hypothesis import strategies as st

from ubjax.generate.request import Request
from ubjax.generate.schedule import Part, Run, Schedule, halved


def run(index, n_prompt, output=0):
    return Run(index=index, output=output, request=Request(ids=(1,) * n_prompt), ids=[1] * n_prompt)


def advance(parts):
    """Decode the parts: each run whose last id was among them chooses a token."""
    for part in parts:
        wanted = part.wanted
        part.run.cached += part.n
        if wanted:
            part.run.ids.append(2)


def taken(parts):
    return [(part.run.index, part.n) for part in parts]


def test_one_token_of_each_running_row_and_a_piece_of_the_prompt():
    schedule = Schedule([run(0, 2), run(1, 9), run(2, 1)], range(2), n_batch=16, n_ubatch=4, shared=True)
    assert [r.index for r in schedule.admit(99)] == [0, 1]
    seen = []
    for _ in range(4):
        parts = schedule.parts()
        seen.append(taken(parts))
        advance(parts)
    assert seen == [[(0, 2), (1, 2)], [(0, 1), (1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 1)]]


def test_prompt_tokens_have_a_limit_of_their_own():
    schedule = Schedule(
        [run(0, 2), run(1, 9)], range(2), n_batch=16, n_ubatch=4, max_prompt_tokens=7, shared=True
    )
    schedule.admit(99)
    parts = schedule.parts()
    assert taken(parts) == [(0, 2), (1, 5)]
    advance(parts)
    assert taken(schedule.parts()) == [(0, 1), (1, 4)]


def test_with_streams_a_batch_has_one_prompt_beside_the_running_rows():
    schedule = Schedule([run(k, n) for k, n in enumerate((2, 5, 1))], range(3), n_batch=9, n_ubatch=4)
    schedule.admit(0)
    seen = []
    for _ in range(4):
        parts = schedule.parts()
        seen.append(taken(parts))
        advance(parts)
    assert seen == [[(0, 2)], [(0, 1), (1, 3)], [(0, 1), (1, 2)], [(0, 1), (1, 1), (2, 1)]]


def test_a_shared_cache_admits_what_fits_beside_what_runs():
    schedule = Schedule(
        [run(k, n) for k, n in enumerate((5, 3, 1))], range(3), n_batch=9, n_ubatch=9, shared=True
    )
    assert [r.index for r in schedule.admit(8)] == [0]  # 3 and one more do not fit, and 1 does not overtake
    assert [r.index for r in schedule.admit(9)] == [1]
    assert [r.index for r in schedule.admit(10)] == [2]


def test_the_head_is_admitted_when_nothing_runs():
    schedule = Schedule([run(0, 8), run(1, 1)], range(2), n_batch=9, n_ubatch=9, shared=True)
    assert [r.index for r in schedule.admit(8)] == [0]


def test_the_newest_goes_back_to_the_head_and_the_last_one_stays():
    first, second, third = runs = [run(k, 2) for k in range(3)]
    schedule = Schedule(runs, range(2), n_batch=9, n_ubatch=9, shared=True)
    schedule.admit(99)
    advance(schedule.parts())
    assert schedule.preempt() == 1
    assert (list(schedule.waiting), schedule.running, schedule.free) == ([second, third], [first], [1])
    assert (second.cached, second.ids, second.seq) == (0, [1, 1, 2], None)
    assert schedule.preempt() is None
    schedule.admit(99)
    assert (second.n_prefill, second.seq) == (3, 1)
    assert schedule.end(third) is None and schedule.end(first) == 0 and schedule.free == [0]


def test_no_more_sequences_than_rows_of_a_batch():
    schedule = Schedule([run(k, 3) for k in range(5)], range(4), n_batch=2, n_ubatch=2)
    assert len(schedule.admit(99)) == 2


def test_outputs_of_a_prompt_wait_for_its_cells():
    first, second = run(0, 5), run(0, 5, output=1)
    schedule = Schedule([first, second], range(2), n_batch=4, n_ubatch=4, shared=True)
    assert len(schedule.admit(7)) == 2  # 5 cells, then 1 and one more
    assert (schedule.share(), taken(schedule.parts())) == ([], [(0, 4)])
    advance(schedule.parts())
    assert schedule.share() == [(first, second)] and second.cached == 4
    assert [(p.run, p.n, p.wanted) for p in schedule.parts()] == [(first, 1, True), (second, 1, True)]


def test_an_output_whose_elder_has_left_reads_the_prompt_itself():
    first, second = run(0, 5), run(0, 5, output=1)
    schedule = Schedule([first, second], range(2), n_batch=9, n_ubatch=9, shared=True)
    schedule.admit(99)
    schedule.end(first)
    assert schedule.share() == [] and [(p.run, p.n) for p in schedule.parts()] == [(second, 5)]


def test_batches_are_halved_down_to_one_row():
    a, b = run(0, 9), run(1, 5)
    parts = [Part(run=a, n=1), Part(run=b, n=5)]
    assert taken(halved(parts)) == [(0, 1)] and halved(parts[:1]) == []
    assert taken(halved(parts[1:])) == [(1, 2)] and not halved(parts[1:])[0].wanted


@given(
    lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=8),
    n_seqs=st.integers(1, 4),
    n_cells=st.integers(12, 24),
    n_batch=st.integers(1, 8),
    limit=st.none() | st.integers(1, 5),
)
def test_everything_ends_in_order_of_arrival_and_within_the_limits(lengths, n_seqs, n_cells, n_batch, limit):
    runs = [run(k, n) for k, (n, _) in enumerate(lengths)]
    ends = {r: min(n + m, n_cells + 1) for r, (n, m) in zip(runs, lengths, strict=True)}
    schedule = Schedule(
        runs, range(n_seqs), n_batch=n_batch, n_ubatch=n_batch, max_prompt_tokens=limit, shared=True
    )
    for _ in range(2000):
        if not schedule:
            break
        used = sum(r.cached for r in schedule.running)
        schedule.admit(n_cells - used)
        everyone = [*schedule.running, *schedule.waiting]
        assert [r.index for r in everyone] == sorted(r.index for r in everyone)
        parts = schedule.parts()
        assert 0 < sum(part.n for part in parts) <= n_batch
        assert sum(part.n_prompt for part in parts) <= (limit or n_batch)
        while parts and used + sum(part.n for part in parts) > n_cells:
            parts = halved(parts)
        if not parts:
            assert schedule.preempt() is not None
        advance(parts)
        for r in [r for r in schedule.running if len(r.ids) >= ends[r]]:
            schedule.end(r)
    assert not schedule and sorted(schedule.free) == list(range(min(n_seqs, n_batch)))
    assert all(len(r.ids) == ends[r] for r in runs)


def test_what_a_donor_no_longer_holds_is_not_shared():
    def pair():
        first, second = run(0, 5), run(0, 5, output=1)
        schedule = Schedule([first, second], range(2), n_batch=16, n_ubatch=8, shared=True)
        schedule.admit(99)
        advance(schedule.parts())
        return schedule, first, second

    schedule, first, second = pair()
    first.drop(0, 2)  # its cells no longer begin with the prompt
    assert schedule.share() == [] and (second, 5) in [(p.run, p.n) for p in schedule.parts()]
    schedule, _, second = pair()
    assert schedule.share(lambda seq, n: (seq, n) != (0, 4)) == []  # as of a window that has passed
    assert schedule.share() == [] and (second, 5) in [(p.run, p.n) for p in schedule.parts()]
    schedule, first, second = pair()
    second.n_dropped = 1  # it was shifted before it was put back
    assert schedule.share() == []
