"""Encoding: a batch of whole sequences through an encoder; plan and step as jitted programs. No cache."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.batch import Batch
from ubjax.config import BatchConfig
from ubjax.models.encoder import Encoder
from ubjax.pytree import pack, pytree
from ubjax.ragged import first_seq
from ubjax.split.plan import SplitPlan
from ubjax.split.whole import split_whole
from ubjax.status import Reason, Status
from ubjax.typing import I32, Array, Float, Int32
from ubjax.ubatch import Ubatch
from ubjax.validate import validate


@pytree
class EncodePlan:
    """How a batch is packed; `longest` [T] is the length of the longest sequence of each ubatch."""

    plan: SplitPlan
    longest: Int32[Array, " T"]
    status: Status


@functools.partial(jax.jit, static_argnames="config")
def plan_encode(
    batch: Batch, n_ubatch: I32, config: BatchConfig
) -> tuple[EncodePlan, Int32[jax.Array, " packed"]]:
    """Validate a batch and pack its sequences; returns that, and the same packed for the host.

    Status: what `validate` finds, SEQ_TOO_LONG for the first sequence of more than n_ubatch tokens, SPLIT_FAILED for
    a token of several sequences.
    """
    none = jnp.full(config.n_seq_max, -1, jnp.int32)
    plan = split_whole(batch, n_ubatch)
    capacity = batch.token.shape[0]
    rows = jnp.arange(capacity, dtype=jnp.int32)
    n_tokens, n_groups = jnp.asarray(batch.n_tokens), 32 * batch.seq.shape[1]
    own = jnp.where(rows < n_tokens, first_seq(batch.seq), n_groups)
    size = jnp.zeros(n_groups, jnp.int32).at[own].add(1, mode="drop")
    long = size > n_ubatch
    at = jnp.argmax(long)
    status = validate(batch, none, none, config)
    status = status.merge(Status.of(Reason.SEQ_TOO_LONG, at, size[at], n_ubatch).when(jnp.any(long)))
    placed = jnp.zeros(capacity, bool).at[plan.order].set(True, mode="drop")
    missing = ~placed & (rows < n_tokens)
    failed = Status.of(Reason.SPLIT_FAILED, jnp.argmax(missing), plan.n_used, n_tokens)
    status = status.merge(failed.when(jnp.any(missing)))
    ubatch = jnp.searchsorted(plan.offset[1:], rows, side="right")  # of each place
    lengths = size.at[own.at[plan.order].get(mode="clip")].get(mode="clip")
    longest = jnp.zeros(capacity, jnp.int32).at[jnp.where(rows < plan.n_used, ubatch, capacity)]
    found = EncodePlan(plan=plan, longest=longest.max(lengths, mode="drop"), status=status)
    return found, pack(found)


@functools.cache
def encode_program(graphdef: nnx.GraphDef[Encoder], treedef: Any) -> Callable[..., Any]:
    """The jitted encoders of this structure: (leaves, ubatch, span) -> rows [R, E]; span is static."""

    def encode(leaves: tuple[Array, ...], ubatch: Ubatch, span: int) -> jax.Array:
        return nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))(ubatch, span)

    return jax.jit(encode, static_argnums=2)


@functools.cache
def rank_program(graphdef: nnx.GraphDef[Encoder], treedef: Any) -> Callable[..., Any]:
    """The jitted classification heads of this structure: (leaves, first rows [n, E]) -> labels [n, L]."""

    def rank(leaves: tuple[Array, ...], rows: Float[Array, "n E"]) -> jax.Array:
        return nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves)).rank(rows)

    return jax.jit(rank)


class EncodeStep:
    """The programs of one encoder, on the device of its weights. `has_head`: whether it can rank."""

    def __init__(self, model: Encoder):
        graphdef, state = nnx.split(model)
        leaves, treedef = jax.tree.flatten(state)
        (self.device,) = leaves[0].devices()
        self.leaves = tuple(jax.device_put(leaves, self.device))
        self.program = encode_program(graphdef, treedef)
        self.rank_program = rank_program(graphdef, treedef)
        self.has_head = model.classifier is not None

    def __call__(self, ubatch: Ubatch, span: int) -> Float[jax.Array, "R E"]:
        """The rows of a ubatch whose longest sequence has at most `span` tokens."""
        return self.program(self.leaves, jax.device_put(ubatch, self.device), span)

    def rank(self, rows: Any) -> Float[jax.Array, "n L"]:
        """Labels from the first rows of sequences."""
        return self.rank_program(self.leaves, jax.device_put(rows, self.device))
