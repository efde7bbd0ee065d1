"""With JAX_ENABLE_X64 the splits and the engine give what they give without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json
from tests.models.helpers import GROUPED, decoder
from ubjax import Batch, BatchConfig, Engine, EngineConfig, split_equal, split_seq, split_simple

config = BatchConfig(n_vocab=100, n_batch=16, n_seq_max=4)
found = []
for seq_id in ([0] * 5 + [1] * 5 + [2], [[0, 1], [0, 1], [0], [1], [2], [2]]):
    batch = Batch.from_arrays(range(len(seq_id)), seq_id=seq_id, config=config)
    plans = [split_simple(batch, 4), split_equal(batch, 4, sequential=False), split_seq(batch, 4)]
    found += [repr(plan) for plan in (*plans, split_equal(batch, 4, sequential=True))]
for kv_unified in (True, False):
    engine = Engine(decoder(GROUPED), None, EngineConfig(n_ctx=64, kv_pad=16, n_seq_max=2, kv_unified=kv_unified))
    outputs = engine.decode(engine.batch([1, 2, 3, 4], seq_id=[0, 0, 1, 1]))
    found.append([round(float(x), 4) for x in outputs.logits(-1)])
    engine.clear()
    found.append(engine.generate([1, 2, 3], max_tokens=3).tokens)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_wide_integers_change_nothing():
    found = []
    for wide in ("0", "1"):
        root = str(Path(__file__).parents[1])
        environment = {**os.environ, "JAX_ENABLE_X64": wide, "PYTHONPATH": root}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        found.append(json.loads(run.stdout.splitlines()[-1]))
    assert len(found[0]) == 12
    assert found[0] == found[1]
