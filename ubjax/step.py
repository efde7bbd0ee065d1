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

from ubjax.config import MemoryConfig
from ubjax.control import Staged
from ubjax.memory.kv import KV
from ubjax.memory.mask import attention_mask, cell_valid
from ubjax.models.attention import CellAccess
from ubjax.models.decoder import Decoder
from ubjax.typing import Array, Float


def cell_access(staged: Staged, n_kv: int, memory: MemoryConfig) -> CellAccess:
    """Where the staged rows keep their K and V and which of the first n_kv cells they see; pure, to be traced."""
    ubatch, bucket = staged.ubatch, staged.ubatch.bucket
    block = jnp.arange(bucket.n_rows, dtype=jnp.int32) // bucket.n_block_rows
    stream = jnp.zeros_like(block) if memory.unified else staged.first_stream + block
    return CellAccess(
        slot=staged.slot,
        stream=stream,
        first_stream=staged.first_stream,
        mask=attention_mask(staged.cells, ubatch, n_kv, memory, staged.first_stream),
        valid=cell_valid(staged.cells, bucket.n_blocks, n_kv, memory, staged.first_stream),
    )


@functools.cache
def step_program(graphdef: nnx.GraphDef[Decoder], treedef: Any, memory: MemoryConfig) -> Callable[..., Any]:
    """The jitted step of all models with this structure: (leaves, kv, staged) -> (logits [O, V], kv); kv is donated."""

    def step(leaves: tuple[Array, ...], kv: KV, staged: Staged) -> tuple[jax.Array, KV]:
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        return model(staged.ubatch, kv, cell_access(staged, kv.n_cells, memory))

    return jax.jit(step, donate_argnums=1)


class Step:
    """The step of one model over one memory, on the device of the model's weights.

    `program(leaves, kv, staged)` is the jitted function, to be lowered or put into a larger program.
    """

    def __init__(self, model: Decoder, memory: MemoryConfig):
        graphdef, state = nnx.split(model)
        leaves, treedef = jax.tree.flatten(state)
        (self.device,) = leaves[0].devices()
        self.leaves = tuple(jax.device_put(leaves, self.device))
        self.program = step_program(graphdef, treedef, memory)
        self._memory, self._config = memory, model.config

    def new_kv(self, n_cells: int, dtype: Any = jnp.float32) -> KV:
        """Zeroed K/V of `n_cells` cells a stream on the model's device."""
        with jax.default_device(self.device):
            kv = KV.zeros(
                self._memory,
                n_layers=self._config.n_layers,
                n_cells=n_cells,
                n_heads=self._config.n_kv_heads,
                head_dim=self._config.head_dim,
                dtype=dtype,
            )
        return jax.device_put(kv, self.device)

    def __call__(self, kv: KV, staged: Staged) -> tuple[Float[jax.Array, "O V"], KV]:
        """Logits of the staged ubatch's output rows, and K/V with its rows; the given kv is gone afterwards."""
        # One program staged it all. Putting it where it already lies would cost a fourth of a millisecond.
        if staged.slot.devices() != {self.device}:
            staged = jax.device_put(staged, self.device)
        return self.program(self.leaves, kv, staged)
