"""The decoder against plain numpy, and the laws of padding: what is not asked for changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.helpers import (
    FULL,
    GROUPED,
    SINGLE_KEY_HEAD,
    WINDOWED,
    Cache,
    call,
    decoder,
    padding,
    random_weights,
    rows_of,
)
from tests.models.oracle import Reference
from ubjax.buckets import Bucket
from ubjax.models.decoder import Decoder

A, B = [5, 1, 30, 7, 7, 2], [36, 0, 4]
CONFIGS = {"grouped": GROUPED, "full": FULL, "single": SINGLE_KEY_HEAD, "windowed": WINDOWED}


def expected(config, *prompts):
    reference = Reference(config, random_weights(config))
    return np.concatenate([reference.logits(tokens) for tokens in prompts])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_one_ubatch_and_token_by_token_equal_numpy(config):
    want = expected(config, A)
    assert np.ptp(want) > 2  # logits that differ, not a constant
    np.testing.assert_allclose(Cache(decoder(config)).run([rows_of(A)]), want, atol=1e-5)
    cache = Cache(decoder(config))
    steps = [cache.run([[row]]) for row in rows_of(A)]
    np.testing.assert_allclose(np.concatenate(steps), want, atol=1e-5)


def test_positions_need_not_start_at_zero():
    config = GROUPED
    reference = Reference(config, random_weights(config))
    logits = Cache(decoder(config)).run([rows_of(A, start=40)])
    np.testing.assert_allclose(logits, reference.logits(A, range(40, 46)), atol=1e-5)


def test_bfloat16_weights_and_cells_come_near():
    config = GROUPED
    near = Cache(decoder(config, dtype=jnp.bfloat16), dtype=jnp.bfloat16).run([rows_of(A)])
    assert near.dtype == np.float32
    difference = np.abs(near - expected(config, A)).max()
    assert 1e-4 < difference < 0.15


def test_interleaved_sequences_in_scattered_cells():
    slots_a, slots_b = [14, 3, 9, 0, 12, 7], [1, 15, 8]
    a = [(t, p, 0, s) for p, (t, s) in enumerate(zip(A, slots_a, strict=True))]
    b = [(t, p, 5, s) for p, (t, s) in enumerate(zip(B, slots_b, strict=True))]
    mixed = [a[0], b[0], a[1], a[2], b[1], a[3], a[4], b[2], a[5]]
    logits = Cache(decoder(GROUPED)).run([mixed])
    by_row = dict(zip([(seq, pos) for _, pos, seq, _ in mixed], logits, strict=True))
    found = np.stack([by_row[0, p] for p in range(6)] + [by_row[5, p] for p in range(3)])
    np.testing.assert_allclose(found, expected(GROUPED, A, B), atol=1e-5)


BUCKETS = [
    (GROUPED, {"length": 8}),
    (SINGLE_KEY_HEAD, {"n_outputs": 13}),
    (SINGLE_KEY_HEAD, {"length": 7, "n_outputs": 16, "n_cells": 32}),
    (FULL, {"n_cells": 6}),
]


@pytest.mark.parametrize(("config", "bucket"), BUCKETS, ids=[str(bucket) for _, bucket in BUCKETS])
def test_padding_changes_nothing(config, bucket):
    bucket = dict(bucket)
    cache = Cache(decoder(config), n_cells=bucket.pop("n_cells", 16))
    logits = np.concatenate([cache.run([rows_of(A[:4])], **bucket), cache.run([rows_of(A[4:], 0, 4, 4)])])
    np.testing.assert_allclose(logits, expected(config, A), atol=1e-5)


STREAMS = [
    (GROUPED, {"n_streams": 2}),
    (SINGLE_KEY_HEAD, {"n_streams": 4, "first_stream": 1}),
    (FULL, {"n_streams": 4, "length": 8, "n_blocks": 4}),
    (SINGLE_KEY_HEAD, {"n_streams": 4, "first_stream": 1, "lead": 1, "n_blocks": 3, "n_outputs": 12}),
]


@pytest.mark.parametrize(("config", "bucket"), STREAMS, ids=[str(bucket) for _, bucket in STREAMS])
def test_streams_equal_one_cache(config, bucket):
    bucket = dict(bucket)
    cache = Cache(decoder(config), n_streams=bucket.pop("n_streams"))
    blocks = [rows_of(A[:2], seq=0), rows_of(B[:2], seq=1)]
    first = cache.run(blocks, **bucket)
    second = cache.run([rows_of(A[2:], 0, 2, 2), rows_of(B[2:], 1, 2, 2)], **bucket)
    found = np.concatenate([first[:2], second[:4], first[2:], second[4:]])
    np.testing.assert_allclose(found, expected(config, A, B), atol=1e-5)


@pytest.mark.parametrize("n_streams", [1, 3])
def test_only_the_slots_are_written(n_streams):
    config = GROUPED
    cache = Cache(decoder(config), n_streams=n_streams)
    cache.run([[(5, 0, 0, 11), (1, 1, 0, 2)]], length=8, first_stream=n_streams - 1)
    for leaf in jax.tree.leaves(cache.kv):
        written = ~np.isnan(np.asarray(leaf))
        assert written.shape == (n_streams, config.n_kv_heads, 16, config.head_dim)
        where = {tuple(index) for index in np.argwhere(written.all(axis=(1, 3)))}
        assert where == {(n_streams - 1, 11), (n_streams - 1, 2)}
        assert written.sum() == 2 * config.n_kv_heads * config.head_dim


def test_a_ubatch_of_padding_writes_nothing_and_stays_finite():
    cache = Cache(decoder(GROUPED))
    ubatch, access = padding(Bucket(n_blocks=1, n_block_rows=4, n_outputs=2), n_cells=16)
    logits, kv = call(*cache.split, ubatch, cache.kv, (access,))
    assert logits.shape == (2, GROUPED.n_vocab) and np.isfinite(logits).all()
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(kv))


def test_embedding_rows_equal_the_ids_they_came_from():
    table = random_weights(GROUPED)["token_embd.weight"]
    rows = [(None, pos, 0, pos) for pos in range(6)]
    want = expected(GROUPED, A)
    logits = Cache(decoder(GROUPED)).run([rows], embd=table[A])
    np.testing.assert_allclose(logits, want, atol=1e-5)
    some_ids = [(A[i] if i % 2 else None, i, 0, i) for i in range(6)]
    garbage_at_ids = np.where(np.arange(6)[:, None] % 2 == 1, np.nan, table[A])
    logits = Cache(decoder(GROUPED)).run([some_ids], embd=garbage_at_ids, length=8)
    np.testing.assert_allclose(logits, want, atol=1e-5)


def test_only_looked_up_embeddings_are_scaled():
    scaled = random_weights(WINDOWED)["token_embd.weight"] * np.float32(WINDOWED.n_embd**0.5)
    rows = [(None if i % 2 else A[i], i, 0, i) for i in range(6)]
    logits = Cache(decoder(WINDOWED)).run([rows], embd=scaled[A])
    np.testing.assert_allclose(logits, expected(WINDOWED, A), atol=1e-5)


def test_embedding_rows_of_another_width_are_refused():
    cache = Cache(decoder(GROUPED))
    ubatch, access = padding(Bucket(n_blocks=1, n_block_rows=1, n_outputs=1), n_cells=16, width=5)
    with pytest.raises(ValueError, match="embedding rows have 5 values, the model needs 16"):
        call(*cache.split, ubatch, cache.kv, (access,))


def test_without_outputs_there_is_no_head():
    cache = Cache(decoder(FULL))

    def n_products(n_outputs):
        ubatch, access = padding(Bucket(n_blocks=1, n_block_rows=2, n_outputs=n_outputs), n_cells=16)
        traced = call.trace(*cache.split, ubatch, cache.kv, (access,))
        assert traced.out_info[0].shape == (n_outputs, FULL.n_vocab)
        return str(traced.jaxpr).count("platform_index")

    assert n_products(0) < n_products(2) < n_products(1)  # the last: with a head and without


def test_on_cpu_the_head_is_not_read_where_no_row_is_an_output():
    weights = random_weights(FULL)
    nowhere = weights | {"output.weight": np.full_like(weights["output.weight"], np.nan)}
    cache = Cache(Decoder.from_weights(FULL, nowhere.items()))
    ubatch, access = padding(Bucket(n_blocks=1, n_block_rows=4, n_outputs=2), n_cells=16)
    logits, _ = call(*cache.split, ubatch, cache.kv, (access,))
    np.testing.assert_array_equal(logits, np.zeros((2, FULL.n_vocab)))
    assert np.isnan(cache.run([rows_of(A)], n_outputs=6)).all()  # the head is what was read


@pytest.mark.parametrize("hidden", [False, True])
def test_the_last_feed_forward_network_gets_the_output_rows_alone_unless_all_are_asked_for(hidden):
    cache = Cache(decoder(GROUPED))
    ubatch, access = padding(Bucket(n_blocks=1, n_block_rows=8, n_outputs=3), n_cells=16)
    model = decoder(GROUPED)
    function = model.with_hidden if hidden else model.__call__
    traced = str(jax.make_jaxpr(function)(ubatch, cache.kv, (access,)))
    all_rows, some_rows = (f"f32[{n},{GROUPED.n_ff}] = logistic" in traced for n in (8, 3))
    assert all_rows and some_rows is not hidden


def test_random_weights_make_a_model_of_their_own():
    logits = [Cache(Decoder(GROUPED, rngs=nnx.Rngs(seed))).run([rows_of(A)]) for seed in (0, 0, 1)]
    assert logits[0].shape == (6, GROUPED.n_vocab) and np.ptp(logits[0]) > 1
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).max() > 0.1
