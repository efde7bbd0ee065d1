"""Engine, the only stateful object: batches in, outputs in the caller's order out.

A refused batch changes nothing.

    batch -> plan_decode (validate, split, slots: all or nothing) -> per ubatch: stage -> step -> Outputs

The control plane (cells, plans) lives on the CPU device, weights and K/V on the model's device; a staged
ubatch is transferred explicitly. K/V grows before the first ubatch, to the bucket that holds every slot of
the decode.
"""

import itertools
from typing import Any

import jax
import numpy as np

from ubjax.batch import Batch, mark_all_outputs
from ubjax.batch_builder import BatchBuilder
from ubjax.buckets import Buckets, kv_name, shape_name
from ubjax.config import BatchConfig, EngineConfig, as_choice
from ubjax.control import advance, plan_decode, required_ubatch, stage
from ubjax.embeds import EmbedsByDecoding
from ubjax.encoder_engine import EncoderEngine
from ubjax.generate import Generates, TextCodec
from ubjax.host_arrays import from_host
from ubjax.host_batch import fitted
from ubjax.invariant import check_batch, check_model
from ubjax.ladders import BucketLadder, Rows, Sizes
from ubjax.loops import Loops
from ubjax.memory import caches
from ubjax.memory.caches import AllCells
from ubjax.memory.init_batch import Mode, Prepared
from ubjax.models.decoder import Decoder
from ubjax.models.encoder import Encoder
from ubjax.outputs import Outputs
from ubjax.pictures.wording import amount
from ubjax.pooling import HiddenRows, Pooling
from ubjax.pytree import Layout
from ubjax.split import SplitPlan
from ubjax.status import Reason, raise_if_error, refusal
from ubjax.step import Step
from ubjax.typing import Choice
from ubjax.usage import Usage
from ubjax.warmup import EnginePrograms, OnProgram, Warmup, warm_up

_PENDING = (np.zeros((), bool), np.zeros((), np.int32))  # what `memory.caches.pending` gives


class Engine(Loops, Generates, EmbedsByDecoding):
    """Decodes batches with a model and a K/V cache. One thread at a time: it has state and no lock.

    >>> from ubjax import Engine, EngineConfig
    >>> from ubjax.loaders import load_model
    >>> engine = Engine(*load_model("smollm2"), EngineConfig(n_ctx=512))
    >>> engine.generate("The capital of France is", max_tokens=2).text
    ' Paris.'

    Of an encoder it makes an `EncoderEngine`, which takes the same batches.
    """

    def __new__(cls, model: Decoder | Encoder, *args: Any, **ladders: Any) -> Any:
        """The engine that the model needs."""
        return EncoderEngine(model, *args, **ladders) if isinstance(model, Encoder) else super().__new__(cls)

    def __init__(
        self,
        model: Decoder,
        tokenizer: TextCodec | None = None,
        config: EngineConfig | None = None,
        *,
        rows: Rows | None = None,
        n_kv: Sizes | None = None,
        n_outputs: Sizes | None = None,
    ):
        """Ladders: as objects, lists or text ("1,8,64", as `ubjax ladder` prints), by default see `Buckets.default`.

        With batch_invariant `rows` is the one shape of all ubatches, "4x16" for 4 sequences, see `Buckets.single`.
        """
        config = EngineConfig() if config is None else config
        self.tokenizer = tokenizer
        self.model_config = model.config
        self.caches = config.caches(
            model.config.n_ctx_train, model.config.n_pos, model.config.n_swa, model.config.swa_type
        )
        self.memory, self.batch_invariant = self.caches[0], config.batch_invariant
        n_batch, self.n_ubatch = config.batch_sizes(self.memory)
        self.batch_config = BatchConfig(
            n_vocab=model.config.n_vocab,
            n_batch=n_batch,
            n_seq_max=config.n_seq_max,
            n_pos=model.config.n_pos,
            n_embd=model.config.n_embd,
            n_embd_state=model.n_embd_state,
            allow_mixed=True,
        )
        ladders: dict[str, Any] = {"rows": rows, "n_kv": n_kv, "n_outputs": n_outputs}
        if self.batch_invariant:
            check_model(model.config.n_pos, model.config.swa_type)
            self.buckets = Buckets.single(n_batch, self.memory.n_streams, self.memory.n_cells, **ladders)
            self.n_ubatch = min(self.n_ubatch, self.buckets.rows.n_ubatch)
        else:
            own_seqs = config.n_seq_max // self.memory.n_streams  # of a stream, which may decode a token each
            ladders["rows"] = BucketLadder.rows(self.n_ubatch, own_seqs) if rows is None else rows
            self.buckets = Buckets.default(
                n_batch=n_batch,
                n_ubatch=self.n_ubatch,
                n_streams=self.memory.n_streams,
                n_cells=tuple(cache.n_cells for cache in self.caches),
                kv_pad=config.kv_pad,
                **ladders,
            )
        self.prefix_cache = config.prefix_cache
        self.pooling = Pooling(kind="last") if model.pooling is None else model.pooling
        self.usage = Usage()
        self._step = Step(model, self.caches)
        self._kv_dtype = config.kv_dtype
        self._control = jax.devices("cpu")[0]
        self._layouts: dict[int, Layout] = {}  # of what a plan hands to the host, by the batch's capacity
        self.clear()

    def __repr__(self) -> str:
        m = self.memory
        shared = "shared" if m.unified else "each"
        return (
            f"Engine({amount(m.n_seq_max, 'sequence')}, {m.n_cells} cells {shared}, "
            f"n_batch {self.batch_config.n_batch}, n_ubatch {self.n_ubatch}, "
            f"weights {sum(leaf.nbytes for leaf in self._step.leaves) / 2**20:.0f} MiB, "
            f"K/V of {kv_name(self._kv_sizes()) or 0} cells: {sum(kv.nbytes for kv in self._kv) / 2**20:.0f} MiB)"
        )

    def warmup(
        self, on_program: OnProgram | None = None, *, embd: Choice = False, hidden: Choice = False
    ) -> Warmup:
        """Compile every program that batches of token ids, sequence operations and `generate` can need.

        From shapes alone, smallest first; nothing runs and the cache stays as it is. Afterwards they compile nothing,
        but for what has shapes of its own: embedding rows (unless `embd`, which doubles the programs of a decode),
        hidden rows and with them `embed` (unless `hidden`, which doubles those of the step),
        log-probabilities of further tokens (`logprobs` above 0), more than 16 logit biases or stop tokens,
        `decode_at_once`, states that are saved or loaded, and the memory report. `on_program(program, i, n)` hears when
        the i-th of n is ready. Without a warm-up each program is compiled when it is first needed.
        """
        given = self.batch_config
        embds = (0, given.n_embd) if as_choice(embd, "embd") else (0,)
        states = (0, given.n_embd_state) if given.n_embd_state else (0,)
        sizes = {
            "n_ubatch": self.n_ubatch,
            "kv_dtype": self._kv_dtype,
            "widths": tuple(itertools.product(embds, states)),
            "hidden": as_choice(hidden, "hidden"),
        }
        programs = EnginePrograms(
            self._step, self.buckets, self.batch_config, self.caches, **sizes, control=self._control
        )
        return warm_up([*programs], on_program)

    # -- batches
    # ------------------------------------------------------------------------------------------------------

    def builder(self) -> BatchBuilder:
        """A builder for this engine's batches, n_batch tokens at most."""
        return BatchBuilder(self.batch_config)

    def batch(self, token: Any = None, **arrays: Any) -> Batch:
        """A batch from flat arrays (see `Batch.from_arrays`); without `pos`, sequences go on at their `pos_next`."""
        arrays.setdefault("next_pos", self._next_pos())
        return Batch.from_arrays(token, config=self.batch_config, **arrays)

    def decode(
        self, batch: Any, *, causal: Choice = True, embd_all: Choice = False, hidden: Choice = False
    ) -> Outputs:
        """Run a batch through the model, keep its keys and values, return the logits of its output tokens.

        Unless `causal`, a token sees all that is cached of its sequence and all of it in this batch, which one ubatch
        then has to hold (the chunks of an image; `required_ubatch`). `embd_all`, llama.cpp's embedding mode: every
        token is an output, with streams a ubatch is of one sequence.
        `hidden`: the outputs have the hidden rows of all tokens too (`embeddings`, `pooled`).

        Raises InvalidBatchError or NoSlotError with one sentence when the batch can't be taken: then nothing
        has changed. When a step itself fails, the sequences of its ubatch are cut back to where that ubatch
        began and the error says so (result -3 and an empty cache if the K/V buffers were lost with it).
        """
        mode = self._mode(causal, embd_all)
        batch = self._fitted(batch, mode, as_choice(hidden, "hidden"))
        batch = mark_all_outputs(batch) if embd_all else batch
        rows_of = HiddenRows(batch.seq[: batch.n_tokens]) if hidden else None
        with from_host():
            prepared, plan, last = self._admit(batch, mode)
        cells, n, buffers, out_ids = self._cells, int(plan.n_ubatches), [], []
        for k in range(n):
            rows = plan.order[plan.offset[k] : plan.offset[k + 1]]
            out_ids.append(rows[batch.output[rows]])
            bucket = self.buckets.ubatch(
                n_tokens=len(rows),
                n_seqs=int(plan.n_seqs[k]),
                n_outputs=len(out_ids[k]),
                equal_seqs=bool(plan.equal_seqs),
            )
            at = (batch, prepared.plan, prepared.slot, np.int32(k))
            with from_host():
                before, cells = cells, last if k == n - 1 else advance(cells, *at, self.caches)
                staged = stage(cells, *at, prepared.causal, bucket, self.caches)
            if k:
                self._finish(buffers[-1], before)
            buffers.append(self._launch(staged, rows_of))
            self.usage.count(shape_name(bucket, self._kv_sizes()), bucket.n_rows, len(rows), len(out_ids[k]))
        # While the last step runs: what is left to do, and what is not needed any more.
        outputs = Outputs(buffers, out_ids, int(batch.n_tokens), rows_of)
        self.usage.decodes += 1
        del batch, prepared, plan, before, at, staged, rows
        self._finish(buffers[-1], cells)
        return outputs

    def decode_at_once(self, batch: Any) -> Outputs:
        """As `decode`, with one dispatch of the model however many ubatches there are.

        One program runs them all, each padded to the bucket that holds every one of them: more is computed where they
        differ in shape (with streams, where few long sequences meet many short ones). It is compiled for each such
        bucket, size of K/V and number of outputs when it is first needed; `warmup` leaves it out.

        Raises as `decode`. When the program fails, the whole batch never happened (result 2), unless K/V was lost (-3).
        """
        if self.batch_invariant:
            raise ValueError("decode_at_once takes another program: with batch_invariant decode is needed")
        mode = self._mode(causal=True, embd_all=False)
        batch = self._fitted(batch, mode, hidden=False)
        with from_host():
            prepared, plan, last = self._admit(batch, mode)
        n, n_tokens = int(plan.n_ubatches), np.diff(plan.offset)
        outputs = np.add.reduceat(batch.output[plan.order[: plan.n_used]], plan.offset[:n], dtype=np.int32)
        sizes = {"n_tokens": n_tokens[:n].tolist(), "n_seqs": plan.n_seqs[:n].tolist()}
        bucket, n_outputs = self.buckets.whole(
            **sizes, n_outputs=outputs.tolist(), equal_seqs=bool(plan.equal_seqs)
        )
        logits = self._launch_whole(batch, prepared, bucket, n_outputs)
        for k in range(n):
            shape = shape_name(bucket, self._kv_sizes())
            self.usage.count(shape, bucket.n_rows, int(n_tokens[k]), int(outputs[k]))
        self.usage.decodes += 1
        self._finish(logits, last)
        return Outputs([logits], [np.flatnonzero(batch.output)], int(batch.n_tokens))

    def _admit(self, batch: Batch, mode: Mode) -> tuple[Prepared, SplitPlan, AllCells]:
        """Prepare a batch and K/V for it, or raise and change nothing: (prepared, its plan on the host, final cells).

        Kept sequences make way; what sequence operations owe is carried out, K/V grows.
        """
        cells, kept = self._cells, self._kept.copy()
        if kept:  # the batch's own are wanted, not to be given up
            self._touched(seq for seq in kept if np.any(batch.seq & self._set([seq])))
        prepared, (plan, status, n_kv, (rotate, n_copies)) = self._plan(batch, mode)
        while int(status.code) == Reason.NO_SLOT and self._kept:
            self._evict()
            prepared, (plan, status, n_kv, (rotate, n_copies)) = self._plan(batch, mode)
        if int(status.code) != Reason.OK:
            left, self._cells, self._kept = self._cells, cells, kept
            if int(status.code) == Reason.NO_SLOT:
                raise self._no_slot(status, batch, mode, left)
            raise_if_error(status)
        self._grow(n_kv)
        last = prepared.cells
        if rotate or n_copies:
            self._update(int(n_copies), bool(rotate))
            last = caches.settle(last)
        return prepared, plan, last

    def _mode(self, causal: Choice, embd_all: Choice) -> Mode:
        return Mode.of(
            causal=as_choice(causal, "causal"),
            embd_all=as_choice(embd_all, "embd_all"),
            n_set_rows=self.buckets.rows.n_set_rows,
        )

    def _fitted(self, batch: Any, mode: Mode, hidden: bool) -> Batch:
        """The batch on the host at a capacity of the ladder, unless this engine can't take it in this mode."""
        batch = fitted(batch, self.batch_config.n_batch, self.buckets.capacity)
        if self.batch_invariant:
            check_batch(batch, mode, hidden=hidden, last=self._ranges()[1])
        if required_ubatch(batch, causal=bool(mode.causal)) > self.n_ubatch:
            raise refusal(Reason.UBATCH_TOO_SMALL, -1, found=int(batch.n_tokens), needed=self.n_ubatch)
        return batch

    def _plan(self, batch: Batch, mode: Mode) -> tuple[Prepared, Any]:
        """The prepared batch, and what the host needs of it."""
        prepared, packed = plan_decode(
            batch, self._cells, np.int32(self.n_ubatch), mode, self.batch_config, self.caches, self.n_ubatch
        )
        layout = self._layouts.get(batch.capacity)
        if layout is None:
            layout = Layout((prepared.plan, prepared.status, prepared.n_kv_needed, _PENDING))
            self._layouts[batch.capacity] = layout
        return prepared, layout.unpack(np.asarray(packed))
