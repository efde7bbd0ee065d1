"""Matrices as the tests use them: all of their rows, their product as a program, and what programs take."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ubjax.models.matrix import Matrix


def every_row(matrix: Matrix) -> np.ndarray:
    """The whole matrix [out, in]."""
    return np.asarray(matrix.rows(np.arange(matrix.shape[0], dtype=np.int32)))


@jax.jit
def product(split, x):
    """Rows of x times the matrix that was split."""
    return nnx.merge(*split)(x)


def temporary_bytes(matrices: Sequence[Matrix], n_rows: int) -> int:
    """The larger of two programs': a step through the matrices, the first one the table of embeddings; ten steps."""
    splits = [nnx.split(matrix) for matrix in matrices]
    states = [state for _, state in splits]

    def step(states, ids):
        table, *layers = (
            nnx.merge(graphdef, state) for (graphdef, _), state in zip(splits, states, strict=True)
        )
        x = table.rows(ids)
        for layer in layers:
            x = x + layer(x)
        return jnp.argmax(table(x[:1]), axis=1).astype(jnp.int32) + ids

    def loop(states, ids):
        return jax.lax.fori_loop(0, 10, lambda _, ids: step(states, ids), ids)

    programs = [
        jax.jit(program).lower(states, np.zeros(n_rows, np.int32)).compile() for program in (step, loop)
    ]
    return max(program.memory_analysis().temp_size_in_bytes for program in programs)
