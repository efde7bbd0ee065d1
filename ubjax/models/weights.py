"""Which tensor of llama.cpp fills which rows of which parameter, and the filling, one tensor at a time.

layers[0].attn.qkv.weight    rows 0 .. H D               blk.0.attn_q.weight
                             rows H D .. (H + Hk) D      blk.0.attn_k.weight
                             rows (H + Hk) D .. the end  blk.0.attn_v.weight
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from ubjax.models.config import DecoderConfig

SHOWN = 4  # names in an error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Rows [start, stop) of a parameter that one tensor fills."""

    param: nnx.Param
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the tensor must have."""
        return (self.stop - self.start, *self.param.shape[1:])


def fill_weights(places: Mapping[str, Place], weights: Iterable[tuple[str, np.ndarray]]) -> None:
    """Give every parameter of an abstract model its value. Errors as `Decoder.from_weights`."""
    missing = dict.fromkeys(places)
    stacked: dict[int, np.ndarray] = {}
    for name, value in weights:
        if name not in missing:
            fault = "was given twice" if name in places else "is not one that this model has"
            raise ValueError(f"the tensor {name!r} {fault}")
        place = places[name]
        if value.shape != place.shape:
            raise ValueError(
                f"the tensor {name!r} has shape {list(value.shape)}, {list(place.shape)} is needed"
            )
        del missing[name]
        if place.shape == place.param.shape:
            rows = _aligned(place.param.shape, place.param.dtype)
            rows[...] = value
            place.param.set_value(jax.device_put(rows))
            del value, rows  # before the next one is made
            continue
        key = id(place.param)
        if key not in stacked:
            stacked[key] = _aligned(place.param.shape, place.param.dtype)
        stacked[key][place.start : place.stop] = value
        del value
        if not any(places[other].param is place.param for other in missing):
            place.param.set_value(jax.device_put(stacked.pop(key)))
    if missing:
        names = list(missing)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ValueError(f"tensors are missing: {', '.join(names[:SHOWN])}{more}")


ALIGNMENT = 64  # bytes; on CPU jax then takes a host array over as it is


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that jax can take over without a copy; `jnp.array` would hold a tensor three times for a moment."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + n_bytes].view(dtype).reshape(shape)


def decoder_places(model: Any, config: DecoderConfig) -> Iterator[tuple[str, Place]]:
    """Every tensor of a decoder by llama.cpp's name."""
    yield "token_embd.weight", whole(model.embedding)
    yield "output_norm.weight", whole(model.norm.weight)
    if model.head is not None:
        yield "output.weight", whole(model.head.weight)
    if model.rope_factors is not None:
        yield "rope_freqs.weight", whole(model.rope_factors)
    n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    for i, layer in enumerate(model.layers):
        for name, norm in (
            ("attn_norm", layer.attn_norm),
            ("attn_q_norm", layer.attn.q_norm),
            ("attn_k_norm", layer.attn.k_norm),
            ("post_attention_norm", layer.attn_post_norm),
            ("ffn_norm", layer.ffn_norm),
            ("post_ffw_norm", layer.ffn_post_norm),
        ):
            if norm is not None:
                yield f"blk.{i}.{name}.weight", whole(norm.weight)
        for linear, parts in (
            (layer.attn.qkv, {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv}),
            (layer.attn.output, {"attn_output": config.n_embd}),
            (layer.ffn.gate_up, {"ffn_gate": config.n_ff, "ffn_up": config.n_ff}),
            (layer.ffn.down, {"ffn_down": config.n_embd}),
        ):
            start = 0
            for part, rows in parts.items():
                yield f"blk.{i}.{part}.weight", Place(param=linear.weight, start=start, stop=start + rows)
                if part in config.biases:
                    yield f"blk.{i}.{part}.bias", Place(param=linear.bias, start=start, stop=start + rows)
                start += rows


def whole(param: nnx.Param) -> Place:
    """A parameter that one tensor fills."""
    return Place(param=param, start=0, stop=param.shape[0])
