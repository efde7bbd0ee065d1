"""Outputs are read by batch index whatever the split did; errors say which tokens are outputs."""

import jax.numpy as jnp
import numpy as np
import pytest

from ubjax.analysis import count_compilations
from ubjax.outputs import Outputs


def make(out_ids, n_tokens=12, pad=2):
    """Row r of ubatch k holds the batch index of its token; padding rows hold NaN."""
    buffers = [
        jnp.asarray([[i] * 3 for i in ids] + [[np.nan] * 3] * pad, jnp.float32).reshape(-1, 3)
        for ids in out_ids
    ]
    return Outputs(buffers, [np.asarray(ids, np.int32) for ids in out_ids], n_tokens)


def test_rows_come_back_in_batch_order():
    outputs = make([[3, 9], [], [0, 5]])
    assert len(outputs) == 4 and outputs.out_ids.tolist() == [3, 9, 0, 5]
    assert [outputs.logits(i)[0] for i in (0, 3, 5, 9)] == [0, 3, 5, 9]
    assert [outputs.logits(-k)[0] for k in (1, 2, 3, 4)] == [9, 5, 3, 0]


def test_only_the_last_of_twelve_is_an_output():
    outputs = make([[], [11]])
    assert outputs.logits(11).tolist() == outputs.logits(-1).tolist() == [11, 11, 11]
    with pytest.raises(ValueError, match=r"^token 0 is no output; outputs are token 11$"):
        outputs.logits(0)
    with pytest.raises(
        ValueError, match=r"^token 12 is not in the batch of 12 tokens; outputs are token 11$"
    ):
        outputs.logits(12)
    with pytest.raises(ValueError, match=r"^output -2 does not exist: the batch has 1 output$"):
        outputs.logits(-2)


def test_many_and_no_outputs_are_named_shortly():
    assert (
        repr(make([list(range(12))]))
        == "Outputs(12 of 12 tokens: tokens 0, 1, 2, 3, 4, 5, 6, 7, ... 11 (12 in all))"
    )
    with pytest.raises(ValueError, match="token 1 is no output; outputs are none"):
        make([[]]).logits(1)


def test_reading_rows_compiles_once_a_shape():
    outputs = make([[3, 9, 1, 2]])
    outputs.logits(3)
    with count_compilations() as count:
        for i in (9, 1, 2, -1):
            outputs.logits(i)
    assert count.total == 0


def test_whole_buffers_come_with_the_batch_index_of_their_rows():
    found = [(buffer.shape, ids.tolist()) for buffer, ids in make([[3, 9], [], [0]]).buffers()]
    assert found == [((4, 3), [3, 9]), ((3, 3), [0])]
