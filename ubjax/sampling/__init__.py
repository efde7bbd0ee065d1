"""Logits to tokens: pure functions of explicit seeds, the same in every loop.

    last, params, constraints    one row for each sequence; the caller carries them
      |
    logits -> bias -> mask -> penalties -> top_k -> typical -> top_p -> min_p -> temperature -> token

`sample` is that chain (in the order of llama.cpp's default one), `greedy` its shortest form.
"""

from ubjax.sampling.constraints import Constraints, pack_allowed
from ubjax.sampling.draw import greedy, token_key
from ubjax.sampling.params import SamplingParams, set_sequence
from ubjax.sampling.penalties import LastTokens, accept
from ubjax.sampling.sample import Sampled, sample

__all__ = [
    "Constraints",
    "LastTokens",
    "Sampled",
    "SamplingParams",
    "accept",
    "greedy",
    "pack_allowed",
    "sample",
    "set_sequence",
    "token_key",
]
