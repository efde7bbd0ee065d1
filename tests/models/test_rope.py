"""Rotations against complex numbers."""

import numpy as np
import pytest

from ubjax.models.rope import rotate, rotation

# One head of 6 values, 4 of them rotated: pairs (0, 2) and (1, 3), the last two stay.
# theta 16: frequencies 1 and 1 / 4; pos 2: angles 2 and 1 / 2.
HEAD = np.array([1, 0, 0, 2, 7, 8], np.float32)
TURNED = np.array([np.cos(2), -2 * np.sin(0.5), np.sin(2), 2 * np.cos(0.5), 7, 8])


def test_the_drawn_example():
    found = rotate(HEAD[None, None], rotation(np.array([2], np.int32), 4, 16.0))
    np.testing.assert_allclose(found[0, 0], TURNED, atol=1e-6)


@pytest.mark.parametrize("factors", [None, np.array([1, 4, 0.5], np.float32)])
def test_pairs_turn_like_complex_numbers(factors):
    x = np.random.default_rng(0).normal(size=(5, 3, 8)).astype(np.float32)
    pos = np.array([0, 1, 7, 500, 8191], np.int32)
    frequency = 100000.0 ** -(np.arange(3) / 3) / (1 if factors is None else factors)
    turned = (x[..., :3] + 1j * x[..., 3:6]) * np.exp(1j * pos[:, None, None] * frequency)
    found = np.asarray(rotate(x, rotation(pos, 6, 100000.0, factors)))
    want = np.concatenate([turned.real, turned.imag, x[..., 6:]], axis=-1)
    np.testing.assert_allclose(found[:3], want[:3], atol=1e-5)
    np.testing.assert_allclose(found, want, atol=3e-3)  # float32 knows an angle of thousands to 1e-3
    np.testing.assert_array_equal(found[0], x[0])
