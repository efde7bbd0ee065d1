"""Memory for weights on the host: large slabs, one matrix behind the other.

On Linux numpy asks for huge pages where it takes 4 MiB or more, so that most matrices would lie in small ones if each
had memory of its own; a decode of one row, which does little but read weights, is up to 7 % faster in huge ones
(docs/log.md).
"""

import math
import threading
import weakref
from typing import Any

import numpy as np

SLAB_BYTES = 64 * 2**20
HUGE_PAGE = 2 * 2**20
ALIGNMENT = 64  # bytes; on CPU jax then takes a host array over as it is


class Slabs:
    """Gives arrays; a slab is freed when the last of its arrays is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slab: weakref.ref[np.ndarray] | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of anything, behind the one given before where it fits, aligned for jax to take it over."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            slab = None if self._slab is None else self._slab()
            if slab is None or self._used + n_bytes > slab.nbytes:
                slab = _slab(max(SLAB_BYTES, n_bytes))
                self._slab, self._used = weakref.ref(slab), 0
            start = self._used
            self._used += -(-n_bytes // ALIGNMENT) * ALIGNMENT
        return slab[start : start + n_bytes].view(dtype).reshape(shape)


def _slab(n_bytes: int) -> np.ndarray:
    """Bytes that begin with a huge page; what nobody writes to takes no memory."""
    taken = np.empty(n_bytes + HUGE_PAGE, np.uint8)
    start = -taken.ctypes.data % HUGE_PAGE
    # A view of a view would refer to what was taken, and nobody to the slab.
    return np.frombuffer(taken[start : start + n_bytes].data, np.uint8)
