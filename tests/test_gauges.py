"""Gauges: what a cache holds and what still fits; errors that tell fragmented, full and too large apart."""

import re

import pytest

from tests.saving.helpers import engine_of, fill
from tests.tiny import state, tiny_engine, unchanged
from ubjax import NoSlotError
from ubjax.host_batch import on_host
from ubjax.memory.init_batch import CAUSAL
from ubjax.status import Reason, refusal


def refused(engine, tokens, seq_id) -> NoSlotError:
    before = state(engine)
    with pytest.raises(NoSlotError) as caught:
        engine.decode(engine.batch(tokens, seq_id=seq_id))
    assert unchanged(engine, before)
    assert "; nothing was changed" in str(caught.value) and ". " not in str(caught.value)
    return caught.value


def small():
    """16 cells for 4 sequences."""
    return tiny_engine(n_ctx=16, n_seq_max=4, kv_unified=True)


@pytest.fixture(scope="module")
def three_of_five():
    """16 cells, of which three sequences hold 5 each."""
    engine = small()
    for seq in range(3):
        fill(engine, seq, 5)
    return engine


def test_a_smaller_batch_fits(three_of_five):
    error = refused(three_of_five, [1, 2, 3, 4], [3] * 4)
    assert str(error) == (
        "ubatch 0 needs 4 cells of one stream, 1 is free: no slot; the cache holds 15 of 16 cells; "
        "the first 1 of its 4 tokens fits now; nothing was changed: rm frees cells, a larger n_ctx has more"
    )
    report = error.report
    assert (report.free, int(error.status.needed), report.n_by_sequence) == (1, 4, (5, 5, 5, 0))
    assert (error.fits, error.never, report.fits, report.room) == (1, False, 1, (1, 1, 1, 1))
    assert error.report is report


def test_the_report_is_that_of_the_refusal():
    engine = small()
    fill(engine, 0, 15)
    error = refused(engine, [1, 2], [0, 0])
    engine.rm(0)
    assert (error.report.used, engine.memory_report().used) == (15, 0)


def test_full_until_cells_are_free(three_of_five):
    engine = three_of_five
    fill(engine, 0, 6)
    error = refused(engine, [1], [1])
    assert (error.fits, error.never, error.report.fits) == (0, False, 0)
    assert "not one token fits until cells are free" in str(error)
    engine.rm(0, 5)
    assert engine.memory_report().fits == 1


def test_larger_than_the_cache():
    streams = tiny_engine(n_ctx=64, n_seq_max=4, n_ubatch=1)
    fill(streams, 2, 3)
    error = refused(streams, [1] * 20, [0] * 17 + [1] * 3)
    assert (error.never, error.fits) == (True, 16)
    assert (
        "each sequence has 16 cells, sequence 2 holds 3; 17 tokens of one stream never fit into its"
        in str(error)
    )
    assert str(error).endswith("; nothing was changed: a larger n_ctx or kv_unified is needed")
    error = refused(streams, [1] * 20, [3, 2] * 6 + [2] * 8)
    assert str(error).endswith("; nothing was changed: rm frees cells, a larger n_ctx or kv_unified has more")
    assert (error.never, error.fits) == (False, 19)
    report = streams.memory_report()
    assert (report.room, report.fits, report.free) == ((16, 16, 13, 16), 61, 61)


def test_what_is_said_to_fit_does_fit():
    streams = tiny_engine(n_ctx=64, n_seq_max=4, n_ubatch=1)
    tokens, seqs = [1] * 20, [3, 2] * 4 + [2] * 12
    fill(streams, 2, 3)
    error = refused(streams, tokens, seqs)
    assert error.fits == 17
    refused(streams, tokens[:18], seqs[:18])
    _, (_, status, *_) = streams._plan(on_host(streams.batch(tokens[:17], seq_id=seqs[:17])), CAUSAL)
    assert int(status.code) == Reason.OK


def test_shared_cells_gaps_and_bytes():
    engine = small()
    fill(engine, 0, 6)
    engine.cp(0, 1, 0, 4)
    fill(engine, 2, 3)
    engine.rm(0, 4)
    (cache,) = engine.memory_report().caches
    assert (cache.used, cache.free, cache.shared, cache.kept, cache.reusable) == (7, 9, 4, 0, 0)
    assert (cache.longest_free, cache.gaps, cache.n_by_sequence) == (7, 2, (4, 4, 3, 0))
    assert cache.n_bytes == sum(own.nbytes for own in vars(engine)["_kv"])
    assert cache.n_bytes_full == 2 * 2 * 2 * 8 * 4 * 16  # K and V, layers, heads, width, bytes, cells
    engine.clear()
    assert (engine.memory_report().used, engine.memory_report().fits) == (0, 16)


def test_what_is_kept_for_later_is_given_up():
    engine, source = small(), small()
    fill(engine, 0, 10)
    fill(engine, 1, 3)
    engine.keep_prefix(0, range(10))
    report = engine.memory_report()
    assert (report.used, report.caches[0].kept, report.fits) == (13, 10, 13)
    fill(source, 0, 14)
    before = state(engine)
    with pytest.raises(NoSlotError, match=r"needs 14 cells .* 13 of its 16 are free") as caught:
        engine.set_state(source.get_state(0), 2)
    assert unchanged(engine, before) and engine.kept() == {0: tuple(range(10))}
    assert (caught.value.report.used, caught.value.report.caches[0].kept) == (13, 10)
    source.rm(0, 9)
    engine.set_state(source.get_state(0), 2)
    assert (engine.kept(), engine.pos_max(0), engine.pos_max(2)) == ({}, -1, 8)
    source.rm(0, 4)
    engine.keep_prefix(2, range(9))
    engine.set_state(source.get_state(0), 2)  # it is another one now
    assert engine.kept() == {}


def test_windows_count_what_they_have_passed():
    engine = engine_of("window")
    fill(engine, 0, 22)
    full, window = engine.memory_report().caches
    assert (full.used, full.reusable, window.n_cells, window.used) == (22, 0, 24, 22)
    assert window.reusable == 22 - 3  # all but what position 22 sees
    assert engine.memory_report().fits == min(32 - 22, 24 - 3)
    assert (window.n_by_sequence, window.name) == ((22, 0, 0, 0), "window")


def test_a_window_cache_without_room_says_what_fits():
    engine = engine_of("window")
    fill(engine, 0, 21)
    for seq in (1, 2, 3):
        engine.cp(0, seq)  # shared cells are not used again
    error = refused(engine, [1] * 8, [1] * 8)
    held = "the cache holds 21 of 32 cells and its window cache 21 of 24; the first 3 of its 8 tokens fit now"
    assert held in str(error)
    assert str(error).endswith("; nothing was changed: rm frees cells, swa_full has more")
    assert (error.fits, error.report.fits, error.report.caches[1].shared) == (3, 3, 21)


def test_it_shows_itself(three_of_five):
    three_of_five.rm(0, 5)
    report = three_of_five.memory_report()
    lines = str(report).splitlines()
    assert lines[0] == "15 of 16 cells (shared, 4 sequences) used; 1 more token fits now"
    assert [line.split() for line in lines[3:4]] == [
        ["full", "16", "15", "1", "0", "0", "0", "1", "0", "4.0", "KiB", "4.0", "KiB"]
    ]
    assert lines[2].index("cells") + len("cells") == lines[3].index("16") + len("16")  # columns end alike
    assert [line.split() for line in lines[6:]] == [[str(s), "5", "1"] for s in range(3)]
    page = report._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == 6 and page.count("<table>") == 2
    assert re.findall(r"<td>(\d+)</td><td>5</td><td>1</td>", page) == ["0", "1", "2"]


def test_many_sequences_are_cut_and_none_are_left_out():
    engine = tiny_engine(n_ctx=64, n_seq_max=40, kv_unified=True)
    assert str(engine.memory_report()).count("\n") == 3  # no table of sequences
    data = small()
    fill(data, 0, 1)
    for seq in range(40):
        engine.set_state(data.get_state(0), seq)
    assert str(engine.memory_report()).splitlines()[-1].split() == ["24", "more"]
    assert engine.memory_report().n_by_sequence == (1,) * 40


def test_an_error_without_an_engine_has_no_report():
    error = refusal(Reason.NO_SLOT, where=0, found=0, needed=1)
    assert isinstance(error, NoSlotError) and error.report is None and not error.fits
