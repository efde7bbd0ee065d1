"""Random requests of every kind, and a tokenizer for models that have none; for `soak.py`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ubjax.generate import Request, Sampling

KINDS = (
    {},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "min_p": 0.05, "typical_p": 0.9},
    {"temperature": 0.9, "repeat_penalty": 1.2, "presence_penalty": 0.2, "frequency_penalty": 0.1},
    {"repeat_penalty": 1.3},
)


class Letters:
    """A tokenizer of one character a token, and no token that ends a text."""

    eog_ids: frozenset[int] = frozenset()

    def encode(self, text: str, /) -> list[int]:
        """The ids of a text."""
        return [ord(letter) - 0x4E00 for letter in text]

    def stream(self) -> "Letters":
        """Itself: it holds nothing back."""
        return self

    def feed(self, ids: Sequence[int], /) -> str:
        """The text of some ids."""
        return "".join(chr(0x4E00 + i) for i in ids)

    def flush(self) -> str:
        """Nothing."""
        return ""


class Traffic:
    """Random requests for contexts of some cells."""

    def __init__(self, rng: np.random.Generator, n_vocab: int, cells: int):
        self.rng, self.n_vocab, self.cells = rng, n_vocab, cells
        self._common = self._ids(cells // 4)

    def _ids(self, n: int) -> list[int]:
        return self.rng.integers(1, self.n_vocab, n).tolist()

    def request(self, *, greedy: bool) -> Request:
        """A request; some begin alike, some are longer than the context will hold."""
        rng, cells = self.rng, self.cells
        ids = self._common[: rng.integers(0, cells // 4)] if rng.random() < 0.5 else []
        ids = [*ids, *self._ids(int(rng.integers(1, cells // 2)))]
        shifts = greedy and rng.random() < 0.4
        options: dict[str, Any] = dict(KINDS[0 if greedy else rng.integers(len(KINDS))])
        if not greedy and rng.random() < 0.2:
            options["logit_bias"] = {t: float(rng.choice([-np.inf, 2.0])) for t in self._ids(5)}
        if not greedy and rng.random() < 0.1:
            options["allowed"] = sorted(set(self._ids(60)))
        return Request(
            ids=tuple(ids),
            sampling=Sampling(**options, seed=int(rng.integers(2**31))),
            max_tokens=int(rng.integers(2 * cells, 3 * cells) if shifts else rng.integers(1, cells)),
            stop_tokens=frozenset(self._ids(int(rng.integers(0, self.n_vocab // 60 + 1)))[:16]),
            n=int(rng.choice([1, 1, 1, 2])),
            logprobs=0,
            context_shift=shifts,
        )
