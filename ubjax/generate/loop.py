"""Loop: many outputs through one engine, a batch at each step.

admit -> share -> parts -> all generate?  no   decode (halve, preempt) -> sample -> transcripts -> pieces
                                          yes  many steps in one dispatch      -> transcripts -> pieces
"""

import time
from collections.abc import Mapping, Sequence

from ubjax.analysis import count_compilations
from ubjax.generate.decodes import Decodes, TextCodec
from ubjax.generate.request import N_BIAS, Request
from ubjax.generate.result import Piece, Report
from ubjax.generate.sampler import Sampler, TokenLogprob
from ubjax.generate.schedule import Part, Run, Schedule, halved
from ubjax.generate.steps import NextToken, Pace
from ubjax.generate.transcript import Transcript
from ubjax.memory import context_shift
from ubjax.outputs import Outputs
from ubjax.status import NoSlotError, Reason, refusal


class Output:
    """A run with its transcript, and when it was admitted, chose its first token and ended (perf_counter)."""

    def __init__(self, index: int, output: int, request: Request, codec: TextCodec | None):
        self.run = Run(index=index, output=output, request=request, ids=list(request.ids))
        self.transcript = Transcript(request, codec)
        self.started: float | None = None
        self.first: float | None = None
        self.ended: float | None = None

    def piece(self, text: str, tokens: tuple[int, ...] = ()) -> Piece:
        """A piece of this output as it stands."""
        return Piece(
            index=self.run.index,
            output=self.run.output,
            text=text,
            tokens=tokens,
            finish_reason=self.transcript.reason,
        )


class Loop:
    """Runs outputs on the sequences of an engine that are empty or only kept now; `report` counts what it costs.

    Raises ValueError when no sequence is empty, or max_prompt_tokens_per_batch < 1.
    """

    def __init__(
        self,
        engine: Decodes,
        outputs: Sequence[Output],
        *,
        max_prompt_tokens_per_batch: int | None = None,
        steps_per_dispatch: int | None = None,
    ):
        n_seqs = engine.memory.n_seq_max
        if max_prompt_tokens_per_batch is not None and max_prompt_tokens_per_batch < 1:
            raise ValueError(
                f"max_prompt_tokens_per_batch is {max_prompt_tokens_per_batch}, at least 1 is needed"
            )
        self._pace = Pace(steps_per_dispatch)
        free = engine.free_sequences()
        if not free:
            raise ValueError(f"all {n_seqs} sequences hold tokens, an empty one is needed (rm empties one)")
        self.report = Report()
        self._full = (
            False  # an output was put back, and nothing has given up cells since: another must not come in
        )
        self._engine = engine
        self._outputs = {output.run: output for output in outputs}
        self.schedule = Schedule(
            self._outputs,
            free,
            n_batch=engine.batch_config.n_batch,
            n_ubatch=engine.n_ubatch,
            max_prompt_tokens=max_prompt_tokens_per_batch,
            shared=engine.memory.unified,
        )
        # Cells that prompts will take for certain: K/V has them from the start, whichever prompts come first.
        lengths = sorted((len(run.ids) for run in self._outputs), reverse=True)[: len(self.schedule.free)]
        n_kv = sum(lengths) if engine.memory.unified else max(lengths, default=0)
        self._n_kv = min(n_kv, engine.memory.n_cells)
        requests = [run.request for run in self._outputs]
        self._in_loops = not any(request.logprobs for request in requests)  # those report no other tokens
        self._sampler = Sampler(
            n_seq_max=n_seqs,
            n_vocab=engine.batch_config.n_vocab,
            n_bias=max((request.sampling.n_bias for request in requests), default=N_BIAS),
            n_top=max((request.logprobs or 0 for request in requests), default=0),
            device=engine.device,
        )

    def step(self) -> list[Piece]:
        """Decode one batch; the pieces that came of it (none when an output was put back, or all is prompt)."""
        before, start = self._engine.usage.copy(), time.perf_counter()
        with count_compilations() as compiled:
            self._engine.reserve(self._n_kv)
            self._admit()
            parts, n_prompt, share = self.schedule.parts(), 0, 0.0
            pieces = self._steps(parts)
            if pieces is None:
                parts, outputs = self._decode(parts)
                n_prompt = sum(part.n_prompt for part in parts)
                share = n_prompt / max(sum(part.n for part in parts), 1)
                pieces = self._make_room() if outputs is None else self._take(parts, outputs)
        seconds = time.perf_counter() - start
        self.report.n_prompt += n_prompt
        self.report.n_generated += sum(len(piece.tokens) for piece in pieces)
        self.report.prompt_seconds += seconds * share
        self.report.decode_seconds += seconds * (1 - share)
        self.report.usage.add(self._engine.usage.since(before))
        self.report.compilations.include(compiled)
        return pieces

    def end(self, output: Output, reason: str, error: str | None = None) -> Piece:
        """End an output that has not ended; its cells are free."""
        text = output.transcript.end(reason, error)
        self._leave(output)
        return output.piece(text)

    def _leave(self, output: Output) -> None:
        output.ended = time.perf_counter()
        run, engine = output.run, self._engine
        seq = self.schedule.end(run)
        if seq is None:
            return
        self._full = False
        # What was shifted is not what its tokens would give from scratch.
        keep = engine.prefix_cache and run.cached and not run.n_dropped
        if keep and engine.pos_max(seq) >= run.cached and engine.can_resume(seq, run.cached):
            engine.rm(seq, run.cached)  # what a loop decoded behind a stop string
        if keep and engine.pos_max(seq) == run.cached - 1:
            engine.keep_prefix(seq, run.ids[: run.cached])
        else:
            engine.rm(seq)

    def _admit(self) -> None:
        if self._full:
            return
        n_free = self._engine.n_free_cells() if self.schedule.waiting else 0
        for run in self.schedule.admit(n_free, self._engine.claim):
            output = self._outputs[run]
            output.started = output.started or time.perf_counter()
            ids = [
                *run.request.ids,
                *output.transcript.tokens,
            ]  # those that were dropped count for the penalties
            self._sampler.start(run.sequence, run.request.sampling, run.output, ids)
        for donor, run in self.schedule.share(self._engine.can_resume):
            self._engine.start_from(donor.sequence, run.sequence, run.cached)

    def _steps(self, parts: Sequence[Part]) -> list[Piece] | None:
        """Many steps of all that runs, in one dispatch; None where a batch is needed: prompts, no cell, many rows.

        What waits joins no later than with single steps: it needs the cells of something that ends, and then the
        dispatch is over. A stop string is found out only afterwards, so that while something waits there is one step.
        """
        runs = [part.run for part in parts]
        generating = all(run.cached >= run.n_prefill and run.pending == 1 for run in runs)
        seqs = [run.sequence for run in runs]
        if not (self._in_loops and runs and generating and self._engine.loop_bucket(seqs)):
            return None
        waits = bool(self.schedule.waiting) or len(runs) < len(self.schedule.running)
        rows = [self._next_token(run) for run in runs]
        n = min(self._pace.steps, max(row.left for row in rows))
        n = 1 if waits and any(run.request.stop for run in runs) else n
        start, drawn = time.perf_counter(), None
        while n and drawn is None:
            try:
                drawn = self._sampler.steps(self._engine, rows, n, until_end=waits)
            except NoSlotError as error:
                n = error.fits
        if drawn is None:
            return None
        self._pace.took(time.perf_counter() - start, max(map(len, drawn)))
        return self._extend_by(runs, drawn)

    def _next_token(self, run: Run) -> NextToken:
        transcript = self._outputs[run].transcript
        room = self._engine.memory.n_cells - run.cached  # what is drawn behind the last cell is the last
        left = min(run.request.max_tokens - len(transcript.tokens), room)
        return NextToken(
            seq=run.sequence,
            token=run.ids[-1],
            pos=run.cached,
            left=left,
            stop=transcript.ends,
            dropped=run.n_dropped,
        )

    def _extend_by(self, runs: Sequence[Run], drawn: Sequence[Sequence[TokenLogprob | None]]) -> list[Piece]:
        """Give the runs their tokens, step by step; what a stop string ended gets none of the later ones."""
        pieces = []
        for i in range(max(map(len, drawn))):
            for run, tokens in zip(runs, drawn, strict=True):
                output = self._outputs[run]
                if i < len(tokens) and output.transcript.reason is None:
                    run.cached += 1
                    pieces.append(self._extend(output, tokens[i]))
        return pieces

    def _decode(self, parts: Sequence[Part]) -> tuple[Sequence[Part], Outputs | None]:
        """The parts that the cache took, with their outputs; none at all when not even one row has a cell."""
        while parts:
            try:
                return parts, self._engine.decode(self._engine.batch(**_arrays(parts)))
            except NoSlotError:
                parts = halved(parts)
        return [], None

    def _make_room(self) -> list[Piece]:
        """Put the newest run back in the queue, or end the one that is alone."""
        seq = self.schedule.preempt()
        if seq is None and self._shift(self.schedule.running[0]):
            return []
        if seq is None:
            return [self.end(self._outputs[self.schedule.running[0]], "context")]
        self._engine.rm(seq)
        self._full = True
        self.report.n_preempted += 1
        return []

    def _shift(self, run: Run) -> bool:
        """Make room in a context that is full, if that is wanted and can be done."""
        if not run.request.context_shift or run.cached < run.n_prefill:
            return False
        try:
            (p0, p1), _ = context_shift(run.cached, run.request.n_keep, 1, run.cached)
            self._engine.shift(run.sequence, p0, p1)
        except ValueError:  # nothing can go, or outputs share the cells
            return False
        run.drop(p0, p1)
        self._full = False
        return True

    def _take(self, parts: Sequence[Part], outputs: Outputs) -> list[Piece]:
        """Advance the runs by what was decoded and by the tokens that were chosen."""
        owner: dict[int, Run] = {}
        at = 0
        for part in parts:
            at += part.n
            if part.wanted:
                owner[at - 1] = part.run
            part.run.cached += part.n
        chosen = self._sampler.take(
            outputs, {i: (run.sequence, run.n_dropped + len(run.ids)) for i, run in owner.items()}
        )
        return [self._extend(self._outputs[run], chosen[i]) for i, run in owner.items()]

    def _extend(self, output: Output, chosen: TokenLogprob | None) -> Piece:
        """Give an output its next token; it ends here for whatever reason there is."""
        run, transcript = output.run, output.transcript
        if chosen is None:
            stuck = refusal(Reason.NOTHING_ALLOWED, where=run.sequence, found=0, needed=1)
            return self.end(output, "refused", str(stuck))
        output.first = output.first or time.perf_counter()
        n_before = len(transcript.tokens)
        text = transcript.take(chosen)
        full = transcript.reason is None and run.cached == self._engine.memory.n_cells
        if full and not self._shift(run):
            text += transcript.end("context")
        tokens = tuple(transcript.tokens[n_before:])
        run.ids.extend(tokens)
        if transcript.reason is not None:
            self._leave(output)
        return output.piece(text, tokens)


def _arrays(parts: Sequence[Part]) -> Mapping[str, list[int] | list[bool]]:
    """The batch of some parts, one behind the other."""
    return {
        "token": [token for part in parts for token in part.ids],
        "seq_id": [part.run.sequence for part in parts for _ in range(part.n)],
        "pos": [part.run.cached + i for part in parts for i in range(part.n)],
        "output": [part.wanted and i == part.n - 1 for part in parts for i in range(part.n)],
    }
