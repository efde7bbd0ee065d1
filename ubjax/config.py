"""Frozen, hashable configurations: they select programs, so they hold no arrays."""

import dataclasses
import enum
import operator
from typing import Any

import numpy as np

from ubjax.typing import Choice, Text, Whole

MAX_SEQ = 256  # sequences a memory may know, llama.cpp's LLAMA_MAX_SEQ


class SwaType(enum.Enum):
    """How a sliding window masks position p0 as seen from p1 (W = n_swa)."""

    NONE = "none"
    STANDARD = "standard"  # p1 - p0 >= W
    CHUNKED = "chunked"  # p0 < floor(p1 / W) * W
    SYMMETRIC = "symmetric"  # |p1 - p0| > floor(W / 2)


INT32_MAX = 2**31 - 1


def as_integer(value: Any, name: str) -> int:
    """A whole number as an int; refuses fractions, booleans and whatever else, and what 32 bits can't hold."""
    if isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value}, an integer is needed")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, an integer is needed") from None
    if not -INT32_MAX - 1 <= number <= INT32_MAX:
        raise ValueError(f"{name} is {number}, a 32-bit integer is needed")
    return number


def as_choice(value: Any, name: str) -> bool:
    """True or False; refuses whatever else."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r}, True or False is needed")
    return bool(value)


def _at_least(low: int, **sizes: Whole) -> None:
    for name, value in sizes.items():
        if as_integer(value, name) < low:
            raise ValueError(f"{name} is {value}, at least {low} is needed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """What a batch may hold: limits of the model and of the context (sizes in tokens).

    `n_pos` is P, the positions of an embedding row; `n_embd` the width of embedding rows, `n_embd_state` that
    of hidden-state rows (0: none are taken); `allow_mixed` lets id rows and embedding rows share a batch.
    """

    n_vocab: int
    n_batch: int
    n_seq_max: int = 1
    n_pos: int = 1
    n_embd: int = 0
    n_embd_state: int = 0
    allow_mixed: bool = False

    def __post_init__(self) -> None:
        _at_least(1, n_vocab=self.n_vocab, n_batch=self.n_batch, n_seq_max=self.n_seq_max)
        _at_least(0, n_embd=self.n_embd, n_embd_state=self.n_embd_state)
        if self.n_seq_max > MAX_SEQ:
            raise ValueError(f"n_seq_max is {self.n_seq_max}, at most {MAX_SEQ} sequences are possible")
        if self.n_pos not in (1, 3, 4):
            raise ValueError(f"n_pos is {self.n_pos}, 1 (text), 3 or 4 (M-RoPE) is needed")

    @property
    def n_words(self) -> int:
        """W: 32-bit words of a sequence set."""
        return n_words(self.n_seq_max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """The cells of one cache: C cells in each of NS streams (1 when unified, else one per sequence)."""

    n_cells: int
    n_seq_max: int = 1
    unified: bool = True
    n_swa: int = 0
    swa_type: SwaType = SwaType.NONE
    n_pos: int = 1

    def __post_init__(self) -> None:
        _at_least(1, n_cells=self.n_cells, n_seq_max=self.n_seq_max)
        if self.n_seq_max > MAX_SEQ:
            raise ValueError(f"n_seq_max is {self.n_seq_max}, at most {MAX_SEQ} sequences are possible")
        if (self.swa_type is SwaType.NONE) != (self.n_swa == 0) or self.n_swa < 0:
            raise ValueError(
                f"n_swa is {self.n_swa} with window type {self.swa_type.value}: give both or neither"
            )

    @property
    def n_streams(self) -> int:
        """NS."""
        return 1 if self.unified else self.n_seq_max

    @property
    def n_words(self) -> int:
        """W: 32-bit words of a sequence set."""
        return n_words(self.n_seq_max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of an engine, with llama.cpp's names and rounding (all in tokens or cells).

    n_ctx: cells over all sequences, rounded up to a multiple of kv_pad; with streams each gets n_ctx /
    n_seq_max, rounded up again. None: the context that the model was trained with. n_batch: tokens of one
    decode, cut to n_ctx. n_ubatch: rows of one ubatch, cut to n_batch. kv_unified: one stream of cells for
    all sequences, else one per sequence. swa_full: the window cache of a model with sliding windows is as large as the
    full one (sequences can then go on from any position). prefix_cache: what `generate` has finished keeps its cells
    until they are needed, and a prompt starts from what begins most alike. kv_dtype: "float32", "bfloat16" or
    "float16".

    batch_invariant: a sequence's logits are the same bits alone and in company, whatever its number, the cut of its
    tokens and n_ubatch. Every ubatch is then n_seq_max blocks of T rows (the engine's `rows`; 16 / n_seq_max, but 4 at
    least) over all cells, and the token at position p lies in cell p. So it needs streams and a model without windows
    and M-RoPE; positions can't be moved, sequences be cut at their ends alone, and decodes are causal, of token ids, to
    logits. That costs the rows that are padding: for 4 sequences of SmolLM2 on CPU a decode of all of them takes 1.7
    times as long, of one 2.4 times, a single prompt 10 times. Engines of other sizes, other processors and other
    versions of jax may give other bits.
    """

    n_ctx: Whole | None = None
    n_batch: Whole = 2048
    n_ubatch: Whole = 512
    n_seq_max: Whole = 1
    kv_unified: Choice = False
    swa_full: Choice = False
    prefix_cache: Choice = False
    batch_invariant: Choice = False
    kv_dtype: Text = "float32"
    kv_pad: Whole = 256

    def __post_init__(self) -> None:
        _at_least(
            1, n_batch=self.n_batch, n_ubatch=self.n_ubatch, n_seq_max=self.n_seq_max, kv_pad=self.kv_pad
        )
        _at_least(1, n_ctx=1 if self.n_ctx is None else self.n_ctx)
        if self.n_seq_max > MAX_SEQ:
            raise ValueError(f"n_seq_max is {self.n_seq_max}, at most {MAX_SEQ} sequences are possible")
        if (self.n_ctx or 0) > MAX_CELLS:
            raise ValueError(f"n_ctx is {self.n_ctx}, at most {MAX_CELLS} is possible")
        for name in ("kv_unified", "swa_full", "prefix_cache", "batch_invariant"):
            as_choice(getattr(self, name), name)
        if self.batch_invariant and self.kv_unified:
            raise ValueError(
                "kv_unified is True: batch_invariant needs a stream for each sequence, kv_unified=False"
            )
        check_dtype("kv_dtype", self.kv_dtype)

    def caches(
        self, n_ctx_train: int, n_pos: int = 1, n_swa: int = 0, swa_type: SwaType = SwaType.NONE
    ) -> tuple[MemoryConfig, ...]:
        """The cells for a model with this training context: one cache, or a full one and one for its windows.

        The window cache has as many cells as the windows and one ubatch need (llama.cpp's llama_kv_cache_iswa).
        """
        n_cells = round_up(self.n_ctx or n_ctx_train, self.kv_pad)
        if not self.kv_unified:
            n_cells = round_up(max(n_cells // self.n_seq_max, 1), self.kv_pad)
        full = MemoryConfig(n_cells=n_cells, n_seq_max=self.n_seq_max, unified=self.kv_unified, n_pos=n_pos)
        if swa_type is SwaType.NONE:
            return (full,)
        windows = n_swa * (self.n_seq_max if self.kv_unified else 1)
        if not self.swa_full:
            n_cells = round_up(min(n_cells, windows + min(self.n_ubatch, self.n_batch)), self.kv_pad)
        return (full, dataclasses.replace(full, n_cells=n_cells, n_swa=n_swa, swa_type=swa_type))

    def batch_sizes(self, memory: MemoryConfig) -> tuple[int, int]:
        """n_batch and n_ubatch as they are cut for these cells."""
        n_batch = min(self.n_batch, memory.n_cells * memory.n_streams)
        return n_batch, min(self.n_ubatch, n_batch)


KV_DTYPES = ("float32", "bfloat16", "float16")
WEIGHT_DTYPES = (*KV_DTYPES, "int8", "q8_0", "stored")
MAX_CELLS = 2**24  # beyond any context; keeps a slip of the pen from asking for terabytes


def check_dtype(name: str, dtype: Any, known: tuple[str, ...] = KV_DTYPES) -> None:
    """Refuse what K/V (or weights: `WEIGHT_DTYPES`) can't be stored as."""
    if not (isinstance(dtype, str) and dtype in known):
        raise ValueError(f"{name} is {dtype!r}, one of {', '.join(known)} is needed")


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple that is >= n."""
    return -(-n // multiple) * multiple


def n_words(n_seq_max: int) -> int:
    """32-bit words that hold one bit per sequence."""
    return -(-n_seq_max // 32)
