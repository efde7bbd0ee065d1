"""A whole decode as one program: every ubatch of a prepared batch, in one bucket, without the host in between.

    ubatch k      cells with its rows -> mask -> model -> logits of its outputs      lax.while_loop, n_ubatches is data
    logits        [Oall V], a row for each output of the batch, in the batch's order

T rows a batch can hold, O output rows of a ubatch, Oall of the batch, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ubjax.batch import Batch
from ubjax.buckets import Bucket
from ubjax.control import advance, stage
from ubjax.decode_loop import ModelStep
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.init_batch import Prepared
from ubjax.memory.kv import AllKV
from ubjax.models.decoder import Decoder
from ubjax.step import model_step
from ubjax.typing import Array, Float


def decode_whole(
    step: ModelStep,
    cells: AllCells,
    kv: AllKV,
    batch: Batch,
    prepared: Prepared,
    bucket: Bucket,
    caches: Caches,
    *,
    n_vocab: int,
    n_outputs: int,
) -> tuple[Float[jax.Array, "Oall V"], AllKV]:
    """Run all ubatches of a batch that `init_batch` or `plan_decode` has prepared; pure.

    step: K/V and a staged ubatch to logits [O, V] and K/V (`Step.pure` with its leaves). cells: those before the batch,
    with nothing pending; afterwards they are prepared.cells. `bucket`, the one shape of all ubatches, and `n_outputs`
    (Oall) have to hold the plan (`Buckets.whole` picks them), K/V prepared.n_kv_needed cells. Rows of logits beyond
    the batch's outputs are 0. When the status of `prepared` is not OK nothing runs and K/V is the given one.
    """
    output = jnp.asarray(batch.output)
    rank = jnp.where(output, jnp.cumsum(output, dtype=jnp.int32) - 1, n_outputs)
    at = (batch, prepared.plan, prepared.slot)

    def more(carry: tuple[jax.Array, AllCells, AllKV, jax.Array]) -> jax.Array:
        return (prepared.status.code == 0) & (carry[0] < prepared.plan.n_ubatches)

    def one(
        carry: tuple[jax.Array, AllCells, AllKV, jax.Array],
    ) -> tuple[jax.Array, AllCells, AllKV, jax.Array]:
        k, cells, kv, logits = carry
        cells = advance(cells, *at, k, caches)
        staged = stage(cells, *at, k, prepared.causal, bucket, caches)
        rows, kv = step(kv, staged)
        of = staged.ubatch.batch_idx.at[staged.ubatch.out_rows].get(mode="fill", fill_value=output.shape[0])
        to = rank.at[of].get(mode="fill", fill_value=n_outputs)
        return k + 1, cells, kv, logits.at[to].set(rows, mode="drop")

    start = (jnp.asarray(0, jnp.int32), cells, kv, jnp.zeros((n_outputs, n_vocab), jnp.float32))
    _, _, kv, logits = jax.lax.while_loop(more, one, jax.tree.map(jnp.asarray, start))
    return logits, kv


@functools.cache
def whole_program(graphdef: nnx.GraphDef[Decoder], treedef: Any, caches: Caches) -> Callable[..., Any]:
    """`decode_whole` jitted for all models with this structure; kv is donated.

    (leaves, kv, cells, batch, prepared, bucket, n_vocab, n_outputs) -> (logits, kv), the last three static.
    """
    pure = model_step(graphdef, treedef, caches)

    def whole_decode(
        leaves: tuple[Array, ...],
        kv: AllKV,
        cells: AllCells,
        batch: Batch,
        prepared: Prepared,
        bucket: Bucket,
        n_vocab: int,
        n_outputs: int,
    ) -> tuple[jax.Array, AllKV]:
        step, sizes = functools.partial(pure, leaves), {"n_vocab": n_vocab, "n_outputs": n_outputs}
        return decode_whole(step, cells, kv, batch, prepared, bucket, caches, **sizes)

    return jax.jit(whole_decode, donate_argnums=1, static_argnums=(5, 6, 7))
