"""Cutting a batch into ubatches: three strategies, each a pure function to a SplitPlan."""

from ubjax.split.equal import split_equal
from ubjax.split.plan import SplitPlan
from ubjax.split.seq import split_seq
from ubjax.split.simple import split_simple
from ubjax.split.whole import split_whole

__all__ = ["SplitPlan", "split_equal", "split_seq", "split_simple", "split_whole"]
