"""Fingerprint: what tells one model from another, as texts. K and V of one mean nothing to the other."""

import dataclasses
import enum
import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ubjax.models.config import DecoderConfig
from ubjax.models.matrix import Matrix
from ubjax.saving.state import MODEL
from ubjax.typing import Array, Float

SAMPLED = 16  # values of each parameter


def fingerprint(config: DecoderConfig, model: nnx.Module, kv_dtype: str) -> dict[str, str]:
    """Every field of the configuration, the dtype of K and V, and a digest of some weights: a finetune differs there.

    Neither sizes of the cache nor the number of sequences are part of it: a state may be loaded into another cache.
    """
    fields = {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    sample = np.asarray(_sample(model))
    texts = {name: json.dumps(value) for name, value in fields.items()}
    texts |= {"kv_dtype": kv_dtype, "weights": hashlib.blake2b(sample.tobytes(), digest_size=16).hexdigest()}
    return {MODEL + name: text for name, text in texts.items()}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


@jax.jit
def _sample(model: nnx.Module) -> Float[jax.Array, " n"]:
    """The first values of the middle row of every matrix and of every vector, however the matrices are stored."""
    parts = jax.tree.leaves(model, is_leaf=lambda part: isinstance(part, Matrix))
    return jnp.concatenate([_first(part)[:SAMPLED] for part in parts])


def _first(part: Matrix | Array) -> Float[jax.Array, " n"]:
    if isinstance(part, Matrix):
        return part.rows(jnp.asarray([part.shape[0] // 2], jnp.int32))[0]
    return jnp.asarray(part, jnp.float32)
