"""Matrices that a GGUF file holds in blocks of 32 values, as whole numbers with their scales and offsets, exactly.

Bytes of a block; scale and offset are float16. A byte of 4-bit values has value j in its low half and j + 16 in its
high half; the fifth bit of value j is bit j of four bytes.

    type   bytes  scale  offset  fifth bits  values  meant
    Q8_0     34    0:2                        2:34   scale * q, q signed
    Q4_0     18    0:2                        2:18   scale * (q - 8)
    Q4_1     20    0:2    2:4                 4:20   scale * q + offset
    Q5_0     22    0:2              2:6       6:22   scale * (q - 16)
    Q5_1     24    0:2    2:4       4:8       8:24   scale * q + offset
"""

import numpy as np
from jaxtyping import UInt8

from ubjax.models.quantized import BLOCK, QuantizedRows

HALF = BLOCK // 2
# Bytes of a block by part, in their order, the number that stands for 0, and what the values are within.
FORMATS = {
    "Q8_0": ({"scale": 2, "values": BLOCK}, 0, "int8"),
    "Q4_0": ({"scale": 2, "nibbles": HALF}, 8, "int4"),
    "Q4_1": ({"scale": 2, "offset": 2, "nibbles": HALF}, 0, "uint4"),
    "Q5_0": ({"scale": 2, "fifth": 4, "nibbles": HALF}, 16, "int8"),
    "Q5_1": ({"scale": 2, "offset": 2, "fifth": 4, "nibbles": HALF}, 0, "int8"),
}


def read_blocks(raw: UInt8[np.ndarray, "out row_bytes"], type_name: str) -> QuantizedRows:
    """The rows of a matrix from their bytes; `type_name` is one of FORMATS.

    `read_blocks(raw, kind).full()` is what `gguf.quants.dequantize` gives, bit for bit.
    """
    sizes, zero, kind = FORMATS[type_name]
    blocks = raw.reshape(raw.shape[0], -1, sum(sizes.values()))
    parts = dict(zip(sizes, np.split(blocks, np.cumsum([*sizes.values()])[:-1], axis=2), strict=True))
    halves = {
        name: np.ascontiguousarray(parts[name]).view(np.float16)[..., 0]
        for name in ("scale", "offset")
        if name in parts
    }
    values = np.empty((*blocks.shape[:2], BLOCK), np.uint8)
    if "values" in parts:
        values[...] = parts["values"]
    else:
        np.bitwise_and(parts["nibbles"], 15, out=values[..., :HALF])
        np.right_shift(parts["nibbles"], 4, out=values[..., HALF:])
    if "fifth" in parts:
        values |= np.unpackbits(parts["fifth"], axis=2, bitorder="little") << 4
    signed = values.reshape(len(raw), -1).view(np.int8)
    signed -= zero
    return QuantizedRows(values=signed, scale=halves["scale"], offset=halves.get("offset"), kind=kind)
