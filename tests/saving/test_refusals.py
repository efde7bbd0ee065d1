"""States that can't be saved or loaded: one sentence, and nothing has changed."""

import jax
import numpy as np
import pytest

from tests.saving.helpers import delete, engine_of, goes_on, joined, model, parts, put, text
from tests.tiny import CONFIG, state, unchanged
from ubjax import Engine, EngineConfig, NoSlotError
from ubjax.saving import saving
from ubjax.status import DecodeError


def test_a_state_larger_than_the_cache_is_refused():
    engine = engine_of("unified")
    put(engine, 0, text(5))
    before = state(engine)
    for seq, data in ((0, engine.get_state(0)), (None, engine.get_state())):
        metadata, tensors = parts(data)
        for name, axis in (("pos", 1), ("seq", 0), ("k", 2), ("v", 2)):
            if f"full.{name}" in tensors:
                tensors[f"full.{name}"] = np.repeat(tensors[f"full.{name}"], 7, axis)
        with pytest.raises(NoSlotError, match=r"needs 35 cells .* 32 of its 32 are free") as caught:
            engine.set_state(joined(metadata, tensors), seq)
        assert caught.value.never and str(caught.value).endswith("changed: a larger n_ctx is needed")
    assert unchanged(engine, before)


class Fails:
    """A step whose update program fails."""

    def __init__(self, step):
        self.step = step

    def __getattr__(self, name):
        return getattr(self.step, name)

    def update(self, *_):
        raise RuntimeError("out of memory")


def test_a_save_that_can_not_carry_out_updates_leaves_all():
    engine = engine_of("unified")
    put(engine, 0, [1, 2, 3])
    engine.add(0, 0, -1, 2)
    before, step = state(engine), vars(engine)["_step"]
    engine._step = Fails(step)
    with pytest.raises(DecodeError):
        engine.get_state(0)
    assert unchanged(engine, before)
    engine._step = step
    engine.get_state(0)


@pytest.mark.parametrize("lost", [False, True])
def test_rows_that_can_not_be_written(lost, monkeypatch):
    engine, source = engine_of("unified"), engine_of("unified")
    put(engine, 1, [4, 5, 6])
    put(source, 0, [1, 2, 3])

    def fail(kv, *_):
        if lost:
            delete(kv)
        raise RuntimeError("out of memory")

    before = state(engine)
    monkeypatch.setattr(saving, "store_rows", fail)
    with pytest.raises(DecodeError) as caught:
        engine.set_state(source.get_state(0), 0)
    assert caught.value.result == (-3 if lost else 2)
    monkeypatch.undo()
    assert engine.pos_max(1) == -1 if lost else unchanged(engine, before)
    engine.set_state(source.get_state(0), 0)
    goes_on(source, 0, engine, 0)


def test_half_precision_is_kept_as_it_is():
    full, half = engine_of("unified"), engine_of("unified", kv_dtype="bfloat16")
    put(full, 0, text(9))
    before = state(full)
    metadata, tensors = parts(full.get_state(0))
    metadata["model.kv_dtype"] = "bfloat16"
    tensors |= {name: tensors[name].astype(jax.numpy.bfloat16) for name in ("full.k", "full.v")}
    data = joined(metadata, tensors)
    half.set_state(data, 0)
    assert half.get_state(0) == data
    with pytest.raises(ValueError, match=r"its model\.kv_dtype is 'bfloat16', 'float32' is needed"):
        full.set_state(data, 0)
    assert unchanged(full, before)


def test_another_model_is_named_by_what_differs():
    engine = engine_of("unified")
    put(engine, 0, [1, 2])
    before = state(engine)
    sizes = EngineConfig(n_ctx=32)
    for other, words in (
        (
            Engine(model(CONFIG, seed=1), None, sizes),
            r"its model.weights is '.*', '.*' is needed \(other weights, or the same stored as another dtype\)",
        ),
        (engine_of("window"), "its model.n_swa is '4', '0' is needed"),
    ):
        with pytest.raises(ValueError, match=f"the state can't be loaded: {words}; nothing was changed"):
            engine.set_state(other.get_state(), None)
    assert unchanged(engine, before)


def test_odd_arguments():
    engine = engine_of("unified")
    put(engine, 0, [1, 2])
    before, data = state(engine), engine.get_state(0)
    for call, words in (
        (lambda: engine.get_state(4), "sequence 4 is unknown"),
        (lambda: engine.get_state(0.5), "the sequence is 0.5, an integer is needed"),
        (lambda: engine.get_state(0, [1, 61]), r"token 1 has id 61, an id in \[0, 61\) is needed"),
        (lambda: engine.get_state(0, [0.5]), "tokens has dtype float64, integers are needed"),
        (lambda: engine.get_state(0, 5), "tokens is 5, an array or a list is needed"),
        (lambda: engine.get_state(0, [[1, 2]]), r"tokens has shape \[1, 2\], \[1\] is needed"),
        (lambda: engine.set_state(data, -1), "sequence -1 is unknown"),
        (lambda: engine.set_state("text", 0), "the state is str, bytes are needed"),
        (lambda: engine.set_state(data), r"it holds 'one sequence', 'all sequences' is needed \(a seq_id"),
        (lambda: engine.set_state(engine.get_state(), 0), r"it holds 'all sequences', .* \(no seq_id"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert unchanged(engine, before)
    assert engine.set_state(memoryview(data), np.int64(1)) == []
    narrow = engine_of("unified", n_seq_max=1)
    put(engine, 2, [1, 2])
    with pytest.raises(ValueError, match=r"it holds sequence 2, sequences in \[0, 1\) are known"):
        narrow.set_state(engine.get_state())
