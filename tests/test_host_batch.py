"""A batch on the host: its order is made from the sequence sets, whatever the given one says."""

import dataclasses

import numpy as np
import pytest

from ubjax import Batch, BatchConfig
from ubjax.host_batch import on_host

CONFIG = BatchConfig(n_vocab=10, n_batch=8, n_seq_max=256)


def test_rows_are_ordered_by_the_smallest_sequence_of_each_set():
    sets = [[255], [31, 32], [0], [64, 200], [63], [31]]
    batch = Batch.from_arrays([1] * 6, seq_id=sets, pos=[0] * 6, config=CONFIG, capacity=8)
    shuffled = dataclasses.replace(batch, order=batch.order[::-1].copy())
    assert on_host(shuffled).order.tolist() == [2, 1, 5, 4, 3, 0, 6, 7]
    for name in ("token", "pos", "seq", "output", "n_tokens"):
        np.testing.assert_array_equal(getattr(on_host(shuffled), name), getattr(batch, name))


@pytest.mark.parametrize("n_seqs", [32, 33, 256])
def test_every_sequence_is_found_in_its_word(n_seqs: int):
    ids = np.random.default_rng(0).permutation(n_seqs)
    config = dataclasses.replace(CONFIG, n_batch=n_seqs, n_seq_max=n_seqs)
    batch = Batch.from_arrays(np.zeros(n_seqs, np.int32), seq_id=ids, config=config)
    assert on_host(batch).order.tolist() == np.argsort(ids).tolist()
