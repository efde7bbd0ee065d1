"""EncoderEngine: batches of whole sequences through an encoder. It has weights and counters, and no cache.

batch -> plan_encode (validate, pack) -> per ubatch: take_ubatch -> encoder -> hidden rows -> Outputs
"""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from ubjax.batch import Batch
from ubjax.batch_builder import BatchBuilder
from ubjax.buckets import EncoderBuckets, span_name
from ubjax.config import MAX_SEQ, BatchConfig, EngineConfig
from ubjax.embeds import Embeds, Room
from ubjax.encoder_programs import EncoderPrograms
from ubjax.encoding import EncodeStep, plan_encode
from ubjax.generate import TextCodec
from ubjax.host_batch import fitted
from ubjax.ladders import BucketLadder
from ubjax.models.encoder import Encoder
from ubjax.outputs import Outputs
from ubjax.pictures.wording import amount
from ubjax.pooling import HiddenRows, Pooling
from ubjax.pytree import Layout
from ubjax.status import Reason, raise_if_error, refusal
from ubjax.ubatch import take_ubatch
from ubjax.usage import Usage
from ubjax.warmup import CompiledProgram, Warmup, warm_up

# Sequences of an encoder cost nothing but their rows.
DEFAULT = EngineConfig(n_batch=16384, n_ubatch=512, n_seq_max=MAX_SEQ)


class EncoderEngine(Embeds):
    """Encodes batches; what `Engine(model)` is for an encoder.

    Of the configuration n_batch, n_ubatch and n_seq_max count: the texts that share a batch, many without a
    configuration, but one by default in a configuration of one's own, so say it there. Batches are those of `Engine`;
    each has whole sequences, from position 0 on unless it says otherwise.
    """

    def __init__(
        self,
        model: Encoder,
        tokenizer: TextCodec | None = None,
        config: EngineConfig | None = None,
        *,
        rows: BucketLadder | None = None,
    ):
        config = DEFAULT if config is None else config
        if config.batch_invariant:
            raise ValueError("the model is an encoder: batch_invariant needs a decoder, with a cache")
        n_batch, n_ubatch = int(config.n_batch), int(min(config.n_ubatch, config.n_batch))
        self.tokenizer = tokenizer
        self.model_config = model.config
        self.pooling = Pooling() if model.pooling is None else model.pooling
        self.n_ubatch = n_ubatch
        self.batch_config = BatchConfig(
            n_vocab=model.config.n_vocab, n_batch=n_batch, n_seq_max=int(config.n_seq_max), n_embd_state=1
        )
        self.buckets = EncoderBuckets.default(n_batch=n_batch, n_ubatch=n_ubatch, rows=rows)
        self.usage = Usage()
        self._step = EncodeStep(model)
        self._control = jax.devices("cpu")[0]
        self._layouts: dict[int, Layout] = {}

    def __repr__(self) -> str:
        b = self.batch_config
        sequences = amount(b.n_seq_max, "sequence")
        return f"EncoderEngine({sequences}, n_batch {b.n_batch}, n_ubatch {self.n_ubatch}, no cache)"

    @property
    def device(self) -> Any:
        """Where the weights and the hidden rows are."""
        return self._step.device

    def warmup(self, on_program: Callable[[CompiledProgram, int, int], None] | None = None) -> Warmup:
        """Compile every program that batches of token ids, with types or without, and their pooling can need.

        As `Engine.warmup`: from shapes alone, nothing runs, and afterwards they compile nothing.
        """
        sizes = {"n_embd": self.model_config.n_embd, "n_types": self.model_config.n_token_types}
        where = {"control": self._control}
        programs = EncoderPrograms(self._step, self.buckets, self.batch_config, **sizes, **where)
        return warm_up([*programs], on_program)

    def builder(self) -> BatchBuilder:
        """A builder for this engine's batches, n_batch tokens at most."""
        return BatchBuilder(self.batch_config)

    def batch(self, token: Any = None, **arrays: Any) -> Batch:
        """A batch from flat arrays (see `Batch.from_arrays`); without `pos`, sequences begin at 0."""
        return Batch.from_arrays(token, config=self.batch_config, **arrays)

    def encode(self, batch: Any) -> Outputs:
        """Run a batch of whole sequences; the outputs have hidden rows (`embeddings`, `pooled`) and no logits.

        Sequences are packed into ubatches of at most n_ubatch rows, each seeing itself alone. A token's type is its
        state row of one value (none: 0). Raises InvalidBatchError with one sentence for a batch that can't be taken, a
        sequence of more than n_ubatch tokens among them, before any work.
        """
        batch = fitted(batch, self.batch_config.n_batch, self.buckets.capacity)
        self._check_tables(batch)
        placed = jax.device_put(batch, self._control)
        found, packed = plan_encode(placed, np.int32(self.n_ubatch), self.batch_config)
        if batch.capacity not in self._layouts:
            self._layouts[batch.capacity] = Layout(found)
        host = self._layouts[batch.capacity].unpack(np.asarray(packed))
        raise_if_error(host.status)
        n, head = int(batch.n_tokens), self._step.rank if self._step.has_head else None
        rows = HiddenRows(batch.seq[:n], head)
        n_ubatches = int(host.plan.n_ubatches)
        for k in range(n_ubatches):
            start, end = host.plan.offset[k : k + 2]
            bucket, span = self.buckets.ubatch(int(end - start), int(host.longest[k]), n_ubatches)
            ubatch = take_ubatch(placed, found.plan, np.int32(k), bucket)
            rows.add(self._step(ubatch, span), ubatch.batch_idx)
            self.usage.count(span_name(bucket, span), rows=bucket.n_rows, tokens=int(end - start), outputs=0)
        self.usage.decodes += 1
        return Outputs([], [], n, rows)

    def decode(self, batch: Any, **options: Any) -> NoReturn:
        """Refused: there is no cache to decode into."""
        raise ValueError("the model is an encoder and has no cache to decode into: encode or embed is needed")

    def generate(self, prompts: Any, **options: Any) -> NoReturn:
        """Refused, as `decode`."""
        raise ValueError("the model is an encoder and can't generate text: embed is what it is for")

    stream = generate

    def _check_tables(self, batch: Batch) -> None:
        """Refuse positions and token types that the model's tables lack."""
        n, n_pos, n_types = (
            int(batch.n_tokens),
            self.model_config.n_ctx_train,
            self.model_config.n_token_types,
        )
        pos, types = batch.pos[0, :n], batch.state[:n]
        if (beyond := np.flatnonzero(pos >= n_pos)).size:
            at = int(beyond[0])
            raise refusal(Reason.POS_RANGE, where=at, found=int(pos[at]), needed=n_pos)
        if (odd := np.flatnonzero(~np.isin(types, np.arange(n_types)))).size:
            raise ValueError(
                f"token {odd[0]} has the type {types[odd[0], 0]}, one in [0, {n_types}) is needed"
            )

    def _room(self) -> Room:
        longest = min(self.n_ubatch, self.model_config.n_ctx_train)
        limit = "n_ubatch" if longest == self.n_ubatch else "the positions that the model knows"
        b = self.batch_config
        return Room(sequences=range(b.n_seq_max), n_tokens=b.n_batch, longest=longest, limit=limit)

    def _run(self, batch: Batch) -> Outputs:
        return self.encode(batch)

    def _width(self, kind: str) -> int:
        if kind == "rank" and not self._step.has_head:
            raise ValueError("the model has no classification head, a model with one is needed to rank")
        return self.model_config.n_labels if kind == "rank" else self.model_config.n_embd
