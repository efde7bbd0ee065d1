"""The real models through the engine: statuses, logits and token ids as llama.cpp gives them."""

import pytest

from tests.helpers import golden
from ubjax.verify import replay_e2e


@pytest.mark.slow
def test_smollm2_equals_llama_cpp():
    (data,) = golden("e2e_smollm2.json.gz")
    report = replay_e2e(data, "e2e_smollm2.json.gz")
    assert report.equal, str(report)
    assert report.rows == 274
    assert report.worst < 1e-4


@pytest.mark.slow
def test_gemma3_equals_llama_cpp():
    (data,) = golden("e2e_gemma3.json.gz")
    report = replay_e2e(data, "e2e_gemma3.json.gz")
    assert report.equal, str(report)
    assert report.rows == 277
    assert report.worst < 1.1e-2


# The others are alike at every size: `ubjax verify --n-ubatch N [--swa-full]` replays the whole file, minutes each.
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"n_ubatch": 16}, {"n_ubatch": 512, "swa_full": True}], ids=str)
def test_gemma3_at_other_sizes(sizes):
    (data,) = golden("e2e_gemma3.json.gz")
    some = [s for s in data["scenarios"] if s["name"] in ("context_shift", "long650_streams")]
    report = replay_e2e(data | {"tokenize": {}, "scenarios": some}, "e2e_gemma3.json.gz", **sizes)
    assert report.equal and report.rows == 24, str(report)
