"""DecoderConfig: everything that selects a decoder's program, frozen and hashable; weights are data."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ubjax.config import SwaType

ARCHITECTURES = ("llama",)
# Projections that may have a bias, by llama.cpp's names.
BIASED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and constants of a decoder.

    `rope_dim` values of a head of `head_dim` are rotated, by angles of base `rope_theta`, divided by learned factors
    if `rope_factors`. `tie_embeddings`: the head is the embedding table. `biases`: the projections that have one.
    `n_ctx_train` is in tokens. The layers marked in `swa_layers` see `n_swa` positions (see `SwaType`).
    Raises ValueError for sizes that can't be.
    """

    architecture: str = "llama"
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    rope_dim: int
    rope_theta: float = 10000.0
    rope_factors: bool = False
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    biases: tuple[str, ...] = ()
    n_swa: int = 0
    swa_type: SwaType = SwaType.NONE
    swa_layers: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"the architecture {self.architecture!r} is not known, one of {', '.join(ARCHITECTURES)} is needed"
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and value < 1 and field.name != "n_swa":
                raise ValueError(f"{field.name} is {value}, at least 1 is needed")
            if field.type is float and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name} is {value}, a finite number above 0 is needed")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} heads can't share {self.n_kv_heads} key heads, a divisor is needed"
            )
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ValueError(
                f"rope_dim is {self.rope_dim}, an even number up to head_dim {self.head_dim} is needed"
            )
        for name in self.biases:
            if name not in BIASED:
                raise ValueError(f"{name!r} has no bias, one of {', '.join(BIASED)} is needed")

        if self.swa_layers and len(self.swa_layers) != self.n_layers:
            raise ValueError(
                f"swa_layers has {len(self.swa_layers)} entries, one for each of {self.n_layers} is needed"
            )
        if any(self.swa_layers) != (self.swa_type is not SwaType.NONE) or (self.n_swa > 0) != any(
            self.swa_layers
        ):
            raise ValueError(
                f"n_swa is {self.n_swa} with window type {self.swa_type.value} and {sum(self.swa_layers)} layers of "
                "it: all or none are needed"
            )

    @property
    def n_caches(self) -> int:
        """1, or 2 when some layers attend through a window: a full cache and a window cache."""
        return 2 if any(self.swa_layers) else 1

    def cache_layers(self, cache: int) -> tuple[int, ...]:
        """The layers whose K and V are in a cache (0: full, 1: window), in order."""
        return tuple(
            i for i in range(self.n_layers) if (bool(self.swa_layers) and self.swa_layers[i]) == (cache == 1)
        )

    @property
    def layer_places(self) -> tuple[tuple[int, int], ...]:
        """For each layer its cache and its place among that cache's layers."""
        where = {i: (c, place) for c in range(2) for place, i in enumerate(self.cache_layers(c))}
        return tuple(where[i] for i in range(self.n_layers))

    @property
    def n_groups(self) -> int:
        """G: query heads that share a key head."""
        return self.n_heads // self.n_kv_heads

    @classmethod
    def from_gguf(cls, hyper: Mapping[str, Any]) -> "DecoderConfig":
        """The configuration of a file's hyperparameters, under llama.cpp's names (`loaders.hyperparameters`).

        Raises ValueError for a key that is missing, sizes that can't be, and what this decoder can't compute:
        scaled positions, or values of another width than keys.
        """
        try:
            n_embd, n_heads = hyper["embedding_length"], hyper["head_count"]
            head_dim = hyper.get("key_length", n_embd // n_heads)
            optional = hyper.get("optional_tensors", ())
            sizes = {
                "architecture": hyper["architecture"],
                "n_layers": hyper["block_count"],
                "n_embd": n_embd,
                "n_ff": hyper["feed_forward_length"],
                "n_heads": n_heads,
                "n_kv_heads": hyper.get("head_count_kv", n_heads),
                "head_dim": head_dim,
                "n_vocab": hyper["vocab_size"],
                "n_ctx_train": hyper["context_length"],
                "rope_dim": hyper.get("rope_dimension_count", head_dim),
                "rope_theta": hyper.get("rope_freq_base", 10000.0),
                "norm_eps": hyper["layer_norm_rms_epsilon"],
                "tie_embeddings": hyper["tie_embeddings"],
            }
        except KeyError as error:
            raise ValueError(f"the hyperparameter {error.args[0]!r} is missing") from None
        if hyper.get("rope_scaling") is not None:
            raise ValueError(f"positions scaled by {hyper['rope_scaling']} are not supported, none is needed")
        if hyper.get("value_length", head_dim) != head_dim:
            raise ValueError(f"value_length is {hyper['value_length']}, key_length {head_dim} is needed")
        biases = tuple(name for name in BIASED if f"{name}.bias" in optional)
        return cls(**sizes, biases=biases, rope_factors="rope_freqs.weight" in optional)
