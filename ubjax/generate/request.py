"""Requests: what is wanted of one prompt, checked before any work. Plain values on the host."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ubjax.config import as_integer
from ubjax.sampling import Constraints, SamplingParams

N_BIAS = 16  # room for logit biases of a sequence; it selects a program, so it grows in powers of two


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the tokens of an output are chosen; the default is greedy. Ranges as for `SamplingParams.of`.

    temperature (0: greedy, the filters do not apply), top_k (0: off), top_p, typical_p (1: off), min_p (0:
    off), repeat_penalty (1: off), presence_penalty and frequency_penalty (0: off) over the last 64 tokens,
    prompt included. seed: output i of a prompt draws with seed + i; equal seeds and equal prompts give equal
    tokens whatever runs beside them. logit_bias: token -> what is added to its logit, -inf bans it. allowed:
    the only tokens that may be taken, None allows all.

    Raises ValueError that names the parameter.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    allowed: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self.params()

    def params(self, output: int = 0) -> SamplingParams:
        """The parameters of one sequence (S = 1) that draws output number `output`."""
        constraints = ("logit_bias", "allowed")
        values = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in constraints
        }
        params = SamplingParams.of(**values)
        seed = np.asarray((np.asarray(params.seed, np.uint64) + output) % 2**32, np.uint32)
        return dataclasses.replace(params, seed=seed)

    def constraints(self, n_vocab: int, n_bias: int = N_BIAS) -> Constraints:
        """The constraints of one sequence (S = 1); ValueError for tokens outside the vocabulary or none left."""
        made = Constraints.of(n_vocab, n_bias=n_bias, bias=self.logit_bias, allowed=self.allowed)
        banned = {token for token, bias in self.logit_bias.items() if bias == -np.inf}
        if banned and not set(range(n_vocab) if self.allowed is None else self.allowed) - banned:
            raise ValueError(
                f"logit_bias bans each of the allowed tokens ({len(banned)} banned), 1 must be left"
            )
        return made

    @property
    def n_bias(self) -> int:
        """Room that the biases need: 16 or the next power of two."""
        return max(N_BIAS, 1 << max(len(self.logit_bias) - 1, 0).bit_length())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt and what is wanted of it.

    ids: the prompt. max_tokens: of each output. stop: strings that end the text, they are not part of it.
    stop_tokens: tokens that end an output, they are not part of it. n: outputs, each with its own seed.
    logprobs: None, or the number of most likely tokens to report beside the chosen one. context_shift: an output that
    has filled the context goes on without the older half of it, the first n_keep tokens excepted.
    """

    ids: tuple[int, ...]
    sampling: Sampling = Sampling()
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    n: int = 1
    logprobs: int | None = None
    context_shift: bool = False
    n_keep: int = 0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "n"):
            if as_integer(getattr(self, name), name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if as_integer(self.n_keep, "n_keep") < 0:
            raise ValueError(f"n_keep is {self.n_keep}, at least 0 is needed")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"logprobs is {self.logprobs}, None or at least 0 is needed")
        if "" in self.stop:
            raise ValueError("a stop string has 0 characters, at least 1 is needed")

    def check(self, n_vocab: int) -> None:
        """ValueError unless all that concerns the vocabulary lies in it (the prompt is not looked at)."""
        self.sampling.constraints(n_vocab, self.sampling.n_bias)
        for token in self.stop_tokens:
            if not 0 <= token < n_vocab:
                raise ValueError(f"stop_tokens names token {token}, a token in [0, {n_vocab}) is needed")
        if (self.logprobs or 0) > n_vocab:
            raise ValueError(f"logprobs is {self.logprobs}, at most {n_vocab} tokens are there to report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """A prompt that can't be taken, in the place of its request; `error` is the one sentence that says why."""

    ids: tuple[int, ...]
    error: str
    n: int = 1
