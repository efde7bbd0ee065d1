"""What sampling means, token by token in plain Python and float64: no code of the package, no vector tricks.

The filters also say how close the decision was (`slack`): float32 may decide the other way where it is tiny.
"""

import math
from collections.abc import Mapping, Sequence

Kept = tuple[set[int], float]


def probabilities(x: Sequence[float]) -> list[float]:
    top = max(x)
    weight = [math.exp(v - top) for v in x]
    return [w / math.fsum(weight) for w in weight]


def possible(x: Sequence[float]) -> set[int]:
    return {t for t, v in enumerate(x) if v > -math.inf}


def kept_top_k(x: Sequence[float], k: int) -> set[int]:
    ranked = sorted(possible(x), key=lambda t: (-x[t], t))
    return set(ranked[:k] if k else ranked)


def _until(ranked: Sequence[int], p: Sequence[float], target: float, exceed: bool) -> Kept:
    kept, mass, slack = set(), 0.0, math.inf
    for t in ranked:
        kept.add(t)
        mass += p[t]
        slack = min(slack, abs(mass - target) or math.inf)
        if mass > target or (not exceed and mass == target):
            return kept, slack
    return kept, slack


def kept_top_p(x: Sequence[float], p: float) -> Kept:
    if p >= 1:
        return possible(x), math.inf
    ranked = sorted(possible(x), key=lambda t: (-x[t], t))
    return _until(ranked, probabilities(x), p, exceed=False)


def kept_typical(x: Sequence[float], p: float) -> Kept:
    if p >= 1:
        return possible(x), math.inf
    q, tokens = probabilities(x), possible(x)
    entropy = -math.fsum(q[t] * math.log(q[t]) for t in tokens if q[t] > 0)
    top = max(x)
    surprise = {t: top - x[t] - math.log(max(q)) for t in tokens}
    distance = {t: abs(surprise[t] - entropy) for t in tokens}
    kept, slack = _until(sorted(tokens, key=lambda t: (distance[t], t)), q, p, exceed=True)
    gaps = [abs(distance[a] - distance[b]) for a in tokens for b in tokens if x[a] != x[b]]
    return kept, min([slack, *gaps])


def kept_min_p(x: Sequence[float], p: float) -> Kept:
    if p <= 0:
        return possible(x), math.inf
    edge = max(x) + math.log(p)
    return {t for t in possible(x) if x[t] >= edge}, min(abs(v - edge) or math.inf for v in x)


def penalized(
    x: Sequence[float], window: Sequence[int], repeat: float, presence: float, frequency: float
) -> list[float]:
    out = list(x)
    for t in set(window) & set(range(len(x))):
        out[t] = out[t] / repeat if out[t] > 0 else out[t] * repeat
        out[t] -= list(window).count(t) * frequency + presence
    return out


def constrained(x: Sequence[float], bias: Mapping[int, float], allowed: set[int]) -> list[float]:
    return [v + bias.get(t, 0.0) if t in allowed else -math.inf for t, v in enumerate(x)]


def only(x: Sequence[float], kept: set[int]) -> list[float]:
    return [v if t in kept else -math.inf for t, v in enumerate(x)]


def filtered(x: Sequence[float], top_k: int, typical_p: float, top_p: float, min_p: float) -> list[float]:
    x = only(x, kept_top_k(x, top_k))
    x = only(x, kept_typical(x, typical_p)[0])
    x = only(x, kept_top_p(x, top_p)[0])
    return only(x, kept_min_p(x, min_p)[0])


def chi_square(observed: Sequence[int], p: Sequence[float], at_least: float = 5.0) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; rare tokens are pooled until 5 are expected.

    Raises ValueError when a token of probability 0 was observed.
    """
    n = sum(observed)
    if any(o and not q for o, q in zip(observed, p, strict=True)):
        raise ValueError("a token of probability 0 was drawn")
    cells, o_pool, e_pool = [], 0, 0.0
    for o, q in sorted(zip(observed, p, strict=True), key=lambda pair: pair[1]):
        o_pool, e_pool = o_pool + o, e_pool + n * q
        if e_pool >= at_least:
            cells.append((o_pool, e_pool))
            o_pool, e_pool = 0, 0.0
    if e_pool:
        cells[-1] = (cells[-1][0] + o_pool, cells[-1][1] + e_pool)
    return sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1


def critical(degrees: int, z: float = 3.0902) -> float:
    """The value that chi-square exceeds with probability 0.001 (Wilson and Hilferty; z is the normal quantile)."""
    return degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3
