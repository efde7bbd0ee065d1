"""Hands that slip: every odd argument is one ValueError before anything changes, or means what it says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ragged_rows import close, logits_of
from tests.tiny import CONFIG, state, tiny_engine, unchanged
from ubjax import Batch, BatchBuilder, BatchConfig, EngineConfig, count_compilations, load_model
from ubjax.status import DecodeError

TEXT = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=4)
ROWS = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=4, n_embd=2)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"token": 5}, "token is 5, an array or a list is needed"),
        ({"token": ["a"]}, "token has dtype <U1, integers are needed"),
        ({"token": [[1], [1, 2]]}, "token can't be read as integers"),
        ({"token": [1, 2], "seq_id": 5}, "seq_id is 5, an array or a list is needed"),
        ({"token": [1, 2], "seq_id": [[0], 0]}, "seq_id entry 1 is 0, an array or a list"),
        ({"token": [1, 2], "seq_id": [0.0, 0.0]}, "seq_id has dtype float64"),
        ({"token": [1, 2], "seq_id": [None, None]}, "seq_id has dtype object"),
        ({"token": [1, 2], "output": ["False", ""]}, "flags .* are needed"),
        ({"token": [1, 2], "output": [0.5, 1]}, "flags .* are needed"),
        ({"token": [1, 2], "output": [-1, 1]}, "flags .* are needed"),
        ({"token": [1, 2], "row_type": [255, 1]}, "row_type of token 0 is 255"),
        ({"token": [1, 2], "capacity": 4.5}, "the capacity is 4.5, an integer is needed"),
        ({"embd": 5}, "embd is 5, an array or a list is needed"),
        ({"embd": [[1.0, np.nan]]}, r"the embedding rows hold nan at \[0, 1\], finite"),
        ({"embd": [[1e300, 0.0]]}, r"the embedding rows hold inf at \[0, 0\], finite"),
        ({"embd": [[1j, 0]]}, "the embedding rows have dtype complex128, real numbers are needed"),
        ({"embd": [[None, None]]}, "the embedding rows have dtype object"),
    ],
)
def test_odd_arrays(arrays, words):
    with pytest.raises(ValueError, match=words):
        Batch.from_arrays(**arrays, config=ROWS)


def test_arrays_of_other_makes_mean_the_same():
    plain = Batch.from_arrays([1, 2, 3], seq_id=[1, 0, 1], output=[True, False, True], config=TEXT)
    for make in (jnp.asarray, np.asarray, tuple):
        other = Batch.from_arrays(
            make([1, 2, 3]), seq_id=make([1, 0, 1]), output=make([1, 0, 1]), config=TEXT
        )
        assert all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True)
        )
    strided = Batch.from_arrays(
        np.arange(6, dtype=np.int32)[1:4], seq_id=np.array([9, 1, 0, 1])[1:], config=TEXT
    )
    assert np.array_equal(strided.seq, plain.seq) and strided.token.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ({"seq_id": 2**40}, rf"token 0 belongs to sequence|the sequence of token 0 is {2**40}, a 32-bit"),
        ({"seq_id": 0.5}, "the sequence of token 0 is 0.5, an integer"),
        ({"seq_id": 0, "id": 2**40}, "the id of token 0"),
        ({"seq_id": 0, "id": "x"}, "the id of token 0 is 'x', an integer is needed"),
        ({"seq_id": 0, "id": True}, "the id of token 0 is True, an integer is needed"),
        ({"seq_id": 0, "id": 1, "pos": "x"}, "the position of token 0"),
        ({"seq_id": 0, "embd": object()}, "the embedding's numbers of token 0"),
        ({"seq_id": 0, "embd": [np.inf, 0]}, "the embedding's numbers of token 0 hold inf"),
    ],
)
def test_a_refused_token_is_not_kept(token, words):
    builder = BatchBuilder(ROWS)
    with pytest.raises(ValueError, match=words):
        builder.add_token(**token)
    assert len(builder) == 0
    builder.add_token(0, id=1)
    assert builder.build(1).token.tolist() == [1]


def swapped(batch, **leaves):
    """The batch with other leaves, past the checks of its constructor."""
    names = [f.name for f in dataclasses.fields(batch)]
    return jax.tree.unflatten(jax.tree.structure(batch), [leaves.get(n, getattr(batch, n)) for n in names])


def test_a_batch_from_any_hand_is_checked_again():
    engine = tiny_engine(n_seq_max=2)
    batch = engine.batch([1, 2, 3, 4], seq_id=[0, 1, 0, 1], output=[1] * 4)
    before = state(engine)
    for odd, words in (
        (swapped(batch, output=np.ones(4, np.int32)), "output has dtype int32 and 1 axes, bool"),
        (swapped(batch, token=batch.token.astype(np.int64)), "the batch's token has dtype int64"),
        (swapped(batch, pos=batch.pos[:, :3]), "the batch's pos has 3 rows, its token has 4"),
        (swapped(batch, pos=batch.pos[0]), "the batch's pos has dtype int32 and 1 axes, int32 and 2"),
        (swapped(batch, n_tokens=np.asarray(9, np.int32)), r"n_tokens is 9, a number in \[0, 4\]"),
        (
            swapped(batch, embd=np.full((4, CONFIG.n_embd), np.nan, np.float32)),
            "embd holds numbers that are not finite",
        ),
        (None, "a Batch is needed to decode, found NoneType"),
        ([1, 2], "a Batch is needed to decode, found list"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.decode(odd)
    assert unchanged(engine, before)
    want = engine.decode(batch).logits(2)
    engine.clear()
    shuffled = swapped(batch, order=np.arange(4, dtype=np.int32))
    assert np.allclose(engine.decode(shuffled).logits(2), want, atol=1e-6)


def test_sequence_operations_take_whole_numbers_only():
    engine = tiny_engine(n_seq_max=2, kv_unified=True)
    engine.decode(engine.batch([1, 2]))
    before = state(engine)
    for call, words in (
        (lambda: engine.rm(0.5), "the sequence is 0.5, an integer is needed"),
        (lambda: engine.rm(True), "the sequence is True, an integer is needed"),
        (lambda: engine.rm(0, 0.5, 1), "p0 is 0.5, an integer is needed"),
        (lambda: engine.rm(0, 0, 2**40), rf"p1 is {2**40}, a 32-bit integer is needed"),
        (lambda: engine.cp(0, 1, None, 3), "p0 is None, an integer is needed"),
        (lambda: engine.keep("0"), "the sequence is '0', an integer is needed"),
        (lambda: engine.pos_min(0.5), "the sequence is 0.5"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert unchanged(engine, before)


def test_every_kind_of_integer_takes_the_same_program():
    engine = tiny_engine(n_seq_max=2, kv_unified=True)
    engine.decode(engine.batch([1, 2, 3]))
    engine.rm(0, 2, -1)
    engine.cp(0, 1, 0, 1)
    two = jnp.int32(2)
    with count_compilations() as count:
        engine.rm(np.int64(0), np.int32(1), two)
        engine.cp(np.uint8(0), np.int64(1), np.int16(0), 1)
    assert count.total == 0, str(count)


@pytest.mark.parametrize("i", [None, "0", 0.5, False, [0]])
def test_outputs_take_whole_numbers_only(i):
    engine = tiny_engine()
    outputs = engine.decode(engine.batch([1]))
    with pytest.raises(ValueError, match=r"the index is .*, an integer is needed"):
        outputs.logits(i)
    assert np.array_equal(outputs.logits(jnp.int32(0)), outputs.logits(np.int64(0)))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"n_ctx": 64.5}, "n_ctx is 64.5, an integer is needed"),
        ({"n_ctx": 10**15}, "n_ctx is 1000000000000000, a 32-bit integer"),
        ({"n_ctx": 2**30}, "n_ctx is 1073741824, at most 16777216 is possible"),
        ({"n_ubatch": "4"}, "n_ubatch is '4', an integer is needed"),
        ({"n_batch": None}, "n_batch is None, an integer is needed"),
        ({"kv_unified": "no"}, "kv_unified is 'no', True or False is needed"),
    ],
)
def test_odd_sizes(sizes, words):
    with pytest.raises(ValueError, match=words):
        EngineConfig(**sizes)


def test_a_context_smaller_than_its_sequences_gives_each_one_unit():
    assert tiny_engine(n_ctx=64, n_seq_max=100).memory.n_cells == 16


@pytest.mark.parametrize("dtype", ["int4", "float64", 5])
def test_weights_are_stored_in_known_ways_only(dtype):
    known = "float32, bfloat16, float16, int8, q8_0, stored"
    with pytest.raises(ValueError, match=f"dtype is .*, one of {known} is needed"):
        load_model("smollm2", dtype=dtype)


class Interrupted:
    """A step that is interrupted once it has taken over K/V."""

    def __init__(self, step):
        self.step, self.device = step, step.device

    def __call__(self, kv, staged):
        jax.tree.map(lambda x: x.delete(), kv)
        raise KeyboardInterrupt

    def new_kv(self, *args):
        return self.step.new_kv(*args)


def test_an_interrupt_inside_a_step_leaves_an_empty_cache_that_works():
    engine = tiny_engine()
    logits_of(engine, [(0, 0)])
    inside = vars(engine)
    whole = inside["_step"]
    inside["_step"] = Interrupted(whole)
    with pytest.raises(KeyboardInterrupt):
        logits_of(engine, [(0, 1)])
    assert engine.pos_max(0) == -1
    inside["_step"] = whole
    assert close(logits_of(engine, [(0, p) for p in range(9)]))


def test_a_huge_number_is_named_as_it_is():
    with pytest.raises(DecodeError, match="token 0 belongs to sequence 2147483647"):
        Batch.from_arrays([1], seq_id=[2**31 - 1], config=TEXT)
