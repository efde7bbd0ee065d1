"""Ragged arrays in fixed shapes: sequence-set bit words, segment ends, drop-index scatters.

A sequence set is W uint32 words, bit s % 32 of word s // 32 for sequence s.
"""

import jax
import jax.numpy as jnp

from ubjax.typing import Array, Bool, Int32, UInt32


def first_seq(seq: UInt32[Array, "*n W"]) -> Int32[jax.Array, "*n"]:
    """The smallest sequence id of each set; 32 * W for an empty set."""
    seq = jnp.asarray(seq)
    n_words = seq.shape[-1]
    low = seq & (~seq + jnp.uint32(1))  # the lowest set bit alone
    bit = jnp.where(seq == 0, 32 * n_words, 31 - jax.lax.clz(low).astype(jnp.int32))
    ids = bit + 32 * jax.lax.broadcasted_iota(jnp.int32, seq.shape, seq.ndim - 1)
    return jnp.min(jnp.where(seq == 0, 32 * n_words, ids), axis=-1)


def count_seqs(seq: UInt32[Array, "*n W"]) -> Int32[jax.Array, "*n"]:
    """How many sequences each set holds."""
    return jnp.sum(jax.lax.population_count(jnp.asarray(seq)), axis=-1, dtype=jnp.int32)


def set_of(seq_id: Int32[Array, "*n"], n_words: int) -> UInt32[jax.Array, "*n {n_words}"]:
    """The set that holds one sequence; the empty set for an id outside [0, 32 W)."""
    seq_id = jnp.asarray(seq_id)
    shape = (*seq_id.shape, n_words)
    word = seq_id[..., None] - 32 * jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    inside = (word >= 0) & (word < 32)
    return jnp.where(inside, jnp.uint32(1) << jnp.where(inside, word, 0).astype(jnp.uint32), jnp.uint32(0))


def has_seq(seq: UInt32[Array, "*n W"], seq_id: Int32[Array, ""] | int) -> Bool[jax.Array, "*n"]:
    """Whether each set holds sequence `seq_id` (False for an id outside the words)."""
    member = set_of(jnp.asarray(seq_id, jnp.int32), seq.shape[-1])
    return jnp.any((jnp.asarray(seq) & member.reshape((1,) * (seq.ndim - 1) + (-1,))) != 0, axis=-1)
