"""Sampler: the tokens of a decode, drawn on the device; one program for each shape of an output buffer.

    buffer   [O, V]      the logits of one ubatch, padded
    rows     [2, O]      its sequence (S in padding) and the position that its token will take
    packed   [O (2 + 2n)]  token, bits of its logprob, n top tokens, bits of their logprobs: fetched at once

Axes: O rows of logits, V vocabulary, S sequences, n top tokens that are reported.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.generate.decodes import Decodes
from ubjax.generate.request import N_BIAS, Sampling
from ubjax.generate.steps import Drawing, NextToken
from ubjax.outputs import Outputs
from ubjax.programs import Program, device_shapes, host_shapes
from ubjax.pytree import pack
from ubjax.sampling import Constraints, LastTokens, SamplingParams, accept, sample, set_sequence
from ubjax.typing import Array, Float, Int32

N_LAST = 64  # the window of the penalties


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token with its log-probability under the model, and the most likely tokens in its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Parameters, constraints and last tokens of S sequences on `device`.

    n_bias and n_top (the most likely tokens to report) select programs; everything else is data.
    """

    def __init__(self, *, n_seq_max: int, n_vocab: int, n_bias: int, n_top: int, device: Any):
        self._n_seq_max, self._n_vocab = n_seq_max, n_vocab
        self._n_bias, self._n_top = n_bias, n_top
        state = drawing_of(n_seq_max, n_vocab, n_bias)
        self._params, self._constraints, self._last = jax.device_put(state, device)

    def start(self, seq: int, sampling: Sampling, output: int, ids: Sequence[int]) -> None:
        """Give a sequence the parameters of its run; `ids` are all its tokens so far, for the penalties."""
        one = (
            sampling.params(output),
            sampling.constraints(self._n_vocab, self._n_bias),
            LastTokens.of(ids, n_last=N_LAST),
        )
        state = (self._params, self._constraints, self._last)
        self._params, self._constraints, self._last = set_sequence(state, np.int32(seq), one)

    def take(self, outputs: Outputs, owner: Mapping[int, tuple[int, int]]) -> dict[int, TokenLogprob | None]:
        """A token for each output of a decode, by batch index; None where nothing can be chosen.

        owner: batch index -> (sequence, position that the token takes).
        """
        packed = []
        for buffer, ids in outputs.buffers():
            rows = np.full((2, buffer.shape[0]), self._n_seq_max, np.int32)
            rows[:, : len(ids)] = np.asarray([owner[int(i)] for i in ids], np.int32).T
            self._last, result = _take(
                buffer, rows, self._params, self._constraints, self._last, n_top=self._n_top
            )
            packed.append((ids, result))
        return {i: token for ids, result in packed for i, token in self._read(ids, np.asarray(result))}

    def steps(
        self, engine: Decodes, rows: Sequence[NextToken], n_steps: int, *, until_end: bool
    ) -> list[list[TokenLogprob | None]]:
        """The tokens of a loop for each row, in order; None where nothing can be chosen. Errors as `decode_steps`."""
        state = (self._params, self._constraints, self._last)
        steps = engine.decode_steps(rows, n_steps, state, until_end=until_end)
        self._last = steps.last
        return [[self._chosen(token, logprob) for token, logprob in drawn] for drawn in steps.drawn]

    def _chosen(
        self, token: int, logprob: float, top: tuple[tuple[int, float], ...] = ()
    ) -> TokenLogprob | None:
        return TokenLogprob(token=token, logprob=logprob, top=top) if token < self._n_vocab else None

    def _read(self, ids: np.ndarray, packed: np.ndarray) -> list[tuple[int, TokenLogprob | None]]:
        n = self._n_top
        token, logprob, top_token, top_logprob = np.split(packed.reshape(2 + 2 * n, -1), [1, 2, 2 + n])
        logprob, top_logprob = logprob.view(np.float32), top_logprob.view(np.float32)
        found = []
        for r, i in enumerate(ids.tolist()):
            top = tuple(zip(top_token[:, r].tolist(), top_logprob[:, r].tolist(), strict=True))
            found.append((i, self._chosen(int(token[0, r]), float(logprob[0, r]), top)))
        return found


def drawing_of(n_seq_max: int, n_vocab: int, n_bias: int = N_BIAS) -> Drawing:
    """Greedy parameters, no constraints and no last tokens for S sequences, on the host."""
    return (
        SamplingParams.of(n_seq_max),
        Constraints.of(n_vocab, n_seq_max, n_bias=n_bias),
        LastTokens.of(n_seq_max=n_seq_max, n_last=N_LAST),
    )


def sampling_programs(logits: Sequence[Any], *, n_seq_max: int, device: Any) -> list[Program]:
    """The programs of a Sampler on these shapes of logits [O, V], with the usual room for biases and no top tokens."""
    n_vocab = logits[0].shape[1]
    state = device_shapes(drawing_of(n_seq_max, n_vocab), device)
    arguments = state, host_shapes(np.int32(0)), host_shapes(drawing_of(1, n_vocab))
    programs = [Program("set_sequence", "", partial(set_sequence.lower, *arguments))]
    for buffer in logits:
        rows = host_shapes(np.zeros((2, buffer.shape[0]), np.int32))
        lower = partial(_take.lower, buffer, rows, *state, n_top=0)
        programs.append(Program("_take", f"out {buffer.shape[0]}", lower))
    return programs


@partial(jax.jit, static_argnames="n_top")
def _take(
    logits: Float[Array, "O V"],
    rows: Int32[Array, "2 O"],
    params: SamplingParams,
    constraints: Constraints,
    last: LastTokens,
    *,
    n_top: int,
) -> tuple[LastTokens, Int32[jax.Array, " packed"]]:
    """The last tokens after the draw, and what was drawn as [2 + 2n, O], flat."""
    seq, pos = rows[0], rows[1]
    drawn = sample(logits, seq, pos, params, constraints, last, n_top=n_top)
    bits, top_bits = (
        jax.lax.bitcast_convert_type(x, jnp.int32) for x in (drawn.logprob, drawn.top_logprob.T)
    )
    return accept(last, seq, drawn.token), pack((drawn.token, bits, drawn.top_token.T, top_bits))
