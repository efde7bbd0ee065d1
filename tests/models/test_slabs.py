"""Memory of weights: aligned, side by side, and given back with the last array of a slab."""

import gc
import weakref

import numpy as np

from ubjax.models.slabs import ALIGNMENT, HUGE_PAGE, SLAB_BYTES, Slabs


def address(array):
    return array.ctypes.data


def test_arrays_lie_side_by_side_where_jax_takes_them_over():
    slabs = Slabs()
    arrays = [slabs.empty(*of) for of in (((3, 5), np.float32), ((7,), np.int8), ((2, 2), np.float16))]
    assert [a.shape for a in arrays] == [(3, 5), (7,), (2, 2)]
    assert [a.dtype.name for a in arrays] == ["float32", "int8", "float16"]
    assert address(arrays[0]) % HUGE_PAGE == 0
    assert np.diff([address(a) for a in arrays]).tolist() == [ALIGNMENT, ALIGNMENT]
    for value, array in enumerate(arrays):
        array[...] = value
    assert [a.ravel().tolist() for a in arrays] == [[0.0] * 15, [1] * 7, [2.0] * 4]


def test_what_does_not_fit_gets_a_slab_of_its_own():
    slabs = Slabs()
    first = slabs.empty((1,), np.uint8)
    large = slabs.empty((SLAB_BYTES + 1,), np.uint8)
    behind = slabs.empty((1,), np.uint8)
    assert address(large) % HUGE_PAGE == address(behind) % HUGE_PAGE == 0
    assert abs(address(large) - address(first)) >= SLAB_BYTES
    exact = [Slabs().empty((SLAB_BYTES,), np.uint8), slabs.empty((0, 4), np.float32)]
    assert exact[0].nbytes == SLAB_BYTES and exact[1].shape == (0, 4)


def test_a_slab_is_freed_with_its_last_array():
    slabs = Slabs()
    first, second = slabs.empty((4,), np.float32), slabs.empty((4,), np.float32)
    slab = weakref.ref(first.base)
    del first
    gc.collect()
    assert slab() is not None
    second[...] = 1
    del second
    gc.collect()
    assert slab() is None
    assert slabs.empty((4,), np.float32).shape == (4,)
