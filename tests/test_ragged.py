"""Sequence-set words against Python sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ubjax.ragged import count_seqs, first_seq, has_seq, set_of


def words(ids, n_words=3):
    out = np.zeros(n_words, np.uint32)
    for s in ids:
        out[s // 32] |= np.uint32(1) << np.uint32(s % 32)
    return out


@given(st.lists(st.sets(st.integers(0, 95), max_size=5), min_size=4, max_size=4), st.integers(0, 95))
def test_words_equal_sets(sets, s):
    seq = np.stack([words(ids) for ids in sets])
    assert first_seq(seq).tolist() == [min(ids, default=96) for ids in sets]
    assert count_seqs(seq).tolist() == [len(ids) for ids in sets]
    assert has_seq(seq, s).tolist() == [s in ids for ids in sets]


def test_set_of_is_empty_outside():
    ids = np.asarray([0, 31, 32, 95, 96, -1], np.int32)
    want = np.stack([words([0]), words([31]), words([32]), words([95]), words([]), words([])])
    assert np.array_equal(set_of(ids, 3), want)
    assert not has_seq(want, 96).any() and not has_seq(want, -1).any()
