"""The engine: one state, all or nothing; refusals, failed steps, sequences, compilations, sizes."""

import jax
import numpy as np
import pytest

from tests.ragged_rows import alone, close, logits_of
from tests.tiny import CONFIG, state, tiny_engine, tiny_model, unchanged
from ubjax import Batch, Engine, EngineConfig, count_compilations
from ubjax.status import DecodeError, InvalidBatchError, NoSlotError


def test_each_cell_holds_the_sequence_of_its_row():
    engine = tiny_engine(n_seq_max=2, kv_unified=True)
    logits_of(engine, [(0, 0), (2, 0), (0, 1), (2, 1)], seq_of=lambda s: s // 2)
    (cells,) = vars(engine)["_cells"]
    assert np.asarray(cells.seq)[0, :5, 0].tolist() == [1, 2, 1, 2, 0]
    assert np.asarray(cells.pos)[0, :5].tolist() == [0, 0, 1, 1, -1]


# -- refusals ----------------------------------------


def test_a_full_cache_says_what_is_free_and_needed_and_stays_as_it_was():
    engine = tiny_engine(n_ctx=16)
    engine.decode(engine.batch([1] * 15))
    before = state(engine)
    with pytest.raises(NoSlotError) as caught:
        engine.decode(engine.batch([2] * 4))
    assert str(caught.value) == (
        "ubatch 0 needs 4 cells of one stream, 1 is free: no slot; the cache holds 15 of 16 cells; "
        "the first 1 of its 4 tokens fits now; nothing was changed: rm frees cells, a larger n_ctx has more"
    )
    assert caught.value.result == 1
    assert unchanged(engine, before)
    engine.decode(engine.batch([2]))
    assert engine.pos_max(0) == 15


def test_a_later_ubatch_without_a_slot_undoes_the_earlier_ones():
    engine = tiny_engine(n_ctx=16, n_ubatch=4)
    engine.decode(engine.batch([1] * 9))
    before = state(engine)
    with pytest.raises(NoSlotError, match="ubatch 1 needs 4 cells of one stream, 3 are free"):
        engine.decode(engine.batch([2] * 8))
    assert unchanged(engine, before)


def test_streams_have_room_of_their_own_and_one_cache_is_shared():
    streams = tiny_engine(n_ctx=64, n_seq_max=4, n_ubatch=64)
    before = state(streams)
    with pytest.raises(NoSlotError, match="ubatch 0 needs 17 cells of one stream, 16 are free"):
        streams.decode(streams.batch([1] * 17))
    assert unchanged(streams, before)
    shared = tiny_engine(n_ctx=64, n_seq_max=4, n_ubatch=64, kv_unified=True)
    shared.decode(shared.batch([1] * 60))
    assert shared.pos_max(0) == 59


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"token": [1, 2], "pos": [2, 4]}, "token 1 jumps to position 4, position 3"),
        ({"token": [1, 99]}, r"token 1 has id 99, an id in \[0, 61\)"),
        ({"token": [1], "pos": [5]}, "sequence 0 starts at position 5, position 2 is needed"),
        ({"token": [1] * 65}, "the batch holds 65 tokens, n_batch allows 64"),
    ],
)
def test_invalid_batches_change_nothing(arrays, words):
    engine = tiny_engine()
    engine.decode(engine.batch([3, 4]))
    before = state(engine)
    with pytest.raises(InvalidBatchError, match=words) as caught:
        engine.decode(engine.batch(**arrays))
    assert caught.value.result == -1
    assert unchanged(engine, before)


def test_an_empty_batch_is_refused():
    engine = tiny_engine()
    with pytest.raises(InvalidBatchError, match="the batch holds 0 tokens, at least 1 is needed"):
        engine.decode(Batch.from_arrays([], config=engine.batch_config, capacity=4))


def test_only_the_last_of_twelve_tokens_is_an_output():
    engine = tiny_engine()
    outputs = engine.decode(engine.batch(list(range(12))))
    assert np.array_equal(outputs.logits(11), outputs.logits(-1))
    assert outputs.logits(-1).shape == (CONFIG.n_vocab,)
    for i, fault in ((0, "token 0 is no output"), (12, "token 12 is not in the batch of 12 tokens")):
        with pytest.raises(ValueError, match=rf"{fault}.*outputs are token 11"):
            outputs.logits(i)


def test_no_outputs_at_all():
    engine = tiny_engine()
    assert len(engine.decode(engine.batch([1, 2], output=[False, False]))) == 0
    assert engine.pos_max(0) == 1


# -- a step that fails ----------------------------------------


class FailsAt:
    """A step that raises on its n-th call, having consumed the K/V buffers or not."""

    def __init__(self, step, n, *, consume):
        self.step, self.left, self.consume = step, n, consume

    def __call__(self, kv, staged):
        self.left -= 1
        if self.left >= 0:
            return self.step(kv, staged)
        if self.consume:
            jax.tree.map(lambda x: x.delete(), kv)
        raise RuntimeError("out of memory")

    def new_kv(self, *args):
        return self.step.new_kv(*args)


def broken(engine: Engine, n: int, *, consume: bool):
    inside = vars(engine)
    whole = inside["_step"]
    inside["_step"] = FailsAt(whole, n, consume=consume)
    return lambda: inside.update(_step=whole)


def test_a_failed_step_keeps_the_earlier_ubatches():
    engine = tiny_engine(n_ubatch=4)
    repair = broken(engine, 1, consume=False)
    with pytest.raises(DecodeError, match="the step of a ubatch failed") as caught:
        logits_of(engine, [(0, p) for p in range(8)])
    assert caught.value.result == 2
    assert (engine.pos_min(0), engine.pos_max(0)) == (0, 3)
    repair()
    found = logits_of(engine, [(0, p) for p in range(4, 9)])
    assert close(found)


def test_lost_buffers_clear_the_cache_and_the_next_decode_works():
    engine = tiny_engine(n_ubatch=4)
    repair = broken(engine, 1, consume=True)
    with pytest.raises(DecodeError, match="the cache was cleared") as caught:
        logits_of(engine, [(0, p) for p in range(8)])
    assert caught.value.result == -3
    assert engine.pos_max(0) == -1
    repair()
    found = logits_of(engine, [(0, p) for p in range(9)])
    assert close(found)


# -- sequences ----------------------------------------


def test_a_copied_prefix_continues_as_its_own():
    engine = tiny_engine(n_seq_max=3, kv_unified=True)
    logits_of(engine, [(0, p) for p in range(4)])
    engine.cp(0, 2)
    found = logits_of(engine, [(0, p) for p in range(4, 9)], seq_of=lambda _: 2)
    assert close(found)
    assert (engine.pos_max(0), engine.pos_max(2)) == (3, 8)
    engine.keep(2)
    assert (engine.pos_max(0), engine.pos_min(2), engine.pos_max(2)) == (-1, 0, 8)


def test_removed_positions_are_decoded_again():
    engine = tiny_engine()
    logits_of(engine, [(0, p) for p in range(9)])
    engine.rm(0, 5)
    assert engine.pos_max(0) == 4
    found = logits_of(engine, [(0, p) for p in range(5, 9)])
    assert close(found)
    engine.clear()
    assert engine.pos_max(0) == -1


def test_what_can_not_be_done_is_refused_and_changes_nothing():
    engine = tiny_engine(n_seq_max=2)
    engine.decode(engine.batch([1, 2]))
    before = state(engine)
    for call, words in (
        (
            lambda: engine.cp(0, 1, 1),
            r"positions \[1, -1\) of sequence 0 can't be copied to sequence 1: each has a stream",
        ),
        (
            lambda: engine.add(0, 0, -1, 2**30),
            "can't be moved by 1073741824: positions up to 1073741824 are possible",
        ),
        (lambda: engine.div(0, 0, -1, 0), "can't be divided by 0: a divisor of at least 1 is needed"),
        (lambda: engine.rm(2), r"sequence 2 is unknown: a sequence in \[0, 2\)"),
        (lambda: engine.add([0, 2], 0, -1, 1), "sequence 2 is unknown"),
        (lambda: engine.pos_max(-1), "sequence -1 is unknown"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert unchanged(engine, before)


# -- compilations ----------------------------------------


@pytest.mark.parametrize("kv_unified", [True, False])
def test_another_sequence_takes_the_same_programs(kv_unified):
    engine = tiny_engine(n_seq_max=2, kv_unified=kv_unified)
    found = [logits_of(engine, [(s, 0)])[s, 0] for s in (0,)]
    with count_compilations() as count:
        found.append(logits_of(engine, [(1, 0)])[1, 0])
    assert count.total == 0, str(count)
    assert not np.allclose(found[0], found[1])


def test_engines_of_one_shape_share_their_programs():
    logits_of(tiny_engine(n_seq_max=2, kv_unified=True), [(0, 0), (0, 1)])
    with count_compilations() as count:
        logits_of(tiny_engine(n_seq_max=2, kv_unified=True), [(2, 0), (2, 1)], seq_of=lambda _: 1)
    assert count.total == 0, str(count)


def test_sizes_follow_llama_cpp():
    streams = Engine(tiny_model(), config=EngineConfig(n_ctx=1000, n_seq_max=3, n_batch=4096))
    assert (streams.memory.n_cells, streams.memory.n_streams) == (512, 3)
    assert streams.batch_config.n_batch == 1536
    shared = Engine(tiny_model(), config=EngineConfig(n_ctx=1000, n_seq_max=3, kv_unified=True, n_batch=100))
    assert (shared.memory.n_cells, shared.memory.n_streams, shared.n_ubatch) == (1024, 1, 100)
    assert Engine(tiny_model()).memory.n_cells == 256  # the training context, rounded up


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"n_ubatch": 0}, "n_ubatch is 0, at least 1 is needed"),
        ({"n_batch": -1}, "n_batch is -1"),
        ({"n_ctx": 0}, "n_ctx is 0, at least 1"),
        ({"n_seq_max": 257}, "n_seq_max is 257, at most 256"),
        ({"kv_dtype": "int3"}, "kv_dtype is 'int3', one of float32, bfloat16, float16 is needed"),
    ],
)
def test_impossible_sizes(sizes, words):
    with pytest.raises(ValueError, match=words):
        EngineConfig(**sizes)


def test_usage_counts_rows_and_padding():
    engine = tiny_engine(n_ubatch=4)
    engine.decode(engine.batch([1] * 7))
    usage = engine.usage
    assert (usage.decodes, usage.tokens, usage.rows, usage.outputs, usage.ubatches) == (1, 7, 8, 1, 2)
    assert usage.padded_share == 1 / 8
    assert usage.buckets == {"1x4|kv 16|out 4": 2}


def test_half_precision_caches_are_close():
    for dtype in ("bfloat16", "float16"):
        found = logits_of(tiny_engine(kv_dtype=dtype), [(0, p) for p in range(9)])
        assert all(np.max(np.abs(logits - alone()[row])) < 0.2 for row, logits in found.items())
