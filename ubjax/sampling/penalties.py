"""Penalties on the last N tokens of each sequence (semantics of llama.cpp's penalties sampler).

    N = 4, three tokens seen, then 9, then 6 (the ring is full and 5 is forgotten)
      token [[5, 7, 5, -1]]  count [3]
      token [[5, 7, 5,  9]]  count [4]
      token [[6, 7, 5,  9]]  count [5]

Only the at most N tokens of the window are read and written in the logits. Axes: S sequences, N window, O rows
of logits, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.pytree import pytree
from ubjax.sampling.params import SamplingParams
from ubjax.sampling.rows import usable
from ubjax.typing import Array, Float, Int32


@pytree
class LastTokens:
    """The last N tokens of each sequence in a ring, prompt included; an empty place holds -1.

    count: tokens seen in all; the next one goes to place count % N, over the oldest. N is a shape: it selects
    a program. N = 0 is a window without anything to penalize.
    """

    token: Int32[Array, "S N"]
    count: Int32[Array, " S"]

    @classmethod
    def of(cls, tokens: Sequence[int] = (), n_seq_max: int = 1, *, n_last: int = 64) -> "LastTokens":
        """The same beginning (a prompt) for each of n_seq_max sequences (host arrays).

        >>> LastTokens.of([1, 2, 3], n_last=2).token  # token i is at place i % 2
        array([[3, 2]], dtype=int32)
        """
        ring = np.full(n_last, -1, np.int32)
        for i in range(max(len(tokens) - n_last, 0), len(tokens)):
            ring[i % n_last] = tokens[i]
        return cls(token=np.tile(ring, (n_seq_max, 1)), count=np.full(n_seq_max, len(tokens), np.int32))


@jax.jit
def accept(last: LastTokens, seq: Int32[Array, " O"], token: Int32[Array, " O"]) -> LastTokens:
    """The window after sequence seq[i] took token[i]; rows with a sequence outside [0, S) change nothing.

    A sequence may stand in one row only (one token a step). A token outside the vocabulary, which `sample` gives
    a row without any, takes a place and is never penalized.
    """
    n_seq_max, n_last = last.token.shape
    if not n_last:
        return last
    seq = jnp.where(jnp.asarray(seq) < 0, n_seq_max, seq)
    place = jnp.asarray(last.count).at[seq].get(mode="clip") % n_last
    return LastTokens(
        token=jnp.asarray(last.token).at[seq, place].set(token, mode="drop"),
        count=jnp.asarray(last.count).at[seq].add(1, mode="drop"),
    )


def penalize(
    x: Float[jax.Array, "O V"], window: Int32[jax.Array, "O N"], params: SamplingParams
) -> Float[jax.Array, "O V"]:
    """Logits with the penalties of each row's window; `params` has one row for each row of `x`.

    A token that is in the window c > 0 times: its logit is divided by repeat_penalty where positive and
    multiplied by it elsewhere, then c * frequency_penalty + presence_penalty is subtracted. -inf stays.
    Entries outside [0, V) are no tokens. The counts cost O * N * N comparisons.
    """
    n_rows, n_vocab = x.shape
    if not window.shape[1]:
        return x
    window = jnp.where((window < 0) | (window >= n_vocab), n_vocab, window)
    count = jnp.sum(window[:, :, None] == window[:, None, :], axis=-1, dtype=jnp.int32)
    row = jnp.arange(n_rows, dtype=jnp.int32)[:, None]
    old = x.at[row, window].get(mode="fill", fill_value=0.0)
    repeat = params.repeat_penalty[:, None]
    new = jnp.where(old > 0, old / repeat, old * repeat)
    new -= count * params.frequency_penalty[:, None] + params.presence_penalty[:, None]
    return x.at[row, window].set(usable(new), mode="drop")  # equal tokens write equal values
