"""Every storage of a matrix against numpy: what it keeps, its rows, and its products at every number of rows."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.programs import every_row, product, temporary_bytes
from ubjax.models.matrix import Blocks, Int8, Panels, Rows, store_of

DTYPES = ["float32", "bfloat16", "float16", "int8", "q8_0"]
N_ROWS = [1, 2, 8, 9, 32, 33, 256]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def stored(dtype, rows, few_rows=True):
    return store_of(dtype, few_rows=few_rows)(rows)


def check_products(matrix, n_rows, dtype):
    n_out, n_in = matrix.shape
    x = normal(n_rows, n_in, seed=1)
    found = product(nnx.split(matrix), x)
    if dtype in ("bfloat16", "float16"):
        x = np.asarray(jnp.asarray(x).astype(dtype).astype(jnp.float32))
    want = x.astype(np.float64) @ every_row(matrix).T.astype(np.float64)
    assert found.dtype == jnp.float32 and found.shape == (n_rows, n_out)
    # int8: x in steps of its largest value / 32,258, half a step off at most
    np.testing.assert_allclose(found, want, atol=2e-3 if dtype == "int8" else 4e-5)


@pytest.mark.parametrize("n_rows", N_ROWS)
@pytest.mark.parametrize(("dtype", "few_rows"), [*((dtype, True) for dtype in DTYPES), ("float32", False)])
def test_a_product_is_that_of_its_rows(dtype, few_rows, n_rows):
    check_products(stored(dtype, normal(70, 64), few_rows), n_rows, dtype)


@pytest.mark.parametrize("n_rows", [1, 9, 128, 129, 256])
@pytest.mark.parametrize("n_out", [2048, 2049, 2112])
def test_a_tall_matrix_is_a_product_of_panels(n_out, n_rows):
    """64, 65 and 66 panels, which threads share in four parts, one and two."""
    check_products(Panels(normal(n_out, 32)), n_rows, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_and_numpy_rows_are_kept_alike(dtype):
    rows = normal(40, 32)
    of_numpy, of_jax = stored(dtype, rows), jax.jit(lambda rows: nnx.state(stored(dtype, rows)))(rows)
    for a, b in zip(jax.tree.leaves(nnx.state(of_numpy)), jax.tree.leaves(of_jax), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=1e-6, atol=dtype in ("int8", "q8_0"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_that_were_given_and_the_nearest_outside(dtype):
    rows = normal(70, 64)
    matrix = stored(dtype, rows)
    step = {"float32": 0, "bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 1 / 254)  # of the largest value
    np.testing.assert_allclose(every_row(matrix), rows, atol=1.01 * step * np.abs(rows).max())
    found = matrix.rows(np.array([69, 0, 33, 70, 1000, -1], np.int32))
    np.testing.assert_array_equal(found, every_row(matrix)[[69, 0, 33, 69, 69, 0]])


def test_q8_0_is_that_of_ggml():
    rows = normal(9, 96)
    rows[0, :32], rows[1, 3] = 0, 127  # a block of nothing; one whose halves are exact
    rows[1, 4] = 2.5
    matrix = Blocks.q8_0(rows)
    packed = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    want = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(every_row(matrix), want)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(matrix))} == {"int8", "float16"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_zeros_and_values_of_nothing(dtype):
    rows = normal(40, 32)
    rows[7] = 0
    matrix = stored(dtype, rows)
    x = np.stack([np.zeros(32, np.float32), rows[3]])
    found = np.asarray(product(nnx.split(matrix), x))
    assert np.isfinite(found).all() and not found[0].any() and not found[:, 7].any() and found[1].any()


@pytest.mark.parametrize("n_rows", [4, 9, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_x_do_not_disturb_one_another(dtype, n_rows):
    split, x = nnx.split(stored(dtype, normal(40, 32))), normal(n_rows, 32, seed=2)
    poisoned = x.copy()
    poisoned[1::2] = np.nan
    np.testing.assert_array_equal(product(split, poisoned)[::2], product(split, x)[::2])


def test_offsets_are_added():
    values, scale, offset = np.arange(64).reshape(1, 64), np.array([[0.5, 2]]), np.array([[-1, 3]])
    matrix = Blocks(*(np.asarray(part, np.float32) for part in (values, scale, offset)))
    want = np.concatenate([np.arange(32) * 0.5 - 1, np.arange(32, 64) * 2 + 3])
    np.testing.assert_array_equal(every_row(matrix), want[None])
    np.testing.assert_allclose(product(nnx.split(matrix), np.ones((1, 64), np.float32)), [[want.sum()]])


def test_what_a_dtype_is_stored_as(monkeypatch):
    rows, odd = normal(33, 64), normal(33, 48)
    kinds = {dtype: type(stored(dtype, rows)) for dtype in (*DTYPES, "stored")}
    assert kinds["bfloat16"] is kinds["float16"] is Rows and kinds["int8"] is Int8 and kinds["q8_0"] is Blocks
    assert type(stored("q8_0", odd)) is kinds["stored"] is kinds["float32"]
    assert type(stored("float32", rows, few_rows=False)) is Rows
    assert type(stored(jnp.float32, rows)) is kinds["float32"]
    for platform, machine, kind in (
        ("gpu", "x86_64", Rows),
        ("cpu", "arm64", Rows),
        ("cpu", "AMD64", Panels),
    ):
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert type(stored("float32", rows)) is kind
    for n_out, kind in ((1024, Panels), (1025, Rows), (2047, Rows), (2048, Panels)):
        assert type(stored("float32", np.zeros((n_out, 512), np.float32))) is kind


def test_what_is_kept_takes_as_many_bytes_as_it_should():
    def n_bytes(dtype):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(stored(dtype, normal(64, 64)))))

    assert [n_bytes(dtype) for dtype in DTYPES] == [
        4 * 4096, 2 * 4096, 2 * 4096, 4096 + 4 * 64, 4096 + 2 * 128,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    [
        jnp.int8,
        np.int8,
        np.dtype("int8"),
        "int32",
        "int4",
        "bf16",
        b"int8",
        None,
        1,
        np.float64,
        ["int8"],
        np.array(["int8"]),
    ],
)
def test_a_dtype_that_weights_cannot_have_is_refused_before_anything_is_stored(dtype):
    with pytest.raises(ValueError, match=r"^dtype is .*, one of float32, .*stored is needed$"):
        store_of(dtype, few_rows=True)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.dtype(jnp.bfloat16), "bfloat16"])
def test_a_float_is_known_by_its_name_and_as_a_dtype(dtype):
    assert store_of(dtype, few_rows=True)(np.ones((4, 4), np.float32)).values.dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_out", [8, 40, 4096])
def test_no_rows_give_none(dtype, n_out):
    product = store_of(dtype, few_rows=True)(np.ones((n_out, 32), np.float32))(jnp.zeros((0, 32)))
    assert product.shape == (0, n_out)


@pytest.mark.parametrize("n_rows", [1, 128, 129])
@pytest.mark.parametrize("values", [1, 64 * 16, 64 * 40, 2**19])
@pytest.mark.parametrize("n_out", [1, 2, 33, 71])
@pytest.mark.parametrize("dtype", ["float16", "q8_0"])
def test_what_is_dequantized_in_parts_is_all_of_it(monkeypatch, dtype, n_out, values, n_rows):
    """Parts of one row, of a number that does not divide them, and a matrix smaller than a part."""
    monkeypatch.setattr("ubjax.models.products.CHUNK", values)
    product.clear_cache()
    check_products(stored(dtype, normal(n_out, 64)), n_rows, dtype)
    product.clear_cache()


@pytest.mark.parametrize("n_rows", [1, 4, 32, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_stay_as_they_are_stored_while_a_program_runs(dtype, n_rows):
    """Neither a step nor a loop of steps holds matrices in float32, and no table of embeddings."""
    matrices = [stored(dtype, normal(n, 512)) for n in (4096, *[512] * 8)]
    assert temporary_bytes(matrices, n_rows) < 2**21 + 2**18 + 8 * 4 * n_rows * 512


@pytest.mark.parametrize("dtype", ["int8", "q8_0"])
@pytest.mark.parametrize("given", [jnp.bfloat16, np.float16, np.float64])
def test_rows_of_another_dtype_are_rounded_from_what_they_are(dtype, given):
    rows = (normal(64, 64) * 1e-3).astype(given)
    np.testing.assert_array_equal(
        every_row(stored(dtype, rows)), every_row(stored(dtype, rows.astype(np.float32)))
    )


@pytest.mark.parametrize("n_in", [133_144, 133_152, 2**18])
def test_sums_of_long_rows_do_not_overflow(n_in):
    found = stored("int8", np.ones((2, n_in), np.float32))(np.ones((1, n_in), np.float32))
    np.testing.assert_allclose(found, np.full((1, 2), n_in), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_x_of_another_dtype_is_multiplied(dtype):
    matrix, x = stored(dtype, normal(40, 64)), np.ones((2, 64), np.float32)
    np.testing.assert_array_equal(matrix(x.astype(jnp.bfloat16)), matrix(x))
