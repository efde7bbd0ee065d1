"""What generation needs of the things it stands below: an engine, and a tokenizer if text is wanted."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from ubjax.batch import Batch
from ubjax.config import BatchConfig, MemoryConfig
from ubjax.generate.steps import Drawing, NextToken, Steps
from ubjax.outputs import Outputs
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
    n_ubatch: int
    prefix_cache: bool

    @property
    def device(self) -> Any:
        """Where the logits are."""
        ...

    def batch(self, token: Sequence[int], **arrays: Any) -> Batch:
        """A batch from flat arrays."""
        ...

    def reserve(self, n_kv: int) -> None:
        """Let K/V have room for n_kv cells a stream at once."""
        ...

    def decode(self, batch: Batch) -> Outputs:
        """Run a batch; NoSlotError when the cache can't hold it now."""
        ...

    def loop_bucket(self, seqs: Sequence[int]) -> Any:
        """The shape of a loop over these sequences, None where there is none."""
        ...

    def decode_steps(
        self, rows: Sequence[NextToken], n_steps: int, drawing: Drawing, *, until_end: bool = False
    ) -> Steps:
        """Decode and draw up to n_steps times in one dispatch; NoSlotError when there are no cells for all of them."""
        ...

    def pos_max(self, seq_id: int) -> int:
        """Last cached position of a sequence, -1 when it is absent."""
        ...

    def n_free_cells(self) -> int:
        """Cells that hold nothing, or nothing but kept sequences, over all streams."""
        ...

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> None:
        """Drop a sequence."""
        ...

    def can_resume(self, seq_id: int, p: int) -> bool:
        """Whether a sequence can go on at position p once its positions from p on are removed."""
        ...

    def shift(self, seq_id: int, p0: int, p1: int) -> None:
        """Remove positions of a sequence and close the gap; ValueError where that can't be."""
        ...

    def free_sequences(self) -> list[int]:
        """The sequences that are empty or only kept."""
        ...

    def claim(self, free: Sequence[int], ids: Sequence[int]) -> tuple[int, int]:
        """A sequence out of `free` for a prompt, and how many of its tokens it holds already."""
        ...

    def keep_prefix(self, seq_id: int, ids: Iterable[int]) -> None:
        """Keep a finished sequence with its tokens."""
        ...

    def start_from(self, src: int, dst: int, n: int) -> None:
        """Let an empty sequence hold the first n tokens of another."""
        ...
