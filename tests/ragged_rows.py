"""Four short sequences, ways to order their tokens, and their logits through an engine."""

import functools
import itertools

import numpy as np

from tests.tiny import CONFIG, tiny_engine
from ubjax import Engine

LENGTHS = (9, 1, 5, 3)
TOKENS = [np.random.default_rng(s).integers(0, CONFIG.n_vocab, n).tolist() for s, n in enumerate(LENGTHS)]
CLOSE = 1e-3  # of logits; the same sums in another order


def rows(order: str) -> list[tuple[int, int]]:
    """(sequence, position) of every token: sequence after sequence, dealt in turn, or shuffled in order."""
    blocks = [[(s, p) for p in range(n)] for s, n in enumerate(LENGTHS)]
    if order == "blocks":
        return [row for block in blocks for row in block]
    if order == "in turn":
        return [row for round_ in itertools.zip_longest(*blocks) for row in round_ if row]
    rng, heads, out = np.random.default_rng(5), [0] * len(LENGTHS), []
    while len(out) < sum(LENGTHS):
        s = int(rng.choice([s for s, n in enumerate(LENGTHS) if heads[s] < n]))
        out.append((s, heads[s]))
        heads[s] += 1
    return out


def logits_of(
    engine: Engine, placed: list[tuple[int, int]], seq_of=lambda s: s
) -> dict[tuple[int, int], np.ndarray]:
    """Decode (sequence, position) rows in one batch, all of them outputs."""
    batch = engine.batch(
        [TOKENS[s][p] for s, p in placed],
        seq_id=[seq_of(s) for s, _ in placed],
        pos=[p for _, p in placed],
        output=[True] * len(placed),
    )
    outputs = engine.decode(batch)
    return {row: outputs.logits(i) for i, row in enumerate(placed)}


@functools.cache
def alone() -> dict[tuple[int, int], np.ndarray]:
    """Every sequence in an engine of its own, token by token."""
    found = {}
    for s in range(len(LENGTHS)):
        engine = tiny_engine()
        for p in range(LENGTHS[s]):
            found |= logits_of(engine, [(s, p)], seq_of=lambda _: 0)
    return found


def close(found: dict[tuple[int, int], np.ndarray]) -> bool:
    """Whether all logits are those of the sequences alone, and the same tokens the most likely."""
    return all(
        np.max(np.abs(logits - alone()[row])) < CLOSE and np.argmax(logits) == np.argmax(alone()[row])
        for row, logits in found.items()
    )
