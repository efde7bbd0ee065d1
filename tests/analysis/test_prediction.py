"""The programs that are predicted from lengths alone are those that a real engine runs and compiles."""

import collections

import pytest

from tests.tiny import tiny_engine
from ubjax.analysis import count_compilations, synthetic_trace
from ubjax.analysis.driver import drive
from ubjax.analysis.padding import account_padding
from ubjax.analysis.shapes import count_ubatches
from ubjax.buckets import RectangleLadder, pick_outputs

SLOTS, N_BATCH, N_UBATCH = 2, 8, 4


def decodes_of(traffic):
    """Every decode as pieces (seq_id, n_tokens, pos, output)."""
    columns = (traffic.seq_id, traffic.n_tokens, traffic.pos, traffic.output)
    for *rows, repeats in zip(*columns, traffic.repeats, strict=True):
        pieces = [piece for piece in zip(*(row.tolist() for row in rows), strict=True) if piece[1]]
        for time in range(repeats):
            yield [(seq_id, n, pos + time, output) for seq_id, n, pos, output in pieces]


def run(engine, traffic):
    """Decode the traffic with made-up tokens; the cells of a request are freed when it has finished."""
    decodes = list(decodes_of(traffic))
    begins = [{seq_id for seq_id, _, pos, _ in pieces if pos == 0} for pieces in decodes]
    for now, pieces in enumerate(decodes):
        seq_id = [s for s, n, _, _ in pieces for _ in range(n)]
        output = [wanted and row + 1 == n for _, n, _, wanted in pieces for row in range(n)]
        engine.decode(engine.batch([row % 60 for row in range(len(seq_id))], seq_id=seq_id, output=output))
        for s, *_ in pieces:
            later = (k for k in range(now + 1, len(decodes)) if any(s == piece[0] for piece in decodes[k]))
            if s in begins[next(later, now)]:
                engine.rm(s)


@pytest.mark.slow
@pytest.mark.parametrize("unified", [False, True])
def test_the_engine_runs_the_predicted_programs(unified):
    trace = synthetic_trace(7, prompt=(10, 0.8, 40), output=(5, 0.6, 12), seed=4)
    traffic = drive(trace, slots=SLOTS, n_batch=N_BATCH)
    engine = tiny_engine(
        n_ctx=SLOTS * 64,
        n_batch=N_BATCH,
        n_ubatch=N_UBATCH,
        n_seq_max=SLOTS,
        kv_unified=unified,
        kv_pad=32,
    )
    buckets = engine.buckets
    with count_compilations() as count:
        run(engine, traffic)
    strategy = "simple" if unified else "equal"
    ladder = RectangleLadder.grid(buckets.n_blocks, buckets.n_rows)
    expected = collections.Counter()
    for kind, times in count_ubatches(traffic, [N_UBATCH], strategy, buckets.n_kv[0])[N_UBATCH].items():
        n_blocks, n_rows = ladder.pick(kind.n_seqs, kind.n_seq_tokens)
        outputs = pick_outputs(buckets.n_outputs, kind.n_outputs, n_blocks * n_rows)
        expected[f"{n_blocks}x{n_rows}|kv {kind.n_kv}|out {outputs}"] += times
    assert engine.usage.buckets == expected
    report = account_padding(traffic, strategy, ladder, n_kv=buckets.n_kv[0], n_outputs=buckets.n_outputs)
    assert report.programs == len(expected) == count.functions["step"].compiled
    assert report.padded.tokens == engine.usage.rows and report.real.logits == engine.usage.outputs
