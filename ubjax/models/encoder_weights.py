"""Which tensor of llama.cpp fills which rows of which parameter of an encoder.

layers[0].qkv.weight    rows 0 .. E, E .. 2 E, 2 E .. 3 E    blk.0.attn_q, attn_k, attn_v.weight
pooler, classifier                                           cls, cls.output
"""

from collections.abc import Iterator
from typing import Any

from ubjax.models.weights import Place, whole


def encoder_places(model: Any) -> Iterator[tuple[str, Place]]:
    """Every tensor of the encoder by llama.cpp's name."""
    yield "token_embd.weight", whole(model, "embedding")
    yield "position_embd.weight", whole(model, "positions")
    yield "token_types.weight", whole(model, "types")
    yield from _pair("token_embd_norm", model.norm)
    for name, head in (("cls", model.pooler), ("cls.output", model.classifier)):
        if head is not None:
            yield from _pair(name, head)
    for i, layer in enumerate(model.layers):
        n = layer.config.n_embd
        for part, start in (("attn_q", 0), ("attn_k", n), ("attn_v", 2 * n)):
            for kind in ("weight", "bias"):
                at = Place(module=layer.qkv, attribute=kind, start=start, stop=start + n)
                yield f"blk.{i}.{part}.{kind}", at
        for name, part in (
            ("attn_output", layer.output),
            ("attn_output_norm", layer.attn_norm),
            ("ffn_up", layer.up),
            ("ffn_down", layer.down),
            ("layer_output_norm", layer.ffn_norm),
        ):
            yield from _pair(f"blk.{i}.{name}", part)


def _pair(name: str, part: Any) -> Iterator[tuple[str, Place]]:
    yield f"{name}.weight", whole(part, "weight")
    yield f"{name}.bias", whole(part, "bias")
