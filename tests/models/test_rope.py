"""Rotations against complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ubjax.models.rope import rotate, rotation

# One head of 6 values, 4 of them rotated: pairs (0, 2) and (1, 3), the last two stay.
# theta 16: frequencies 1 and 1 / 4; pos 2: angles 2 and 1 / 2.
HEAD = np.array([1, 0, 0, 2, 7, 8], np.float32)
TURNED = np.array([np.cos(2), -2 * np.sin(0.5), np.sin(2), 2 * np.cos(0.5), 7, 8])


def test_the_drawn_example():
    found = rotate(HEAD[None, None], rotation(np.array([[2]], np.int32), 4, 16.0))
    np.testing.assert_allclose(found[0, 0], TURNED, atol=1e-6)


@pytest.mark.parametrize("factors", [None, np.array([1, 4, 0.5], np.float32)])
def test_pairs_turn_like_complex_numbers(factors):
    x = np.random.default_rng(0).normal(size=(5, 3, 8)).astype(np.float32)
    pos = np.array([0, 1, 7, 500, 8191], np.int32)
    frequency = 100000.0 ** -(np.arange(3) / 3) / (1 if factors is None else factors)
    turned = (x[..., :3] + 1j * x[..., 3:6]) * np.exp(1j * pos[:, None, None] * frequency)
    found = np.asarray(rotate(x, rotation(pos[None], 6, 100000.0, factors)))
    want = np.concatenate([turned.real, turned.imag, x[..., 6:]], axis=-1)
    np.testing.assert_allclose(found[:3], want[:3], atol=1e-5)
    np.testing.assert_allclose(found, want, atol=3e-3)  # float32 knows an angle of thousands to 1e-3
    np.testing.assert_array_equal(found[0], x[0])


def test_sections_turn_by_positions_of_their_own():
    """Pairs 0 | 1 2 | 3 of one head: the first by the time, the next two by y, the last by x."""
    pos = np.array([[3, 500], [7, 1], [2, 0], [99, 99]], np.int32)
    by = rotation(pos, 8, 50.0, sections=(1, 2, 1, 0))
    each = [rotation(row[None], 8, 50.0) for row in pos[[0, 1, 1, 2]]]
    for pair, alone in enumerate(each):
        np.testing.assert_array_equal(by.cos[:, pair], alone.cos[:, pair])
        np.testing.assert_array_equal(by.sin[:, pair], alone.sin[:, pair])
    same = rotation(pos[[1, 1, 1]], 8, 50.0, sections=(1, 2, 1))
    np.testing.assert_array_equal(same.cos, each[1].cos)


def test_cosines_are_computed_once_for_all_layers():
    def layers(n):
        def run(pos, x):
            at = rotation(pos, 64, 1e4)
            for _ in range(n):
                x = jnp.sin(rotate(x, at).reshape(48, 128) @ jnp.ones((128, 128))).reshape(48, 2, 64)
            return x

        pos, x = np.arange(48, dtype=np.int32)[None], np.ones((48, 2, 64), np.float32)
        return jax.jit(run).lower(pos, x).compile().as_text().count(" cosine(")

    assert 0 < layers(2) == layers(5)


def test_rows_at_position_0_stay_as_they_are():
    x = np.random.default_rng(0).normal(size=(3, 2, 8)).astype(np.float32)
    at = jax.jit(lambda pos: rotation(pos, 8, 1e4))(np.zeros((1, 3), np.int32))
    np.testing.assert_array_equal(rotate(x, at), x)
