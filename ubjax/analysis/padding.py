"""What padding costs: rows, blocks, cells and logits computed for nothing, and their share of the FLOPs.

R = Sb * Lb rows of a padded ubatch, O output rows, C cells of K/V, L layers, H query heads and Hk key heads of width D
"""

import dataclasses
from typing import Any

from ubjax.analysis.shapes import StepCounts, UbatchCounts, count_ubatches, steps_of
from ubjax.analysis.traffic import Traffic
from ubjax.ladders import BucketLadder, RectangleLadder
from ubjax.pictures.wording import amount


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of a decoder that its FLOPs depend on: a gated feed-forward layer of n_ff, a head of n_vocab rows."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}, at least 1 is needed")

    @classmethod
    def of(cls, config: Any) -> "ModelSizes":
        """The sizes of a configuration with these attributes, such as a DecoderConfig."""
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})

    @property
    def row_flops(self) -> int:
        """FLOPs of the matrices of all layers for one row: a multiplication and an addition for each weight."""
        attention = 2 * self.n_embd * (self.n_heads + self.n_kv_heads) * self.head_dim
        return 2 * self.n_layers * (attention + 3 * self.n_embd * self.n_ff)

    @property
    def cell_flops(self) -> int:
        """FLOPs of the attention of all layers for one row and one cell: its part of q k and of p v."""
        return 4 * self.n_layers * self.n_heads * self.head_dim

    @property
    def logits_flops(self) -> int:
        """FLOPs of one row of logits."""
        return 2 * self.n_embd * self.n_vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What ubatches compute: rows of tokens, blocks of sequences, cells that rows attend, rows of logits."""

    tokens: int
    sequences: int
    cells: int
    logits: int

    def __add__(self, other: "Work") -> "Work":
        return Work(
            **{name: value + getattr(other, name) for name, value in dataclasses.asdict(self).items()}
        )

    def __mul__(self, times: int) -> "Work":
        return Work(**{name: value * times for name, value in dataclasses.asdict(self).items()})

    def matmul_flops(self, sizes: ModelSizes) -> int:
        """FLOPs of the matrices, the head's included."""
        return self.tokens * sizes.row_flops + self.logits * sizes.logits_flops

    def attention_flops(self, sizes: ModelSizes) -> int:
        """FLOPs of q k and p v."""
        return self.cells * sizes.cell_flops


NOTHING = Work(tokens=0, sequences=0, cells=0, logits=0)


@dataclasses.dataclass(frozen=True)
class PaddingReport:
    """Real work against the work that padded shapes do. `programs`: the shapes that had to be compiled."""

    real: Work
    padded: Work
    programs: int = 0

    def share(self, what: str) -> float:
        """The share of the computed tokens, sequences, cells or logits that is padding, in [0, 1]."""
        return _padding(getattr(self.real, what), getattr(self.padded, what))

    def flops_share(self, sizes: ModelSizes) -> dict[str, float]:
        """The share of the FLOPs that is padding: of the matmuls, of the attention, and of both together."""
        matmul, attention = (
            (real(sizes), padded(sizes))
            for real, padded in (
                (self.real.matmul_flops, self.padded.matmul_flops),
                (self.real.attention_flops, self.padded.attention_flops),
            )
        )
        return {
            "matmul": _padding(*matmul),
            "attention": _padding(*attention),
            "all": _padding(matmul[0] + attention[0], matmul[1] + attention[1]),
        }

    def __str__(self) -> str:
        real, padded = dataclasses.asdict(self.real), dataclasses.asdict(self.padded)
        parts = (
            f"{name} {real[name]:,} of {padded[name]:,} ({100 * self.share(name):.1f}% padding)"
            for name in real
        )
        return "; ".join(parts) + f"; {amount(self.programs, 'program')}"


def account_padding(
    traffic: Traffic,
    strategy: str,
    ladder: RectangleLadder,
    *,
    n_kv: BucketLadder,
    n_outputs: BucketLadder,
) -> PaddingReport:
    """The padding of a traffic: its ubatches of at most ladder.n_ubatch rows, each padded to its bucket of the ladders.

    Every row of a bucket attends the whole K/V of its stream, n_kv cells; a real row needs those of its sequence up
    to its own position. Strategies and K/V as in `count_ubatches`. Raises ValueError for what does not fit the
    ladders.
    """
    counts = count_ubatches(traffic, [ladder.n_ubatch], strategy, n_kv)[ladder.n_ubatch]
    return padding_of(traffic, counts, steps_of(counts, ladder, n_outputs))


def padding_of(traffic: Traffic, counts: UbatchCounts, steps: StepCounts) -> PaddingReport:
    """The same for a traffic whose ubatches are counted, and padded to these steps."""
    padded = NOTHING
    for step, count in steps.items():
        cells = step.n_rows * step.n_kv
        padded += (
            Work(tokens=step.n_rows, sequences=step.n_blocks, cells=cells, logits=step.n_outputs) * count
        )
    real = Work(
        tokens=traffic.tokens,
        sequences=sum(kind.n_seqs * count for kind, count in counts.items()),
        cells=traffic.cells_seen,
        logits=sum(kind.n_outputs * count for kind, count in counts.items()),
    )
    return PaddingReport(real, padded, len(steps))


def _padding(real: int, padded: int) -> float:
    return 1 - real / padded if padded else 0.0
