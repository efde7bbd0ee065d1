"""Which ubatches a traffic gives: its decodes through the real split functions, for many n_ubatch at once.

T  rows of a batch (its capacity)    S  slots    B  decodes of one call    N  values of n_ubatch    K  kinds of decodes
"""

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.analysis.traffic import Traffic
from ubjax.batch import ROW_ID, Batch
from ubjax.buckets import pick_outputs
from ubjax.config import n_words
from ubjax.ladders import BucketLadder, RectangleLadder
from ubjax.ragged import set_of
from ubjax.split import SplitPlan, split_equal, split_seq, split_simple
from ubjax.typing import Bool, Int32

STRATEGIES: Mapping[str, Callable[[Batch, jax.Array], SplitPlan]] = {
    "simple": split_simple,
    "equal": functools.partial(split_equal, sequential=True),
    "seq": split_seq,
}
_DECODES_OF_A_CALL = 64


class UbatchKind(NamedTuple):
    """What a ubatch's program depends on: its rectangle, its output rows, the cells it attends."""

    n_seqs: int
    n_seq_tokens: int
    n_outputs: int
    n_kv: int


class StepShape(NamedTuple):
    """What a step's program depends on: its rectangle of blocks x rows, its output rows, the cells it attends."""

    n_blocks: int
    n_block_rows: int
    n_outputs: int
    n_kv: int

    @property
    def n_rows(self) -> int:
        """R."""
        return self.n_blocks * self.n_block_rows

    def __str__(self) -> str:
        return f"{self.n_blocks}x{self.n_block_rows}|kv {self.n_kv}|out {self.n_outputs}"


ShapeCounts: TypeAlias = collections.Counter[tuple[int, int]]
UbatchCounts: TypeAlias = collections.Counter[UbatchKind]
StepCounts: TypeAlias = collections.Counter[StepShape]


def check_strategy(name: str) -> None:
    """Raise ValueError unless there is a strategy of this name."""
    if name not in STRATEGIES:
        raise ValueError(f"the strategy is {name!r}, one of {', '.join(STRATEGIES)} is needed")


def count_shapes(traffic: Traffic, n_ubatch: Sequence[int], strategy: str) -> dict[int, ShapeCounts]:
    """For each n_ubatch how many ubatches of each shape (n_seqs, n_seq_tokens) the traffic gives.

    The rows of a split_simple ubatch are one block, 1 x n_tokens, as in its bucket. Decodes with the same pieces are
    split once and counted. Raises ValueError for an unknown strategy, no traffic, or an n_ubatch below 1.
    """
    return {size: shapes_of(counts) for size, counts in count_ubatches(traffic, n_ubatch, strategy).items()}


def shapes_of(counts: UbatchCounts) -> ShapeCounts:
    """The ubatches by their rectangles alone."""
    found = ShapeCounts()
    for kind, count in counts.items():
        found[kind.n_seqs, kind.n_seq_tokens] += count
    return found


def steps_of(counts: UbatchCounts, ladder: RectangleLadder, n_outputs: BucketLadder) -> StepCounts:
    """The ubatches by the programs that they are padded to."""
    found = StepCounts()
    for kind, count in counts.items():
        n_blocks, n_rows = ladder.pick(kind.n_seqs, kind.n_seq_tokens)
        outputs = pick_outputs(n_outputs, kind.n_outputs, n_blocks * n_rows)
        found[StepShape(n_blocks, n_rows, outputs, kind.n_kv)] += count
    return found


def count_ubatches(
    traffic: Traffic, n_ubatch: Sequence[int], strategy: str, n_kv: BucketLadder | None = None
) -> dict[int, UbatchCounts]:
    """For each n_ubatch how many ubatches of each kind the traffic gives, as `count_shapes` with two more numbers.

    n_outputs: rows that ask for logits; all of them for "seq", which is embedding mode. n_kv: the size of K/V when
    the ubatch runs, for a cache that grows along the ladder `n_kv` and never shrinks; unified for "simple", one stream
    for each sequence otherwise (see `Traffic.needed_cells`). Without a ladder it is 0.
    """
    check_strategy(strategy)
    if not n_ubatch or min(n_ubatch) < 1:
        raise ValueError(f"n_ubatch is {list(n_ubatch)}, sizes of at least 1 are needed")
    if not len(traffic):
        raise ValueError("the traffic has no decodes: at least one is needed")
    places, kind = traffic.kinds()
    sizes, size_of = np.zeros(1, np.int64), np.zeros(len(traffic), np.int64)
    decode, needed = traffic.needed_cells(strategy == "simple")
    if n_kv is not None:
        sizes = np.asarray(n_kv.sizes)
        n_kv.pick(int(needed.max()))  # refuses what is above the top
        size_of = np.searchsorted(sizes, np.maximum.accumulate(needed))
    times = np.zeros((len(places), len(sizes)), np.int64)
    np.add.at(times, (kind[decode], size_of), 1)
    found = {size: UbatchCounts() for size in n_ubatch}
    capacity = 1 << (int(traffic.n_tokens.sum(axis=1).max()) - 1).bit_length()
    for call, blocks, rows, outputs in _split(traffic, places, n_ubatch, strategy, capacity):
        for at, size in enumerate(n_ubatch):
            decode, ubatch = np.nonzero(blocks[:, at])
            n_seqs, n_rows, n_outputs = (
                x[decode, at, ubatch].astype(np.int64) for x in (blocks, rows, outputs)
            )
            shapes = np.stack([n_seqs, n_rows // n_seqs, n_outputs])
            _count(found[size], shapes, times[call[decode]], sizes)
    return found


def _count(found: UbatchCounts, shapes: np.ndarray, times: np.ndarray, sizes: np.ndarray) -> None:
    """Add ubatches (n_seqs, n_seq_tokens, n_outputs) [3, n], each as often as `times` [n, sizes] for a size of K/V."""
    bits = 20  # more rows than any batch has
    keys, at = np.unique(shapes[0] << 2 * bits | shapes[1] << bits | shapes[2], return_inverse=True)
    totals = np.zeros((len(keys), len(sizes)), np.int64)
    np.add.at(totals, at, times)
    mask = (1 << bits) - 1
    for row, column in zip(*np.nonzero(totals), strict=True):
        key = int(keys[row])
        kind = UbatchKind(key >> 2 * bits, key >> bits & mask, key & mask, int(sizes[column]))
        found[kind] += int(totals[row, column])


def _split(
    traffic: Traffic, places: np.ndarray, n_ubatch: Sequence[int], strategy: str, capacity: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Kinds of decodes [B], and of each of their ubatches the blocks, rows and outputs [B, N, T], call by call."""
    order = np.argsort(traffic.n_tokens[places].sum(axis=1), kind="stable")  # alike many ubatches in a call
    limits = jnp.asarray(n_ubatch, jnp.int32)
    for begin in range(0, len(order), _DECODES_OF_A_CALL):
        call = order[begin : begin + _DECODES_OF_A_CALL]
        rows = np.resize(places[call], _DECODES_OF_A_CALL)  # the last call repeats its decodes to be as large
        pieces = [jnp.asarray(x[rows]) for x in (traffic.seq_id, traffic.n_tokens, traffic.output)]
        found = jax.device_get(_split_all(*pieces, limits, strategy, capacity))
        yield call, *(x[: len(call)] for x in found)


@functools.partial(jax.jit, static_argnames=("strategy", "capacity"))
def _split_all(
    seq_id: Int32[jax.Array, "B S"],
    n_tokens: Int32[jax.Array, "B S"],
    output: Bool[jax.Array, "B S"],
    n_ubatch: Int32[jax.Array, " N"],
    strategy: str,
    capacity: int,
) -> tuple[Int32[jax.Array, "B N T"], Int32[jax.Array, "B N T"], Int32[jax.Array, "B N T"]]:
    """Blocks, rows and outputs of every ubatch, 0 behind the last: one decode after the other, all n_ubatch at once."""

    def split(pieces: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        batch = batch_of_pieces(*pieces, capacity)

        def shapes(limit: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            plan = STRATEGIES[strategy](batch, limit)
            offset = jnp.asarray(plan.offset)
            rows = offset[1:] - offset[:-1]
            if strategy == "seq":
                return jnp.asarray(plan.n_seqs), rows, rows
            flags = jnp.asarray(batch.output).at[plan.order].get(mode="fill", fill_value=False)
            before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(flags, dtype=jnp.int32)])[offset]
            blocks = jnp.where(plan.equal_seqs, plan.n_seqs, jnp.minimum(plan.n_seqs, 1))
            return blocks, rows, before[1:] - before[:-1]

        return jax.vmap(shapes)(n_ubatch)

    return jax.lax.map(split, (seq_id, n_tokens, output))


def batch_of_pieces(
    seq_id: Int32[jax.Array, " S"],
    n_tokens: Int32[jax.Array, " S"],
    output: Bool[jax.Array, " S"],
    capacity: int,
) -> Batch:
    """The batch of one decode of a Traffic, as far as a split looks at it: tokens and positions are 0.

    seq_id 2 0 (0), n_tokens 3 1 (0), capacity 6     sequences 2 2 2 0 . .     order 3 0 1 2 4 5
    """
    n_slots = seq_id.shape[0]
    width = n_words(n_slots)
    end = jnp.cumsum(n_tokens)
    row = jnp.arange(capacity, dtype=jnp.int32)
    valid = row < end[-1]
    piece = jnp.cumsum(jnp.zeros(capacity, jnp.int32).at[end].add(1, mode="drop"))
    piece = jnp.minimum(piece, n_slots - 1)
    rows_of = jnp.zeros(32 * width, jnp.int32).at[seq_id].add(n_tokens)
    begin_of = jnp.cumsum(rows_of) - rows_of  # of a sequence in `order`; a decode has one piece of each
    place = begin_of[seq_id[piece]] + row - (end - n_tokens)[piece]
    return Batch(
        token=jnp.zeros(capacity, jnp.int32),
        embd=jnp.zeros((capacity, 0), jnp.float32),
        state=jnp.zeros((capacity, 0), jnp.float32),
        type=jnp.where(valid, ROW_ID, 0),
        pos=jnp.zeros((1, capacity), jnp.int32),
        seq=jnp.where(valid[:, None], set_of(seq_id[piece], width), jnp.uint32(0)),
        output=valid & output[piece] & (row + 1 == end[piece]),
        order=row.at[jnp.where(valid, place, row)].set(row),
        n_tokens=end[-1],
    )
