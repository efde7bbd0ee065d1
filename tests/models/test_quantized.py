"""Blocks of 32 values as files hold them, kept in 8 or 4 bits: rows bit for bit, products, bytes, and parts joined."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.loaders.tiny_gguf import GGML
from tests.models.programs import every_row, product, temporary_bytes
from ubjax.loaders.blocks import FORMATS, read_blocks
from ubjax.models.matrix import Blocks
from ubjax.models.quantized import QuantizedRows

KINDS = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "uint4", "Q5_0": "int8", "Q5_1": "int8"}


def random_rows(name, n_out, n_blocks=2, seed=0):
    """Every value that a block may hold, scales and offsets as those of weights are."""
    rng = np.random.default_rng(seed)
    n_bytes = gguf.GGML_QUANT_SIZES[GGML[name]][1]
    raw = rng.integers(0, 256, (n_out, n_blocks, n_bytes), np.uint8)
    for start in range(0, 4 if name.endswith("_1") else 2, 2):
        heads = rng.normal(size=(n_out, n_blocks, 1)).astype(np.float16) / 16
        raw[:, :, start : start + 2] = heads.view(np.uint8)
    return read_blocks(raw.reshape(n_out, -1), name)


def kept(rows):
    return Blocks(rows.values, rows.scale, rows.offset, rows.kind)


def test_each_format_says_what_its_values_are_within():
    assert {name: random_rows(name, 1).kind for name in FORMATS} == KINDS
    for name, (least, most) in {"Q4_0": (-8, 7), "Q4_1": (0, 15), "Q5_0": (-16, 15), "Q5_1": (0, 31)}.items():
        values = random_rows(name, 400).values
        assert (values.min(), values.max()) == (least, most)


@pytest.mark.parametrize("n_blocks", [1, 2, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_those_of_the_file_bit_for_bit(name, n_blocks):
    rows = random_rows(name, 70, n_blocks)
    matrix = kept(rows)
    assert matrix.shape == (70, 32 * n_blocks)
    np.testing.assert_array_equal(every_row(matrix).view(np.uint32), rows.full().view(np.uint32))
    found = jax.jit(lambda ids: matrix.rows(ids))(np.array([69, 0, 70, -1], np.int32))
    np.testing.assert_array_equal(found, rows.full()[[69, 0, 69, 0]])


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_scales_and_offsets_stay_what_they_are(name):
    rows = random_rows(name, 6)
    rows.scale[:] = np.array([np.inf, np.nan, 2.0**-24, -0.0, 65504, 1])[:, None]
    np.testing.assert_array_equal(every_row(kept(rows)), rows.full())


@pytest.mark.parametrize("n_rows", [1, 2, 33, 128, 129])
@pytest.mark.parametrize(("n_out", "values"), [(1, 2**19), (71, 2**19), (71, 64 * 16), (71, 1)])
@pytest.mark.parametrize("name", FORMATS)
def test_a_product_is_that_of_the_rows(monkeypatch, name, n_out, values, n_rows):
    monkeypatch.setattr("ubjax.models.products.CHUNK", values)
    product.clear_cache()
    rows = random_rows(name, n_out)
    x = np.random.default_rng(1).normal(size=(n_rows, 64)).astype(np.float32)
    want = x.astype(np.float64) @ rows.full().T.astype(np.float64)
    found = product(nnx.split(kept(rows)), x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, want, atol=4e-4)  # sums of 64 up to about 30 each: steps of 2**-18
    many = jax.vmap(lambda x: kept(rows)(x))(np.stack([x, 2 * x]))
    np.testing.assert_allclose(many, np.stack([want, 2 * want]), atol=8e-4)
    poisoned = x.copy()
    poisoned[1::2] = np.nan
    np.testing.assert_array_equal(product(nnx.split(kept(rows)), poisoned)[::2], found[::2])
    product.clear_cache()


@pytest.mark.parametrize(("name", "bits"), [("Q8_0", 8), ("Q4_0", 4), ("Q4_1", 4), ("Q5_0", 8), ("Q5_1", 8)])
def test_four_bits_take_half_a_byte(name, bits):
    leaves = jax.tree.leaves(nnx.state(kept(random_rows(name, 10, 4))))
    n_halves = 2 if name.endswith("_1") else 1
    assert sum(leaf.nbytes for leaf in leaves) == 10 * 4 * (32 * bits // 8 + 2 * n_halves)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("Q4_0", "Q4_0"), "int4"),
        (("Q4_1", "Q4_1", "Q4_1"), "uint4"),
        (("Q4_0", "Q4_1"), "int8"),
        (("Q4_1", "Q8_0"), "int8"),
    ],
)
def test_joined_parts_are_kept_in_four_bits_if_all_of_them_are(names, kind):
    parts = [random_rows(name, 5, seed=i) for i, name in enumerate(names)]
    joined = QuantizedRows.joined(parts)
    assert joined.kind == kind and joined[1:3].kind == kind and joined[np.array([0])].kind == kind
    np.testing.assert_array_equal(every_row(kept(joined)), np.concatenate([part.full() for part in parts]))


@pytest.mark.parametrize("n_rows", [1, 4, 300])
@pytest.mark.parametrize("name", FORMATS)
def test_blocks_stay_blocks_while_a_program_runs(name, n_rows):
    """Eight matrices of 1 MiB each in float32, and a table of 8 MiB; a part of one is unpacked to 8 bits first."""
    matrices = [kept(random_rows(name, n, 16)) for n in (4096, *[512] * 8)]
    unpacked = 0 if KINDS[name] == "int8" else 2**19
    assert temporary_bytes(matrices, n_rows) < 2**21 + 2**18 + unpacked + 8 * 4 * n_rows * 512
