"""Which tensor of llama.cpp fills which rows of which parameter, and the filling, one tensor at a time.

layers[0].attn.qkv.weight    rows 0 .. H D               blk.0.attn_q.weight
                             rows H D .. (H + Hk) D      blk.0.attn_k.weight
                             rows (H + Hk) D .. the end  blk.0.attn_v.weight
"""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from flax import nnx

from ubjax.models.config import DecoderConfig
from ubjax.models.matrix import Blocks, Store
from ubjax.models.quantized import QuantizedRows

Tensor: TypeAlias = np.ndarray | QuantizedRows
SHOWN = 4  # names in an error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Rows [start, stop) of a module's attribute, a matrix or a parameter, that one tensor fills."""

    module: nnx.Module
    attribute: str
    start: int
    stop: int

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the matrix or parameter."""
        return getattr(self.module, self.attribute).shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the tensor must have."""
        return (self.stop - self.start, *self.full_shape[1:])

    @property
    def key(self) -> tuple[int, str]:
        """The same for all places of a matrix or parameter."""
        return id(self.module), self.attribute

    def fill(self, names: Sequence[str], value: Tensor, store: Store) -> None:
        """Give the matrix (stored as `store` says, or as it came) or the parameter its value, made of these tensors.

        Raises ValueError for numbers that can't be stored so.
        """
        if isinstance(value, QuantizedRows):
            setattr(self.module, self.attribute, Blocks(value.values, value.scale, value.offset, value.kind))
        elif len(self.full_shape) == 2:
            try:
                setattr(self.module, self.attribute, store(value))
            except ValueError as error:
                which = "the tensor" if len(names) == 1 else "one of the tensors"
                raise ValueError(f"{which} {', '.join(map(repr, names))} cannot be stored: {error}") from None
        else:
            getattr(self.module, self.attribute).set_value(jax.device_put(np.array(value, np.float32)))


def fill_weights(places: Mapping[str, Place], weights: Iterable[tuple[str, Tensor]], store: Store) -> None:
    """Give every matrix and parameter of an abstract model its value. Errors as `Decoder.from_weights`."""
    missing = dict.fromkeys(places)
    stacked: dict[tuple[int, str], list[tuple[Place, Tensor]]] = {}
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
        if place.shape == place.full_shape:
            place.fill([name], value, store)
            del value  # before the next one is made
            continue
        # The tensor is the caller's again once the next one is asked for.
        stacked.setdefault(place.key, []).append((place, copy.deepcopy(value)))
        del value
        if not any(places[other].key == place.key for other in missing):
            names = [other for other in places if places[other].key == place.key]
            place.fill(names, _joined(stacked.pop(place.key)), store)
    if missing:
        names = list(missing)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ValueError(f"tensors are missing: {', '.join(names[:SHOWN])}{more}")


def _joined(parts: Sequence[tuple[Place, Tensor]]) -> Tensor:
    """The parts over one another, zeros where there is none; quantized if all of them are and they fill it."""
    shape = parts[0][0].full_shape
    ordered = [value for _, value in sorted(parts, key=lambda part: part[0].start)]
    quantized = [value for value in ordered if isinstance(value, QuantizedRows)]
    if len(quantized) == len(parts) and sum(value.shape[0] for value in quantized) == shape[0]:
        return QuantizedRows.joined(quantized)
    rows = np.zeros(shape, np.float32)
    for place, value in parts:
        rows[place.start : place.stop] = value.full() if isinstance(value, QuantizedRows) else value
    return rows


def decoder_places(model: Any, config: DecoderConfig) -> Iterator[tuple[str, Place]]:
    """Every tensor of a decoder by llama.cpp's name."""
    yield "token_embd.weight", whole(model, "embedding")
    yield "output_norm.weight", whole(model.norm, "weight")
    if model.head is not None:
        yield "output.weight", whole(model.head, "weight")
    if model.rope_factors is not None:
        yield "rope_freqs.weight", whole(model, "rope_factors")
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
                yield f"blk.{i}.{name}.weight", whole(norm, "weight")
        for linear, parts in (
            (layer.attn.qkv, {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv}),
            (layer.attn.output, {"attn_output": config.n_embd}),
            (layer.ffn.gate_up, {"ffn_gate": config.n_ff, "ffn_up": config.n_ff}),
            (layer.ffn.down, {"ffn_down": config.n_embd}),
        ):
            start = 0
            for part, rows in parts.items():
                at = {"module": linear, "start": start, "stop": start + rows}
                yield f"blk.{i}.{part}.weight", Place(attribute="weight", **at)
                if part in config.biases:
                    yield f"blk.{i}.{part}.bias", Place(attribute="bias", **at)
                start += rows


def whole(module: nnx.Module, attribute: str) -> Place:
    """A matrix or parameter that one tensor fills."""
    return Place(module=module, attribute=attribute, start=0, stop=getattr(module, attribute).shape[0])
