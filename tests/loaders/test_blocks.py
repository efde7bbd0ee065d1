"""Blocks of 32 values: what is read of them is what gguf dequantizes, bit for bit; rows of them, and parts joined."""

import gguf
import numpy as np
import pytest

from tests.loaders.tiny_gguf import GGML
from ubjax.loaders.blocks import FORMATS, read_blocks
from ubjax.models.quantized import QuantizedRows

EXTREMES = [0.0, -0.0, -1.5, 2.0**-24, -(2.0**-24), 65504.0, -65504.0, np.inf, -np.inf, np.nan]


def bits(values):
    return np.asarray(values, np.float32).view(np.uint32)


def random_rows(name, n_rows, n_blocks, seed=0):
    n_bytes = gguf.GGML_QUANT_SIZES[GGML[name]][1]
    return np.random.default_rng(seed).integers(0, 256, (n_rows, n_blocks * n_bytes), np.uint8)


def dequantized(raw, name):
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, GGML[name])


def halves(*values):
    return np.array(values, np.float16).view(np.uint8)


@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes_are_read_as_gguf_dequantizes_them(name):
    raw = random_rows(name, 40, 8)
    rows = read_blocks(raw, name)
    assert (rows.shape, rows.scale.shape, len(rows)) == ((40, 256), (40, 8), 40)
    assert (rows.offset is not None) == name.endswith("_1")
    np.testing.assert_array_equal(bits(rows.full()), bits(dequantized(raw, name)))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_extreme_scales_offsets_and_values(name, byte):
    n_heads = 4 if name.endswith("_1") else 2
    pairs = [(scale, offset) for scale in EXTREMES for offset in EXTREMES]
    raw = np.full((len(pairs), random_rows(name, 1, 1).shape[1]), byte, np.uint8)
    raw[:, :n_heads] = [halves(*pair)[:n_heads] for pair in pairs]
    np.testing.assert_array_equal(bits(read_blocks(raw, name).full()), bits(dequantized(raw, name)))


def test_a_block_of_each_format_by_hand():
    """Value j is j of 16 up to 15, then from 15 down; all of them have a fifth bit but the first."""
    low = np.r_[np.arange(16), np.arange(15, -1, -1)]
    nibbles = (low[:16] | low[16:] << 4).astype(np.uint8)
    fifth = np.array([0xFE, 0xFF, 0xFF, 0xFF], np.uint8)
    high = low + 16 * (np.arange(32) > 0)
    eight = np.arange(-16, 16, dtype=np.int8)
    for name, parts, want in (
        ("Q8_0", [halves(0.5), eight.view(np.uint8)], 0.5 * eight),
        ("Q4_0", [halves(-2), nibbles], -2.0 * (low - 8)),
        ("Q4_1", [halves(0.5, -3), nibbles], 0.5 * low - 3),
        ("Q5_0", [halves(0.25), fifth, nibbles], 0.25 * (high - 16)),
        ("Q5_1", [halves(2, 7), fifth, nibbles], 2.0 * high + 7),
    ):
        found = read_blocks(np.concatenate(parts)[None], name)
        np.testing.assert_array_equal(found.full()[0], want, err_msg=name)


@pytest.mark.parametrize("name", ["Q4_1", "Q5_0"])
def test_rows_are_taken_by_slice_and_by_number(name):
    rows = read_blocks(random_rows(name, 9, 2), name)
    order = np.array([8, 0, 3, 3])
    for at in (slice(2, 5), order):
        np.testing.assert_array_equal(bits(rows[at].full()), bits(rows.full()[at]))


def test_parts_with_and_without_offsets_are_joined_as_they_are():
    parts = [read_blocks(random_rows(name, 5, 2, seed), name) for seed, name in enumerate(FORMATS)]
    whole = np.concatenate([part.full() for part in parts])
    np.testing.assert_array_equal(bits(QuantizedRows.joined(parts).full()), bits(whole))
    assert QuantizedRows.joined([parts[0], parts[1]]).offset is None
