"""Batches for laws: sequence sets of up to CAPACITY rows, in ids on both sides of a word's end."""

from typing import Any

from hypothesis import strategies as st

CAPACITY = 24
N_SEQ_MAX = 40  # two words
IDS = (0, 1, 2, 3, 30, 31, 32, 33, 39)


def _rows(sets: st.SearchStrategy[Any]) -> st.SearchStrategy[list[frozenset[int]]]:
    return st.lists(sets, min_size=1, max_size=CAPACITY)


single = _rows(st.sampled_from(IDS).map(lambda s: frozenset({s})))
coupled = _rows(st.frozensets(st.sampled_from(IDS[2:7]), min_size=1))
disjoint = st.permutations(IDS).flatmap(
    lambda ids: _rows(
        st.sampled_from([frozenset(ids[:3]), frozenset(ids[3:5]), frozenset(ids[5:6]), frozenset(ids[6:])])
    )
)
any_sets = st.one_of(single, disjoint, coupled)
n_ubatch = st.integers(1, CAPACITY + 2)
