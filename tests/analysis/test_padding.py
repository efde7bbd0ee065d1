"""Padding by hand on a traffic of four decodes; FLOPs as a model's own matrices have them."""

import jax
import jax.numpy as jnp
import pytest

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.padding import ModelSizes, PaddingReport, Work, account_padding
from ubjax.analysis.traces import Trace
from ubjax.ladders import BucketLadder, RectangleLadder

SIZES = ModelSizes(n_layers=3, n_embd=8, n_ff=20, n_heads=4, n_kv_heads=2, head_dim=6, n_vocab=50)
# decodes [(0, 6), (1, 1)], [(0, 1), (1, 1)] twice, [(1, 1)]
TRAFFIC = drive(Trace.of([0, 0], [6, 1], [3, 4]), slots=2, n_batch=8)


def test_streams_by_hand():
    ladder = RectangleLadder.grid(BucketLadder((2,)), BucketLadder((2, 4)))
    report = account_padding(
        TRAFFIC, "equal", ladder, n_kv=BucketLadder((6, 8)), n_outputs=BucketLadder((1, 4))
    )
    # 2 x 1, 1 x 4, 1 x 1 | twice 2 x 1 | 1 x 1, all in two blocks; K/V of 6 cells in the first decode, then of 8
    assert report.real == Work(
        tokens=12, sequences=9, cells=21 + 1 + 7 + 2 + 8 + 3 + 4, logits=1 + 1 + 2 * 2 + 1
    )
    assert report.padded == Work(
        tokens=4 + 8 + 4 + 2 * 4 + 4,
        sequences=2 * 6,
        cells=6 * (4 + 8 + 4) + 8 * (2 * 4 + 4),
        logits=1 + 1 + 1 + 2 * 4 + 1,  # no output takes the smallest bucket of them
    )
    assert report.programs == 4  # 2 x 2 with 1 output and 6 cells, 4 and 8, 1 and 8; 2 x 4 with 1 and 6
    assert report.share("tokens") == pytest.approx(1 - 12 / 28)
    assert str(report).startswith(
        "tokens 12 of 28 (57.1% padding); sequences 9 of 12 (25.0% padding); cells 46 of 192"
    )


def test_embeddings_ask_for_every_row():
    traffic = pack_prompts(Trace.of([0, 0], [5, 2], [1, 1]), slots=2, n_batch=8)
    ladder = RectangleLadder.grid(BucketLadder((1,)), BucketLadder((4,)))
    report = account_padding(traffic, "seq", ladder, n_kv=BucketLadder((8,)), n_outputs=BucketLadder((4,)))
    assert report.real == Work(tokens=7, sequences=3, cells=15 + 3, logits=7)
    assert report.padded == Work(tokens=12, sequences=3, cells=96, logits=12) and report.programs == 1


def test_unified_is_one_block():
    ladder = RectangleLadder.grid(BucketLadder((1,)), BucketLadder((8,)))
    report = account_padding(
        TRAFFIC, "simple", ladder, n_kv=BucketLadder((16,)), n_outputs=BucketLadder((8,))
    )
    assert report.padded == Work(tokens=32, sequences=4, cells=32 * 16, logits=32)
    assert report.real.tokens == 12 and report.programs == 1


def test_flops_are_those_of_the_matrices():
    e, f, h, k, d, v = 8, 20, 4, 2, 6, 50
    matrices = [(e, h * d), (e, k * d), (e, k * d), (h * d, e), (e, f), (e, f), (f, e)]

    def flops(a, b):
        spec = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (a, b)]
        analysis = jax.jit(jnp.matmul).lower(*spec).compile().cost_analysis()
        assert analysis is not None
        return analysis["flops"]

    assert SIZES.row_flops == 3 * sum(flops((1, n), (n, m)) for n, m in matrices)
    assert SIZES.cell_flops == 3 * (2 * h * d + 2 * h * d)  # a product and a sum for each value of k and of v
    assert SIZES.logits_flops == flops((1, e), (e, v))
    work = Work(tokens=5, sequences=1, cells=7, logits=2)
    assert work.matmul_flops(SIZES) == 5 * SIZES.row_flops + 2 * SIZES.logits_flops
    assert work.attention_flops(SIZES) == 7 * SIZES.cell_flops


def test_shares_of_flops():
    real = Work(tokens=3, sequences=1, cells=10, logits=1)
    report = PaddingReport(real, Work(tokens=4, sequences=1, cells=40, logits=1))
    shares = report.flops_share(SIZES)
    assert (
        shares["attention"] == 0.75
        and 0 < shares["matmul"] < 0.25
        and shares["matmul"] < shares["all"] < 0.75
    )
    assert PaddingReport(real, real).flops_share(SIZES) == {"matmul": 0, "attention": 0, "all": 0}


def test_sizes_come_from_any_configuration():
    class Config:
        n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, other = 3, 8, 20, 4, 2, 6, 50, 1

    assert ModelSizes.of(Config()) == SIZES
    with pytest.raises(ValueError, match="n_ff is 0, at least 1 is needed"):
        ModelSizes(n_layers=3, n_embd=8, n_ff=0, n_heads=4, n_kv_heads=2, head_dim=6, n_vocab=50)
