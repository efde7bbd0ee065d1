"""A prompt to its greedy continuation, on anything that decodes batches (the Engine).

The prompt is cut into batches of n_batch tokens, then every step decodes the one token chosen last.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from ubjax.batch import Batch
from ubjax.config import BatchConfig, MemoryConfig
from ubjax.outputs import Outputs
from ubjax.sampling import greedy
from ubjax.usage import Usage


@runtime_checkable
class TextStream(Protocol):
    """Turns token ids into text as whole characters become known."""

    def feed(self, ids: Sequence[int], /) -> str:
        """The text that these tokens complete."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


@runtime_checkable
class TextCodec(Protocol):
    """What generation needs of a tokenizer."""

    @property
    def eog_ids(self) -> Collection[int]:
        """Tokens that end a generation."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Text to ids, with the special tokens that the model expects."""
        ...

    def stream(self) -> TextStream:
        """A fresh incremental decoder."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """What generation needs of an engine."""

    tokenizer: TextCodec | None
    batch_config: BatchConfig
    memory: MemoryConfig
    usage: Usage

    def batch(self, token: Sequence[int], **arrays: Any) -> Batch:
        """A batch from flat arrays."""
        ...

    def decode(self, batch: Batch) -> Outputs:
        """Run a batch."""
        ...

    def pos_max(self, seq_id: int) -> int:
        """Last cached position of a sequence."""
        ...

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> None:
        """Drop a sequence."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """A continuation and what it cost.

    finish_reason: "stop" (an end-of-generation token), "length" or "context" (the cache is full).
    """

    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: str
    prompt_seconds: float
    decode_seconds: float
    usage: Usage

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second."""
        return len(self.prompt_tokens) / max(self.prompt_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Decoded tokens per second, the first one (which the prompt gives) not counted."""
        return max(len(self.tokens) - 1, 0) / max(self.decode_seconds, 1e-9)


def generate(
    engine: Decodes,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 128,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Continue `prompt` (text, or token ids) greedily.

    Sequence 0 is used: it must be empty and is empty again afterwards. on_text is called with every piece of
    text as soon as its characters are whole. Raises ValueError, before any work, for an empty prompt, one
    that does not fit the context, max_tokens < 1, text without a tokenizer, or an occupied sequence.
    """
    ids = _prompt_ids(engine, prompt, max_tokens)
    stream = engine.tokenizer.stream() if engine.tokenizer else None
    stop = frozenset(engine.tokenizer.eog_ids) if engine.tokenizer else frozenset()
    before, pieces, tokens = engine.usage.copy(), [], []
    start = time.perf_counter()
    first = start
    reason = "length"

    def emit(piece: str) -> None:
        pieces.append(piece)
        if piece and on_text:
            on_text(piece)

    try:
        for token in _greedy_tokens(engine, ids):
            first = first if tokens else time.perf_counter()
            if token in stop:
                reason = "stop"
                break
            tokens.append(token)
            if stream:
                emit(stream.feed([token]))
            if len(tokens) == max_tokens:
                break
        else:
            reason = "context"
        if stream:
            emit(stream.flush())
    finally:
        engine.rm(0)
    return Generation(
        text="".join(pieces),
        tokens=tokens,
        prompt_tokens=ids,
        finish_reason=reason,
        prompt_seconds=first - start,
        decode_seconds=time.perf_counter() - first,
        usage=engine.usage.since(before),
    )


def _prompt_ids(engine: Decodes, prompt: str | Sequence[int], max_tokens: int) -> list[int]:
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, at least 1 is needed")
    if isinstance(prompt, str):
        if engine.tokenizer is None:
            raise ValueError(
                "the engine has no tokenizer: token ids are needed as the prompt, text was found"
            )
        prompt = engine.tokenizer.encode(prompt)
    ids = [int(t) for t in prompt]
    if not ids:
        raise ValueError("the prompt has 0 tokens, at least 1 is needed")
    if len(ids) > engine.memory.n_cells:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, the context holds {engine.memory.n_cells} of one sequence"
        )
    if engine.pos_max(0) >= 0:
        raise ValueError(f"sequence 0 holds positions up to {engine.pos_max(0)}: generate needs it empty")
    return ids


def _greedy_tokens(engine: Decodes, ids: Sequence[int]) -> Iterator[int]:
    """Greedy tokens until the context is full."""
    n_batch = engine.batch_config.n_batch
    for at in range(0, len(ids), n_batch):
        outputs = _extend(engine, ids[at : at + n_batch], at, wanted=at + n_batch >= len(ids))
    for pos in range(len(ids), engine.memory.n_cells + 1):
        token = int(greedy(outputs.row(-1)))
        yield token
        if pos < engine.memory.n_cells:
            outputs = _extend(engine, [token], pos, wanted=True)


def _extend(engine: Decodes, ids: Sequence[int], pos: int, *, wanted: bool) -> Outputs:
    output = [False] * (len(ids) - 1) + [wanted]
    return engine.decode(engine.batch(ids, pos=list(range(pos, pos + len(ids))), output=output))
