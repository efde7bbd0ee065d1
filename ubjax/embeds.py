"""Embeds: texts to vectors, as methods of what can run a batch and hand its hidden rows back."""

import abc
import contextlib
import dataclasses
import heapq
import numbers
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ubjax.batch import Batch
from ubjax.config import BatchConfig, MemoryConfig, as_integer
from ubjax.generate import TextCodec
from ubjax.host_arrays import as_items
from ubjax.outputs import Outputs
from ubjax.pictures.wording import amount
from ubjax.pooling import Pooling, sequences_of
from ubjax.progress import LateProgress
from ubjax.typing import Choice, Float, Text

# What a caller writes by hand is checked below, with sentences of its own.
if TYPE_CHECKING:
    Texts: TypeAlias = str | Iterable[int] | Iterable[str | Iterable[int]]
    Documents: TypeAlias = Iterable[str]
else:
    Texts = Documents = Any
OnProgress: TypeAlias = Callable[[int, int], object]  # texts that are done, and how many there are


@runtime_checkable
class PairCodec(Protocol):
    """What ranking needs of a tokenizer."""

    def encode_pair(self, first: str, second: str, /) -> tuple[list[int], list[int]]:
        """Ids of two texts in one sequence, and the token type of each."""
        ...


@runtime_checkable
class PromptCodec(Protocol):
    """What prompts need of a tokenizer."""

    def prompted(self, text: str, name: Text | None, /) -> str:
        """A text behind the prompt of that name; None: behind the one that the model's files want for all."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """What one batch of texts may use: sequences, tokens in all, tokens of one text, and what that last is called."""

    sequences: Sequence[int]
    n_tokens: int
    longest: int
    limit: str


class Embeds(abc.ABC):
    """Texts to vectors. `pooling`: what the model's files ask for, and what holds where a call says nothing."""

    tokenizer: TextCodec | None
    batch_config: BatchConfig
    pooling: Pooling

    @abc.abstractmethod
    def _room(self) -> Room:
        """What a batch of texts may use now."""

    @abc.abstractmethod
    def _run(self, batch: Batch) -> Outputs:
        """The hidden rows of a batch whose sequences are new; afterwards they are gone."""

    @abc.abstractmethod
    def _width(self, kind: str) -> int:
        """D, the length of a vector."""

    def embed(
        self,
        texts: Texts,
        *,
        pooling: Text | None = None,
        normalize: Choice | None = None,
        prompt_name: Text | None = None,
        on_progress: OnProgress | None = None,
    ) -> Float[np.ndarray, "N D"]:
        """A vector of each text (a text alone, or token ids, is one), in their order.

        pooling: "mean", "cls", "last" or "rank" (the logits of a classification head); normalize: to length 1. None:
        as the model's files say, else the last token of a decoder, the mean of an encoder, not normalized.
        prompt_name: which of the prompts in a sentence-transformers folder comes before each text; None: the one that
        the folder wants, if any. Token ids are taken as they are.
        Texts share batches of n_batch tokens and n_seq_max sequences. `on_progress(done, n)` hears of each batch;
        without it a terminal shows a bar once it takes longer than two seconds. Raises ValueError,
        before any work, for a text without tokens or longer than the limit, and for what is no text.
        """
        kind = Pooling(
            kind=self.pooling.kind if pooling is None else pooling,
            normalize=self.pooling.normalize if normalize is None else normalize,
        )
        found = [self._ids(i, text, prompt_name) for i, text in enumerate(_listed(texts))]
        return self._vectors([(ids, [0] * len(ids)) for ids in found], kind, "text", on_progress)

    def rerank(
        self, query: Text, documents: Documents, *, on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "*scores"]:
        """How well each document answers a query, by a model with a classification head: [N], the higher the better.

        A head of several labels gives [N, L]. Errors as `embed`, and for a model without a head.
        """
        self._width("rank")
        if not isinstance(self.tokenizer, PairCodec):
            raise ValueError("the engine has no tokenizer of pairs of texts, one is needed to rank")
        if isinstance(documents, str):
            raise ValueError("the documents are one text, a list of texts is needed")
        items = as_items(documents, "the documents are", "a list of texts is needed")
        named = [(f"document {i}", text) for i, text in enumerate(items)]
        for name, text in (("the query", query), *named):
            if not isinstance(text, str):
                raise ValueError(f"{name} is {reprlib.repr(text)}, a text is needed")
        pairs = []
        for name, text in (("the query", ""), *named):
            with _named(name):
                pairs.append(self.tokenizer.encode_pair(query, text))
        scores = self._vectors(pairs[1:], Pooling(kind="rank"), "document", on_progress)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _ids(self, i: int, text: Any, prompt_name: Text | None) -> list[int]:
        """The token ids of a text; of one that is token ids already, these."""
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ValueError("the engine has no tokenizer: token ids are needed, text was found")
            with _named(f"text {i}"):
                return list(self.tokenizer.encode(self._prompted(text, prompt_name)))
        name = f"text {i}"
        tokens = as_items(text, f"{name} is", "a text or token ids are needed")
        if prompt_name is not None:
            raise ValueError(f"{name} is token ids, a text is needed to begin with a prompt")
        ids = [as_integer(token, f"token {k} of {name}") for k, token in enumerate(tokens)]
        needed = self.batch_config.n_vocab
        for k, token in enumerate(ids):
            if not 0 <= token < needed:
                raise ValueError(f"token {k} of {name} has id {token}, an id in [0, {needed}) is needed")
        return ids

    def _prompted(self, text: str, name: Text | None) -> str:
        if isinstance(self.tokenizer, PromptCodec):
            return self.tokenizer.prompted(text, name)
        if name is not None:
            raise ValueError(f"the model's files have no prompts, the prompt {name!r} was asked for")
        return text

    def _vectors(
        self,
        texts: Sequence[tuple[list[int], list[int]]],
        pooling: Pooling,
        name: str,
        on_progress: OnProgress | None,
    ) -> np.ndarray:
        """Vectors of texts as (ids, token types)."""
        if pooling.kind == "none":
            raise ValueError("the pooling is 'none', one that gives a text one vector is needed")
        vectors = np.zeros((len(texts), self._width(pooling.kind)), np.float32)
        room, lengths = self._room(), [len(ids) for ids, _ in texts]
        for i, n in enumerate(lengths):
            if not 1 <= n <= room.longest:
                raise ValueError(
                    f"{name} {i} has {amount(n, 'token')}, 1 to {room.longest} ({room.limit}) are possible"
                )
        done = 0
        with LateProgress("embedding") as late:
            told = late.update if on_progress is None else on_progress
            for group in _groups(lengths, len(room.sequences), room.n_tokens):
                outputs = self._run(self._batch([texts[i] for i in group], room.sequences))
                vectors[group] = outputs.pooled(pooling.kind, normalize=pooling.normalize)
                done += len(group)
                told(done, len(texts))
        return vectors

    def _batch(self, texts: Sequence[tuple[list[int], list[int]]], sequences: Sequence[int]) -> Batch:
        """A batch of new sequences; with token types where one of them is not 0."""
        types = np.concatenate([own for _, own in texts]).astype(np.float32)
        return Batch.from_arrays(
            np.concatenate([ids for ids, _ in texts]).astype(np.int32),
            seq_id=np.repeat(np.asarray(sequences[: len(texts)], np.int32), [len(ids) for ids, _ in texts]),
            state=types[:, None] if types.any() else None,
            config=self.batch_config,
        )


class EmbedsByDecoding(Embeds):
    """Texts to vectors through a cache: in sequences that are empty or only kept, and are empty afterwards."""

    memory: MemoryConfig
    batch_invariant: bool
    model_config: Any

    @abc.abstractmethod
    def decode(self, batch: Any, *, hidden: Choice = False) -> Outputs:
        """Run a batch."""

    @abc.abstractmethod
    def free_sequences(self) -> list[int]:
        """The sequences that are empty or only kept."""

    @abc.abstractmethod
    def n_free_cells(self) -> int:
        """Cells that hold nothing, or nothing but kept sequences."""

    @abc.abstractmethod
    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> None:
        """Drop a sequence."""

    def encode(self, batch: Any) -> NoReturn:
        """Refused: encoders encode."""
        raise ValueError(
            "the model is a decoder and can't encode: decode(batch, hidden=True) gives hidden rows"
        )

    def _room(self) -> Room:
        if self.batch_invariant:
            raise ValueError(
                "batch_invariant gives logits alone: an engine without it is needed to embed a text"
            )
        sequences, n_batch = self.free_sequences(), self.batch_config.n_batch
        if not sequences:
            raise ValueError(
                "every sequence is in use, an empty one is needed to embed a text (rm empties one)"
            )
        n_cells = self.n_free_cells() if self.memory.unified else self.memory.n_cells
        limit = "n_batch" if n_batch <= n_cells else "the cells that are free"
        if n_batch > n_cells and self.memory.n_streams > 1:
            limit = f"the cells of one of {self.memory.n_streams} sequences, unless kv_unified"
        n_tokens = min(n_batch, n_cells) if self.memory.unified else n_batch
        return Room(sequences=sequences, n_tokens=n_tokens, longest=min(n_batch, n_cells), limit=limit)

    def _run(self, batch: Batch) -> Outputs:
        sequences = sequences_of(batch.seq)
        for seq in sequences:  # what is kept there is given up
            self.rm(seq)
        try:
            return self.decode(batch, hidden=True)
        finally:
            for seq in sequences:
                self.rm(seq)

    def _width(self, kind: str) -> int:
        if kind == "rank":
            raise ValueError("the model has no classification head, a model with one is needed to rank")
        return self.model_config.n_embd


def _groups(lengths: Sequence[int], n_seqs: int, n_tokens: int) -> list[list[int]]:
    """The texts of each batch, none longer than n_tokens: the longest first, each to the batch with the fewest tokens.

    So every batch has short ones to fill what long ones leave. As few batches as sequences and tokens ask for, and one
    more where a text fits into none of them.
    """
    n_groups = max(-(-len(lengths) // n_seqs), -(-sum(lengths) // n_tokens))
    groups: list[list[int]] = [[] for _ in range(n_groups)]
    held = [(0, k) for k in range(n_groups)]  # tokens and number of the batches with a free sequence, a heap
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not held or held[0][0] + lengths[i] > n_tokens:
            heapq.heappush(held, (0, len(groups)))
            groups.append([])
        tokens, k = heapq.heappop(held)
        groups[k].append(i)
        if len(groups[k]) < n_seqs:
            heapq.heappush(held, (tokens + lengths[i], k))
    return groups


def _listed(texts: Any) -> list[Any]:
    """Texts as a list; a text alone, or the ids of one, is a list of one."""
    if isinstance(texts, str):
        return [texts]
    found = as_items(texts, "texts is", "a text or a list of texts is needed")
    return [found] if found and isinstance(found[0], numbers.Integral) else found


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """An error of a tokenizer says which text it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
