"""Saved and loaded: the same logits and the same bytes, across kinds of caches; or nothing has changed."""

import pytest
from flax import nnx

from tests.models.helpers import GROUPED, random_weights
from tests.saving.helpers import engine_of, filled, goes_on, model, parts, put, text
from tests.tiny import state, unchanged
from ubjax import Engine, EngineConfig, NoSlotError, count_compilations
from ubjax.models.decoder import Decoder
from ubjax.models.matrix import Int8, Panels, Rows
from ubjax.models.weights import decoder_places, fill_weights
from ubjax.saving.fingerprint import fingerprint

FAMILIES = (("unified", "streams"), ("window", "window streams"))
PAIRS = [(a, b) for family in FAMILIES for a in family for b in family]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_sequence_goes_on_in_another_cache_under_another_id(source, target):
    first, second = engine_of(source), engine_of(target)
    tokens = text(8)
    put(first, 0, tokens)
    put(first, 1, text(5, seed=1))
    put(second, 0, text(4, seed=2))
    data = first.get_state(0, tokens)
    assert second.set_state(data, 2) == tokens
    assert second.get_state(2, tokens) == data
    goes_on(first, 0, second, 2)
    beside = engine_of(target)
    put(beside, 0, text(4, seed=2))
    goes_on(second, 0, beside, 0)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_whole_cache_goes_on_in_another(source, target):
    first, second = engine_of(source), engine_of(target)
    put(first, 0, text(6))
    first.cp(0, 2)
    put(first, 2, text(3, seed=1))
    put(first, 1, text(2, seed=2))
    put(second, 3, text(5, seed=3))  # replaced, as everything is
    data = first.get_state()
    assert second.set_state(data) == []
    assert [second.pos_max(s) for s in range(4)] == [5, 1, 8, -1]
    if second.memory.unified or not first.memory.unified:
        assert second.get_state() == data  # the shared cells are still shared
    else:
        assert second.memory_report().n_by_sequence == (6, 2, 9, 0)
        again = engine_of(target)
        again.set_state(second.get_state())
        assert again.get_state() == second.get_state()
    for seq in range(3):
        goes_on(first, seq, second, seq, n=2)


def test_shared_cells_stay_shared():
    first, second = engine_of("unified"), engine_of("unified")
    put(first, 0, text(6))
    first.cp(0, 1)
    second.set_state(first.get_state())
    report = second.memory_report()
    assert (report.used, report.shared, report.n_by_sequence) == (6, 6, (6, 6, 0, 0))
    alone = engine_of("unified")
    alone.set_state(first.get_state(1), 0)
    assert (alone.memory_report().used, alone.memory_report().shared) == (6, 0)


def test_scattered_cells_are_taken():
    engine = engine_of("unified")
    for token in text(8, seed=1):
        put(engine, 0, [token])
        put(engine, 1, [token])
    put(engine, 2, text(14, seed=2))
    engine.rm(0)
    assert len(filled(engine)) == 22
    source = engine_of("unified")
    put(source, 0, text(10))
    engine.set_state(source.get_state(0), 0)
    assert filled(engine) == list(range(32))
    assert engine.get_state(0) == source.get_state(0)
    with pytest.raises(NoSlotError):
        put(engine, 0, [1])
    engine.rm(2)
    goes_on(source, 0, engine, 0)


def test_a_sequence_is_replaced_only_if_the_new_one_fits():
    engine, source = engine_of("unified"), engine_of("unified")
    put(engine, 0, text(8, seed=1))
    put(engine, 1, text(16, seed=2))
    put(source, 0, text(17))
    data, before = source.get_state(0), state(engine)
    with pytest.raises(NoSlotError) as caught:
        engine.set_state(data, 0)
    assert str(caught.value) == (
        "the state needs 17 cells of one stream of the full cache, 16 of its 32 are free: no slot; "
        "nothing was changed: rm frees cells, a larger n_ctx has more"
    )
    assert (caught.value.fits, caught.value.never, caught.value.report.free) == (16, False, 8)
    assert unchanged(engine, before)
    engine.set_state(data, 1)  # in place of 16
    assert (engine.pos_max(0), engine.pos_max(1), engine.n_free_cells()) == (7, 16, 7)
    goes_on(source, 0, engine, 1)


def test_kv_grows_and_other_lengths_take_the_same_programs():
    sizes = EngineConfig(n_ctx=32, n_batch=8, n_ubatch=4, n_seq_max=4, kv_pad=8, kv_unified=True)
    source, target = engine_of("unified"), Engine(model(), None, sizes)
    put(source, 0, text(13))
    short = source.get_state(0)
    put(source, 0, text(2))
    long = source.get_state(0)
    assert vars(target)["_kv"] == () or vars(target)["_kv"][0].n_cells == 8
    target.set_state(short, 1)
    assert vars(target)["_kv"][0].n_cells == 16
    assert target.get_state(1) == short
    with count_compilations() as count:
        target.set_state(long, 1)
        assert target.get_state(1) == long
        target.set_state(short, 1)
    assert count.total == 0, str(count)


def test_an_empty_sequence_replaces_a_sequence_too():
    engine = engine_of("window")
    put(engine, 0, [1, 2])
    data = engine.get_state(1, [7])
    assert engine.set_state(data, 0) == [7]
    assert engine.pos_max(0) == -1
    assert engine.get_state(0, [7]) == data


# -- windows
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["window", "window streams"])
def test_what_a_window_has_given_up_is_not_needed(kind):
    first, second = engine_of(kind), engine_of(kind)
    put(first, 0, text(26))
    assert first.pos_min(0) > 0
    data = first.get_state(0)
    _, tensors = parts(data)
    assert tensors["full.pos"].shape == (1, 26)
    assert tensors["window.pos"].tolist() == [list(range(first.pos_min(0), 26))]
    second.set_state(data, 1)
    assert [second.pos_min(1), second.pos_max(1)] == [first.pos_min(0), 25]
    assert [second.can_resume(1, p) for p in range(27)] == [first.can_resume(0, p) for p in range(27)]
    goes_on(first, 0, second, 1)


def test_a_smaller_window_cache_takes_what_its_windows_need():
    large, small = engine_of("window"), engine_of("window streams")
    put(large, 0, text(14))
    assert (large.pos_min(0), small.caches[1].n_cells) == (0, 8)
    for seq, data in ((0, large.get_state(0)), (None, large.get_state())):
        small.set_state(data, seq)
        assert (small.pos_min(0), small.pos_max(0)) == (11, 13)  # what position 14 sees
        assert small.memory_report().n_by_sequence == (14, 0, 0, 0)
    goes_on(large, 0, small, 0)


# -- pending updates
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["unified", "streams"])
def test_pending_shifts_and_copies_are_saved_as_carried_out(kind):
    saved, plain, other = (engine_of(kind) for _ in range(3))
    for engine in (saved, plain):
        put(engine, 0, text(10))
        engine.rm(0, 2, 5)
        engine.add(0, 5, -1, -3)
        engine.cp(0, 1)
        engine.add([0, 1], 3, -1, 2)
    other.set_state(saved.get_state(1), 0)
    assert saved.get_state(0) == other.get_state(0)
    goes_on(other, 0, plain, 1)
    goes_on(saved, 0, plain, 0)  # saving has changed nothing


def test_what_others_owe_does_not_strike_the_new_rows():
    engine, source = engine_of("streams"), engine_of("streams")
    put(source, 0, text(5))
    put(engine, 0, text(6, seed=1))
    put(engine, 2, text(4, seed=2))
    engine.add(2, 0, -1, 3)
    engine.cp(0, 1)
    engine.set_state(source.get_state(0), 1)
    plain = engine_of("streams")
    put(plain, 0, text(6, seed=1))
    put(plain, 2, text(4, seed=2))
    plain.add(2, 0, -1, 3)
    goes_on(source, 0, engine, 1)
    goes_on(plain, 0, engine, 0)
    goes_on(plain, 2, engine, 2)
    engine = engine_of("streams")
    engine.cp(0, 1)  # of nothing
    engine.set_state(source.get_state(0), 1)
    assert engine.get_state(1) == source.get_state(0)


def test_a_state_belongs_to_the_weights_not_to_how_they_lie():
    weights = list(random_weights(GROUPED).items())
    found = []
    for store in (Rows, Panels, Int8):
        decoder = Decoder(GROUPED, rngs=nnx.Rngs(0))
        fill_weights(dict(decoder_places(decoder, GROUPED)), weights, store)
        found.append(fingerprint(GROUPED, decoder, "float32")["model.weights"])
    assert found[0] == found[1] != found[2]
