"""DecoderConfig: everything that selects a decoder's program, frozen and hashable; weights are data."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ubjax.config import SwaType
from ubjax.models.layers import ACTIVATIONS
from ubjax.pictures.wording import amount

GEMMA = {"post_norms": True, "activation": "gelu", "scale_embd": True}
# What an architecture fixes besides its sizes, by llama.cpp's names of architectures.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2vl": {},
    "qwen3": {"qk_norm": True},
    "phi3": {},
    "gemma2": GEMMA,
    "gemma3": GEMMA | {"qk_norm": True, "rope_scale_swa": 1.0},
}
MROPE = ("qwen2vl",)  # architectures whose rows have several positions
# Projections that may have a bias, by llama.cpp's names.
BIASED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and constants of a decoder; `architecture` is a name, what is computed the other fields say.

    Positions: `rope_dim` values of a head of `head_dim` are rotated, by angles of base `rope_theta` times `rope_scale`,
    divided by learned factors if `rope_factors`. Window layers have a base and a scale of their own where
    `rope_theta_swa` and `rope_scale_swa` aren't None. `rope_sections` (M-RoPE): how many of the rope_dim / 2 pairs turn
    by each of a row's positions, 3 or 4 of them; empty: a row has one position.

    Windows: the layers that `swa_layers` marks attend a window of `n_swa` positions, masked by `swa_type`, in a
    cache of their own (empty: no layer does).

    Norms: RMS with `norm_eps`; `qk_norm`: of every head of q and k before the rotation; `post_norms`: of what attention
    and feed-forward add. `scale_embd`: looked-up embeddings are multiplied by sqrt(n_embd); `attn_scale`: q is (None:
    by 1 / sqrt(head_dim)). `attn_softcap` and `logit_softcap`: scores or logits x become cap * tanh(x / cap).

    `activation` of the feed-forward's gate: "silu", or "gelu" in its tanh form. `tie_embeddings`: the head is the
    embedding table. `biases`: the projections that have one. `n_ctx_train` is in tokens. Raises ValueError for sizes
    that can't be.
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
    rope_scale: float = 1.0
    rope_factors: bool = False
    rope_theta_swa: float | None = None
    rope_scale_swa: float | None = None
    rope_sections: tuple[int, ...] = ()
    n_swa: int = 0
    swa_type: SwaType = SwaType.NONE
    swa_layers: tuple[bool, ...] = ()
    norm_eps: float = 1e-5
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    scale_embd: bool = False
    attn_scale: float | None = None
    attn_softcap: float | None = None
    logit_softcap: float | None = None
    tie_embeddings: bool = False
    biases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name("architecture", self.architecture, ARCHITECTURES)
        _check_name("activation", self.activation, ACTIVATIONS)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "n_swa" else 1
            if field.type is int and value < least:
                raise ValueError(f"{field.name} is {value}, at least {least} is needed")
            is_float = field.type is float or field.type == float | None
            if is_float and value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name} is {value}, a finite number above 0 is needed")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} heads can't share {self.n_kv_heads} key heads, a divisor is needed"
            )
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ValueError(
                f"rope_dim is {self.rope_dim}, an even number up to head_dim {self.head_dim} is needed"
            )
        self._check_sections()
        for name in self.biases:
            if name not in BIASED:
                raise ValueError(f"{name!r} has no bias, one of {', '.join(BIASED)} is needed")
        self._check_window()

    def _check_sections(self) -> None:
        if not self.rope_sections:
            return
        known = len(self.rope_sections) in (3, 4) and min(self.rope_sections) >= 0
        if not known or sum(self.rope_sections) != self.rope_dim // 2:
            raise ValueError(
                f"rope_sections are {list(self.rope_sections)}, 3 or 4 numbers of pairs that together are "
                f"rope_dim / 2 = {self.rope_dim // 2} are needed"
            )

    def _check_window(self) -> None:
        if self.swa_layers and len(self.swa_layers) != self.n_layers:
            found = amount(len(self.swa_layers), "entry", "entries")
            raise ValueError(f"swa_layers has {found}, {self.n_layers} (one a layer) or none are needed")
        n = sum(self.swa_layers)
        if not (n > 0) == (self.n_swa > 0) == (self.swa_type is not SwaType.NONE):
            raise ValueError(
                f"n_swa is {self.n_swa} with window type {self.swa_type.value} and {n} layers of it: "
                "all or none are needed"
            )

    @property
    def n_groups(self) -> int:
        """G: query heads that share a key head."""
        return self.n_heads // self.n_kv_heads

    @property
    def n_pos(self) -> int:
        """P: positions of a row, 1 or with M-RoPE 3 or 4."""
        return len(self.rope_sections) or 1

    @property
    def n_caches(self) -> int:
        """1, or 2 when some layers attend through a window: a full cache and a window cache."""
        return 2 if any(self.swa_layers) else 1

    @property
    def layer_caches(self) -> tuple[int, ...]:
        """The cache of each layer: 0 full, 1 window."""
        return tuple(int(window) for window in self.swa_layers) or (0,) * self.n_layers

    def cache_layers(self, cache: int) -> tuple[int, ...]:
        """The layers whose K and V are in a cache (0: full, 1: window), in order."""
        return tuple(i for i, c in enumerate(self.layer_caches) if c == cache)

    def rope(self, cache: int) -> tuple[float, float]:
        """Base and scale of the angles in the layers of this cache."""
        if cache == 0:
            return self.rope_theta, self.rope_scale
        theta = self.rope_theta if self.rope_theta_swa is None else self.rope_theta_swa
        return theta, self.rope_scale if self.rope_scale_swa is None else self.rope_scale_swa

    @classmethod
    def from_hyperparameters(cls, hyper: Mapping[str, Any]) -> "DecoderConfig":
        """The configuration of a file's hyperparameters, under llama.cpp's names (`loaders.hyperparameters`).

        Raises ValueError for a key that is missing, sizes that can't be, and what this decoder can't compute:
        positions scaled otherwise than linearly, or values of another width than keys.
        """
        try:
            n_embd, n_heads = hyper["embedding_length"], hyper["head_count"]
            head_dim = hyper.get("key_length", n_embd // n_heads)
            architecture = hyper["architecture"]
            sizes = {
                "architecture": architecture,
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
                "rope_theta_swa": hyper.get("rope_freq_base_swa"),
                "norm_eps": hyper["layer_norm_rms_epsilon"],
                "attn_scale": hyper.get("attention_scale"),
                "attn_softcap": hyper.get("attn_logit_softcapping"),
                "logit_softcap": hyper.get("final_logit_softcapping"),
                "tie_embeddings": hyper["tie_embeddings"],
            }
        except KeyError as error:
            raise ValueError(f"the hyperparameter {error.args[0]!r} is missing") from None
        if hyper.get("value_length", head_dim) != head_dim:
            raise ValueError(f"value_length is {hyper['value_length']}, key_length {head_dim} is needed")
        optional = hyper.get("optional_tensors", ())
        _check_name("architecture", architecture, ARCHITECTURES)
        return cls(
            **sizes,
            **ARCHITECTURES[architecture],
            **_window(hyper),
            rope_scale=_rope_scale(hyper.get("rope_scaling")),
            rope_sections=tuple(hyper.get("rope_dimension_sections", ())),
            rope_factors="rope_freqs.weight" in optional,
            biases=tuple(name for name in BIASED if f"{name}.bias" in optional),
        )


def _check_name(what: str, name: str, known: Any) -> None:
    if name not in known:
        raise ValueError(f"the {what} {name!r} is not known, one of {', '.join(known)} is needed")


def _window(hyper: Mapping[str, Any]) -> dict[str, Any]:
    layers = tuple(hyper.get("sliding_window_layers", ()))
    if not any(layers):
        return {}
    return {"n_swa": hyper["sliding_window"], "swa_type": SwaType.STANDARD, "swa_layers": layers}


def _rope_scale(scaling: Mapping[str, Any] | None) -> float:
    """What angles are multiplied by."""
    if scaling is None:
        return 1.0
    if scaling["type"] != "linear":
        raise ValueError(
            f"positions scaled by {scaling['type']!r} are not supported, 'linear' or none is needed"
        )
    if scaling.get("attn_factor", 1.0) != 1.0:
        raise ValueError(
            f"rotations scaled by attn_factor {scaling['attn_factor']} are not supported, 1 is needed"
        )
    return 1.0 / scaling["factor"]
