"""Step: one ubatch through the model as one jitted program per bucket. Donation of K/V lives here.

The module is split once, outside the loop: a call dispatches a flat tuple of arrays. Models with the same
configuration share the program.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.control import Staged
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.kv import KV, AllKV, copy_streams
from ubjax.memory.mask import attention_mask, cell_valid
from ubjax.memory.rows import put_rows
from ubjax.models.attention import CellAccess
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder
from ubjax.typing import Array, Float


def cell_access(staged: Staged, n_kv: tuple[int, ...], caches: Caches) -> tuple[CellAccess, ...]:
    """Where the staged rows keep their K and V and which of the first n_kv cells they see, for each cache; pure."""
    ubatch, bucket = staged.ubatch, staged.ubatch.bucket
    block = jnp.arange(bucket.n_rows, dtype=jnp.int32) // bucket.n_block_rows
    stream = jnp.zeros_like(block) if caches[0].unified else staged.first_stream + block
    return tuple(
        CellAccess(
            slot=slot,
            stream=stream,
            first_stream=staged.first_stream,
            mask=attention_mask(cells, ubatch, n, config, staged.first_stream, causal=staged.causal),
            valid=cell_valid(cells, bucket.n_blocks, n, config, staged.first_stream),
        )
        for slot, cells, n, config in zip(staged.slot, staged.cells, n_kv, caches, strict=True)
    )


def model_step(graphdef: nnx.GraphDef[Decoder], treedef: Any, caches: Caches) -> Callable[..., Any]:
    """The step of all models with this structure, pure: (leaves, kv, staged) -> (logits [O, V], kv)."""

    def step(leaves: tuple[Array, ...], kv: AllKV, staged: Staged) -> tuple[jax.Array, AllKV]:
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        return model(staged.ubatch, kv, cell_access(staged, tuple(own.n_cells for own in kv), caches))

    return step


@functools.cache
def step_program(graphdef: nnx.GraphDef[Decoder], treedef: Any, caches: Caches) -> Callable[..., Any]:
    """`model_step` jitted, one program for each bucket and size of K/V; kv is donated."""
    return jax.jit(model_step(graphdef, treedef, caches), donate_argnums=1)


@functools.cache
def hidden_program(graphdef: nnx.GraphDef[Decoder], treedef: Any, caches: Caches) -> Callable[..., Any]:
    """As `step_program`, with every token's hidden row: -> (logits [O, V], rows [R, E], kv)."""

    def step_with_hidden(
        leaves: tuple[Array, ...], kv: AllKV, staged: Staged
    ) -> tuple[jax.Array, jax.Array, AllKV]:
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        access = cell_access(staged, tuple(own.n_cells for own in kv), caches)
        return model.with_hidden(staged.ubatch, kv, access)

    return jax.jit(step_with_hidden, donate_argnums=1)


@functools.cache
def update_program(graphdef: nnx.GraphDef[Decoder], treedef: Any) -> Callable[..., Any]:
    """The jitted `apply_updates` of all models with this structure; kv is donated."""

    def update(leaves: tuple[Array, ...], kv: AllKV, cells: AllCells, n_copies: int, rotate: bool) -> AllKV:
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        return apply_updates(model, kv, cells, n_copies, rotate)

    return jax.jit(update, donate_argnums=1, static_argnums=(3, 4))


def apply_updates(model: Decoder, kv: AllKV, cells: AllCells, n_copies: int, rotate: bool) -> AllKV:
    """Let K and V follow the cells: streams copied (pending seq_cp), then K rows rotated (seq_add, seq_div); pure.

    n_copies: streams to copy, at most; rotate: whether rows have to be rotated (both as `memory.caches.pending`
    says). Afterwards the cells are to be settled (`memory.caches.settle`).
    """
    if n_copies:
        kv = tuple(copy_streams(own, of.src, n_copies) for own, of in zip(kv, cells, strict=True))
    if rotate:
        kv = model.shift_keys(kv, tuple(of.pos - of.k_pos for of in cells))
    return kv


store_rows = jax.jit(put_rows, donate_argnums=0)  # one program for all layers, K and V alike


@functools.partial(jax.jit, static_argnames=("config", "caches", "n_cells", "dtype"))
def zeros(config: DecoderConfig, caches: Caches, n_cells: tuple[int, ...], dtype: Any) -> AllKV:
    """Zeroed K/V of a model, with `n_cells` cells a stream in each cache; every argument is static."""
    return tuple(
        KV.zeros(
            cache,
            n_layers=len(config.cache_layers(c)),
            n_cells=n,
            n_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
        )
        for c, (cache, n) in enumerate(zip(caches, n_cells, strict=True))
    )


class Step:
    """The step of one model over one memory, on the device of the model's weights.

    `pure(leaves, kv, staged)` is the function to put into a larger program, `program` the jitted one.
    """

    def __init__(self, model: Decoder, caches: Caches):
        graphdef, state = nnx.split(model)
        leaves, treedef = jax.tree.flatten(state)
        (self.device,) = leaves[0].devices()
        self.leaves = tuple(jax.device_put(leaves, self.device))
        self.structure = (graphdef, treedef)  # of the model: programs of the same structure are shared
        self.pure = model_step(graphdef, treedef, caches)
        self.program = step_program(graphdef, treedef, caches)
        self.hidden_program = hidden_program(graphdef, treedef, caches)
        self.updates = update_program(graphdef, treedef)
        self.caches, self.config = caches, model.config

    @property
    def model(self) -> Decoder:
        """The model with these weights."""
        graphdef, treedef = self.structure
        return nnx.merge(graphdef, jax.tree.unflatten(treedef, self.leaves))

    def new_kv(self, n_cells: tuple[int, ...], dtype: Any = jnp.float32) -> AllKV:
        """Zeroed K/V on the model's device, with `n_cells` cells a stream in each cache."""
        with jax.default_device(self.device):
            return jax.device_put(zeros(self.config, self.caches, n_cells, jnp.dtype(dtype)), self.device)

    def __call__(self, kv: AllKV, staged: Staged) -> tuple[Float[jax.Array, "O V"], AllKV]:
        """Logits of the staged ubatch's output rows, and K/V with its rows; the given kv is gone afterwards."""
        return self.program(self.leaves, kv, self._placed(staged))

    def with_hidden(
        self, kv: AllKV, staged: Staged
    ) -> tuple[Float[jax.Array, "O V"], Float[jax.Array, "R E"], AllKV]:
        """As a call, with the hidden rows of all tokens beside the logits."""
        return self.hidden_program(self.leaves, kv, self._placed(staged))

    def _placed(self, staged: Staged) -> Staged:
        # One program staged it all. Putting it where it already lies would cost a fourth of a millisecond.
        return (
            staged if staged.first_stream.devices() == {self.device} else jax.device_put(staged, self.device)
        )

    def update(self, kv: AllKV, cells: AllCells, n_copies: int, rotate: bool) -> AllKV:
        """`apply_updates` as one program; the given kv is gone afterwards."""
        return self.updates(self.leaves, kv, jax.device_put(cells, self.device), n_copies, rotate)
