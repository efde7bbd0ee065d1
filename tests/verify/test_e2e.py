"""The real SmolLM2 through the engine: statuses, logits and token ids as llama.cpp gives them."""

import pytest

from tests.helpers import golden
from ubjax.verify import replay_e2e


@pytest.mark.slow
def test_smollm2_equals_llama_cpp():
    (data,) = golden("e2e_smollm2.json.gz")
    report = replay_e2e(data, "e2e_smollm2.json.gz")
    assert report.equal, str(report)
    assert report.rows == 260
    assert report.left_out == []
    assert report.worst < 1e-4
