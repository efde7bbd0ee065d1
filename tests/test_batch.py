"""The flat form and the builder end in the same arrays; every refusal is one sentence that names the token."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubjax import Batch, BatchBuilder, BatchConfig
from ubjax.batch import ROW_EMBD, ROW_ID, ROW_STATE, mark_all_outputs
from ubjax.status import InvalidBatchError

TEXT = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=4)
IMAGE = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=4, n_pos=4, n_embd=2, n_embd_state=3, allow_mixed=True)


def equal(a: Batch, b: Batch) -> bool:
    return all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_padding_contract_and_order():
    batch = Batch.from_arrays([7, 8, 9], seq_id=[1, 0, 1], pos=[4, 0, 5], config=TEXT, capacity=5)
    assert batch.token.tolist() == [7, 8, 9, 0, 0]
    assert batch.type.tolist() == [ROW_ID] * 3 + [0, 0]
    assert batch.pos.tolist() == [[4, 0, 5, 0, 0]]
    assert batch.seq.tolist() == [[2], [1], [2], [0], [0]]
    assert batch.output.tolist() == [False, False, True, False, False]
    assert batch.order.tolist() == [1, 0, 2, 3, 4]
    assert batch.embd.shape == (5, 0) and batch.state.shape == (5, 0)
    assert int(batch.n_tokens) == 3 and batch.capacity == 5


def test_defaults_of_the_flat_form():
    batch = Batch.from_arrays([1, 2, 3], config=TEXT)
    assert batch.seq.tolist() == [[1]] * 3
    assert batch.pos.tolist() == [[0, 1, 2]]
    assert batch.output.tolist() == [False, False, True]


def test_positions_continue_each_sequence_by_its_first_id():
    batch = Batch.from_arrays(
        [1, 2, 3, 4, 5], seq_id=[[2], {3, 0}, [2], [0], [1]], next_pos=[10, 0, 5, 90], config=TEXT
    )
    assert batch.pos.tolist() == [[5, 10, 6, 11, 0]]
    assert batch.seq.tolist() == [[4], [9], [4], [1], [2]]


def test_words_beyond_32_sequences():
    config = BatchConfig(n_vocab=10, n_batch=4, n_seq_max=70)
    batch = Batch.from_arrays([1, 2, 3], seq_id=[[0, 31, 32], [69], [64]], config=config)
    assert batch.seq.tolist() == [[0x80000001, 1, 0], [0, 0, 32], [0, 0, 1]]
    assert batch.order.tolist() == [0, 2, 1]


def test_section_major_positions():
    embd = np.arange(8, dtype=np.float32).reshape(4, 2)
    pos = [[3, 4, 4, 5], [0, 7, 8, 0], [0, 1, 2, 0], [0, 9, 9, 0]]
    types = [ROW_ID, ROW_EMBD, ROW_EMBD, ROW_ID]
    batch = Batch.from_arrays([1, 50, 51, 2], embd=embd, row_type=types, pos=pos, config=IMAGE)
    assert batch.pos.tolist() == [[3, 4, 4, 5], [3, 7, 8, 5], [3, 1, 2, 5], [0, 9, 9, 0]]
    assert batch.token.tolist() == [1, 0, 0, 2]


def test_state_rows_and_types():
    state = np.ones((2, 3), np.float32)
    batch = Batch.from_arrays([1, 2], state=state, config=IMAGE, capacity=3)
    assert batch.type.tolist() == [ROW_ID | ROW_STATE] * 2 + [0]
    assert batch.state.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"token": [1, 2], "seq_id": [0]}, "seq_id has 1 entry, 2 are needed"),
        ({"token": [1, 2], "seq_id": [0, 4]}, r"token 1 belongs to sequence 4, a sequence in \[0, 4\)"),
        ({"token": [1, 2], "seq_id": [[0], [0, -1]]}, "token 1 belongs to sequence -1"),
        ({"token": [1, 2], "seq_id": [[0], []]}, "token 1 belongs to 0 sequences"),
        ({"token": [1.5, 2]}, "token has dtype float64, integers are needed"),
        ({"token": [1, 2**31]}, "token entry 1 is 2147483648"),
        ({"token": [1], "pos": [[0]] * 3}, r"pos has shape \[3, 1\]"),
        ({"token": [1, 2], "output": [True]}, r"output has shape \[1\], \[2\] is needed"),
        ({"token": [1, 2], "capacity": 1}, "the batch holds 2 tokens, its capacity is 1"),
        ({"token": [], "capacity": 0}, "its capacity is 0: a capacity of at least 1"),
        ({"token": [1], "embd": [[1.0]]}, r"embedding rows have shape \[1, 1\], \[1, 0\] is needed"),
        ({"token": [1], "next_pos": [0]}, r"next_pos has shape \[1\], \[4\] is needed"),
        ({}, "neither token ids nor embedding rows"),
    ],
)
def test_refusals_of_the_flat_form(arrays, words):
    with pytest.raises(ValueError, match=words):
        Batch.from_arrays(**arrays, config=TEXT)


def test_embedding_rows_need_all_positions():
    with pytest.raises(ValueError, match="token 0 is an embedding row with 1 position, 4 are needed"):
        Batch.from_arrays(embd=np.zeros((1, 2)), pos=[0], config=IMAGE)


def test_with_capacity_pads_and_cuts():
    batch = Batch.from_arrays([1, 2, 3], seq_id=[1, 0, 1], config=TEXT)
    grown = batch.with_capacity(6)
    assert grown.order.tolist() == [1, 0, 2, 3, 4, 5] and grown.seq.tolist()[3:] == [[0]] * 3
    assert equal(grown.with_capacity(3), batch)
    with pytest.raises(ValueError, match="holds 3 tokens, a capacity of 2 is too small"):
        batch.with_capacity(2)


def test_mark_all_outputs_warns_once_and_names_the_first():
    batch = Batch.from_arrays([1, 2, 3], config=TEXT, capacity=4)
    with pytest.warns(UserWarning, match="2 unmarked tokens were marked, the first is token 0"):
        marked = mark_all_outputs(batch)
    assert marked.output.tolist() == [True, True, True, False]
    assert mark_all_outputs(marked).output.tolist() == [True, True, True, False]


# -- the builder
# --------------------------------------------------------------------------------------------------------

tokens = st.lists(
    st.tuples(st.integers(0, 99), st.sets(st.integers(0, 3), min_size=1), st.integers(0, 50), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(tokens)
def test_builder_and_flat_form_end_in_the_same_arrays(rows):
    builder = BatchBuilder(TEXT, capacity=12)
    for i, (token, seqs, pos, output) in enumerate(rows):
        ordered = sorted(seqs, reverse=True)
        assert builder.add_token(ordered[0], id=token, pos=pos, output=output) == i
        for s in ordered:
            builder.add_token_seq(i, s)
    ids, seqs, pos, output = map(list, zip(*rows, strict=True))
    flat = Batch.from_arrays(ids, seq_id=seqs, pos=pos, output=output, config=TEXT, capacity=12)
    assert equal(builder.build(), flat)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_one_id_per_row_equals_sets_of_one(seqs):
    one = Batch.from_arrays(np.arange(len(seqs)), seq_id=np.asarray(seqs, np.int32), config=TEXT)
    sets = Batch.from_arrays(np.arange(len(seqs)), seq_id=[[s] for s in seqs], config=TEXT)
    assert equal(one, sets)


def test_capacity_8_and_a_ninth_token():
    builder = BatchBuilder(TEXT, capacity=8)
    for i in range(8):
        builder.add_token(0, id=i)
    with pytest.raises(ValueError, match="token 8 does not fit: the batch is full, its capacity is 8 tokens"):
        builder.add_token(0, id=8)
    assert len(builder) == 8


@pytest.mark.parametrize("seq_id", [4, -1])
def test_sequences_outside_the_range(seq_id):
    builder = BatchBuilder(TEXT)
    with pytest.raises(
        InvalidBatchError, match=rf"token 0 belongs to sequence {seq_id}, a sequence in \[0, 4\)"
    ):
        builder.add_token(seq_id)
    builder.add_token(0)
    with pytest.raises(InvalidBatchError, match=f"token 0 belongs to sequence {seq_id}"):
        builder.add_token_seq(0, seq_id)


def test_embedding_refusals():
    builder = BatchBuilder(IMAGE, widths=(2, 5))
    builder.add_token(0, embd=[1.0, 2.0])
    with pytest.raises(ValueError, match="token 0 has an embedding already"):
        builder.set_token_embd(0, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"token 1 was given an embedding of shape \[5\], \[2\] is needed"):
        builder.add_token(0, embd=[0.0] * 5)
    assert len(builder) == 1
    with pytest.raises(ValueError, match="takes no such rows"):
        BatchBuilder(TEXT).add_token(0, embd=[1.0])
    with pytest.raises(ValueError, match=r"token 0 was given a hidden state of shape \[2\], \[3\] is needed"):
        builder.set_token_state(0, [1.0, 2.0])


def test_the_first_embedding_fixes_the_width():
    builder = BatchBuilder(IMAGE, widths=(2, 5))
    builder.add_token(0, embd=[1.0] * 5, pos=[0, 0, 0, 0])
    assert builder.build(capacity=1).embd.tolist() == [[1.0] * 5]


def test_ids_positions_and_indices():
    builder = BatchBuilder(IMAGE)
    with pytest.raises(InvalidBatchError, match=r"token 0 has id 100, an id in \[0, 100\) is needed"):
        builder.add_token(0, id=100)
    builder.add_token(0, id=3, pos=9)
    builder.add_token(1)
    with pytest.raises(ValueError, match="token 0 was given 4 positions, 1 is needed"):
        builder.set_token_pos(0, [1, 2, 3, 4])
    with pytest.raises(ValueError, match="token 1 was given 1 position, 4 are needed"):
        builder.set_token_pos(1, 5)
    with pytest.raises(ValueError, match=r"token 2 is not in the batch, an index in \[0, 2\)"):
        builder.set_token_output(2, True)
    with pytest.raises(ValueError, match="token 1 has no position although others have"):
        builder.build()
    builder.set_token_pos(1, [1, 2, 3, 4])
    assert builder.build(capacity=2).pos.tolist() == [[9, 1], [9, 2], [9, 3], [0, 4]]


def test_builder_without_tokens_or_with_some_states():
    builder = BatchBuilder(IMAGE)
    with pytest.raises(InvalidBatchError, match="the batch holds 0 tokens, at least 1 is needed"):
        builder.build()
    builder.add_token(0, id=1, state=[1, 2, 3])
    builder.add_token(0, id=2)
    with pytest.raises(InvalidBatchError, match="token 1 differs from the others: 1 row with a hidden state"):
        builder.build()


def test_a_batch_is_a_frozen_pytree_with_named_leaves():
    batch = Batch.from_arrays([1], config=TEXT)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    assert names == [f".{f.name}" for f in dataclasses.fields(Batch)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.token = batch.pos
