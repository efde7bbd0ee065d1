"""Array aliases and the axis glossary. A leaf may be a numpy array (host) or a jax array or tracer.

Axes, everywhere in the package:

    T   rows a batch can hold (its capacity)      S   sequences, n_seq_max
    U   rows a ubatch may hold, n_ubatch          R   rows of a padded ubatch, R = Sb * Lb
    Sb  row blocks of a ubatch (sequence sets)    Lb  rows of a block (tokens per sequence set)
    O   output rows of a padded ubatch            C   cells per stream
    NS  streams of the memory                     P   positions per token (1 text, 3 or 4 M-RoPE)
    W   32-bit words of a sequence set            E   width of an embedding row
    V   vocabulary                                L H K D  layers, query heads, key heads, head width
"""

import os
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int32, UInt32

# Static checkers see Any: numpy arrays lack `.at` and jax arrays are not np.ndarray, yet every leaf may be either.
# At run time, under the tests' import hook, it is exactly these two.
if TYPE_CHECKING:
    Array: TypeAlias = Any
else:
    Array = jax.Array | np.ndarray

# Arguments that a caller writes by hand: static checkers see what is wanted, at run time the functions
# refuse the rest themselves, with a sentence of their own.
if TYPE_CHECKING:
    Whole: TypeAlias = int
    Choice: TypeAlias = bool
    Text: TypeAlias = str
    FilePath: TypeAlias = str | os.PathLike[str]
    Bytes: TypeAlias = bytes | bytearray | memoryview
else:
    Whole = Choice = Text = FilePath = Bytes = Any
Number: TypeAlias = int | float
Scalar: TypeAlias = int | Int32[Array, ""] | np.integer[Any]

I32 = Int32[Array, ""]
Flag = Bool[Array, ""]

__all__ = [
    "I32",
    "Array",
    "Bool",
    "Bytes",
    "Choice",
    "FilePath",
    "Flag",
    "Float",
    "Int32",
    "Number",
    "Scalar",
    "Text",
    "UInt32",
    "Whole",
]
