"""Calibration times the shapes it says on a real engine, and nothing else."""

import pytest

from tests.tiny import tiny_model
from ubjax import Engine
from ubjax.analysis.shapes import StepShape
from ubjax.calibrate import calibrate, shapes_to_time


def test_the_shapes_lie_between_and_around_each_other():
    fit, others = shapes_to_time(512, 8, (256, 1024, 4096))
    assert [shape.n_rows for shape in fit[:6]] == [1, 4, 16, 64, 256, 512]
    assert not set(fit) & set(others) and len(set(fit)) == len(fit) == 11 and len(others) == 7
    assert {shape.n_kv for shape in fit} == {256, 1024, 4096} and {shape.n_blocks for shape in fit} == {1, 8}
    assert [shape.n_rows for shape in others[:4]] == [2, 8, 32, 128]
    assert all(shape.n_rows <= 512 and shape.n_outputs <= shape.n_rows for shape in fit + others)
    one_stream = shapes_to_time(2, 1, (4, 8, 16))
    assert one_stream == (
        [StepShape(1, 1, 1, 8), StepShape(1, 2, 1, 8), StepShape(1, 1, 1, 16)],
        [StepShape(1, 1, 1, 4)],
    )


@pytest.mark.slow
def test_a_tiny_model_is_timed_at_these_shapes(monkeypatch):
    ran, heard, decode = set(), [], Engine.decode

    def watched(self, batch):
        before = self.usage.copy()
        outputs = decode(self, batch)
        ran.update(self.usage.since(before).buckets)
        return outputs

    monkeypatch.setattr(Engine, "decode", watched)
    sizes = {"n_ubatch": 4, "n_seqs": 2, "n_kv": (6, 8, 16)}
    cost = calibrate(tiny_model(), **sizes, repeat=1, on_shape=lambda *args: heard.append(args))
    fit, others = shapes_to_time(4, 2, (6, 8, 16))
    assert {str(shape) for shape in fit + others} <= ran
    assert sorted(shape for shape, _, _ in heard) == sorted(fit + others)
    assert [(i, n) for _, i, n in heard] == [(i + 1, len(heard)) for i in range(len(heard))]
    assert [shape for shape, _ in cost.errors] == sorted(others)
    assert [rows for rows, _ in cost.height.timed] == [1, 4]
    assert cost(StepShape(1, 3, 1, 8)) > 0


@pytest.mark.parametrize("n_kv", [(4, 4, 8), (4, 8, 8), (0, 8, 16), (2, 3, 9)])
def test_sizes_that_can_not_be_timed_are_refused(n_kv):
    with pytest.raises(
        ValueError, match="at least 2 rows, and ascending sizes of which the middle one is larger"
    ):
        calibrate(tiny_model(), n_ubatch=4, n_kv=n_kv)
