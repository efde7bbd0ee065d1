"""The chain from logits to tokens, for rows of any sequences, in one program whatever the parameters.

Axes: O rows of logits, V vocabulary, S sequences, n the top tokens that are reported.
Padded rows: sequence S (or any outside [0, S)), logits and position arbitrary; their token is V.
"""

import functools

import jax
import jax.numpy as jnp

from ubjax.pytree import pytree
from ubjax.sampling import filters
from ubjax.sampling.constraints import Constraints, constrain
from ubjax.sampling.draw import draw, greedy
from ubjax.sampling.params import SamplingParams
from ubjax.sampling.penalties import LastTokens, penalize
from ubjax.sampling.rows import log_sum_exp, usable
from ubjax.status import Reason, Status
from ubjax.typing import Array, Float, Int32


@pytree
class Sampled:
    """What `sample` gives for O rows.

    logprob and top_logprob: natural logarithms of the softmax of the logits as they came, before biases,
    masks, penalties, filters and temperature, as servers report them. top_token: the n most likely tokens in that
    sense, most likely first, the smaller id first where equal, whether allowed or not.
    Rows without a token (padded, or nothing allowed): token V, logprob -inf.
    """

    token: Int32[Array, " O"]
    logprob: Float[Array, " O"]
    top_token: Int32[Array, "O n"]
    top_logprob: Float[Array, "O n"]
    status: Status


@functools.partial(jax.jit, static_argnames="n_top")
def sample(
    logits: Float[Array, "O V"],
    seq: Int32[Array, " O"],
    pos: Int32[Array, " O"],
    params: SamplingParams,
    constraints: Constraints,
    last: LastTokens,
    *,
    n_top: int = 0,
) -> Sampled:
    """One token for each row of logits; row i belongs to sequence seq[i], its token will take position pos[i].

    In the order of llama.cpp's default chain: logit bias, allowed tokens, penalties over the last N tokens,
    top_k, typical_p, top_p, min_p, temperature, draw. Each filter sees the probabilities of what the ones
    before it left, at temperature 1. A row of temperature 0 (or below the smallest normal float32) takes the
    most likely token after the penalties, the smallest id where several are; filters do not apply to it. If
    all rows are of that kind, nothing but that is computed.

    A row depends on its own logits, position and sequence only. NaN logits are never taken. A row that has
    nothing to take gets token V, and the first such row is in the status (NOTHING_ALLOWED, where: its
    sequence); the other rows have their tokens all the same. The caller enters the tokens into `last` with
    `accept`.

    Raises ValueError while tracing for an n_top outside [0, V], words that are not those of V tokens, and arrays
    that differ in S.
    """
    n_vocab = logits.shape[1]
    if not 0 <= n_top <= n_vocab:
        raise ValueError(f"n_top is {n_top}, a number in [0, {n_vocab}] is needed")
    _same_size(params, constraints, last)
    raw, seq = usable(logits), jnp.asarray(seq)
    row, own, window = jax.tree.map(
        lambda rows: jnp.asarray(rows).at[seq].get(mode="clip"), (params, constraints, last.token)
    )
    valid = (seq >= 0) & (seq < last.count.shape[0])
    x = penalize(constrain(raw, own), window, row)
    possible = jnp.any(x > -jnp.inf, axis=1)
    hot = valid & possible & (row.temperature >= jnp.finfo(jnp.float32).tiny)
    drawn = jax.lax.cond(
        jnp.any(hot), _filter_and_draw, lambda *_: jnp.zeros_like(seq), x, row, hot, jnp.asarray(pos)
    )
    token = jnp.where(valid & possible, jnp.where(hot, drawn, greedy(x)), n_vocab)
    total = log_sum_exp(raw)
    top, top_token = jax.lax.top_k(raw, n_top)
    stuck = valid & ~possible
    where = seq[jnp.argmax(stuck)]
    return Sampled(
        token=token,
        logprob=_minus(
            raw.at[jnp.arange(len(seq)), token].get(mode="fill", fill_value=-jnp.inf), total[:, 0]
        ),
        top_token=top_token.astype(jnp.int32),
        top_logprob=_minus(top, total),
        status=Status.of(Reason.NOTHING_ALLOWED, where, 0, 1).when(jnp.any(stuck)),
    )


def _same_size(params: SamplingParams, constraints: Constraints, last: LastTokens) -> None:
    found = params.seed.shape[0], constraints.allowed.shape[0], last.count.shape[0]
    if len(set(found)) > 1:
        raise ValueError(
            "params, constraints and last have rows for {}, {} and {} sequences, as many in each are needed".format(
                *found
            )
        )


def _filter_and_draw(
    x: Float[jax.Array, "O V"], row: SamplingParams, hot: jax.Array, pos: Int32[jax.Array, " O"]
) -> Int32[jax.Array, " O"]:
    """Drawn tokens of the hot rows; the filters of the others are switched off, their tokens arbitrary."""
    kept = filters.top_k(x, jnp.where(hot, row.top_k, 0))
    kept = filters.typical(kept, jnp.where(hot, row.typical_p, 1))
    kept = filters.top_p(kept, jnp.where(hot, row.top_p, 1))
    kept = filters.min_p(kept, jnp.where(hot, row.min_p, 0))
    return draw(kept, jnp.where(hot, row.temperature, 1), row.seed, pos)


def _minus(x: Float[jax.Array, "*n"], total: Float[jax.Array, "*m"]) -> Float[jax.Array, "*n"]:
    """Log-probabilities; -inf stays -inf in a row that is nothing else."""
    return jnp.where(x == -jnp.inf, x, x - total)
