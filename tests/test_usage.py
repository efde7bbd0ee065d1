"""Usage: differences and sums of counters."""

import collections

from ubjax.usage import Usage


def test_what_was_added_since_a_copy_adds_up_to_the_whole():
    usage = Usage(decodes=1, tokens=3, outputs=1, rows=4, buckets=collections.Counter({"1x4": 1}))
    before = usage.copy()
    more = Usage(decodes=2, tokens=5, outputs=2, rows=8, buckets=collections.Counter({"1x4": 2, "1x1": 1}))
    usage.add(more)
    assert usage.since(before) == more and before.tokens == 3
    assert (usage.ubatches, usage.tokens, usage.buckets["1x4"]) == (4, 8, 3)
    assert usage.padded_share == 1 - 8 / 12


def test_it_says_what_it_counted():
    one = Usage(decodes=1, tokens=1, rows=1, buckets=collections.Counter({"1x1": 1}))
    assert str(one) == "1 token in 1 decode, 1 ubatch, 1 bucket (1x1 x1), 0.0% padding"
    assert str(Usage()) == "0 tokens in 0 decodes, 0 ubatches, 0 buckets (), 0.0% padding"
