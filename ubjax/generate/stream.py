"""Stream: many prompts through one engine, as an iterator of pieces. Between them the caller may cancel prompts."""

import collections
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from ubjax.generate.decodes import Decodes
from ubjax.generate.loop import Loop, Output
from ubjax.generate.request import Refused, Request
from ubjax.generate.result import Generation, Piece, Report
from ubjax.pictures.wording import amount, noun


class Stream:
    """Iterates over the pieces of all outputs as they come; `results` has the whole at the end.

    Only sequences that are empty at the beginning are used, and each is empty again when its output ends; `close`
    (or leaving a `with` block, an error, or letting go of the stream) ends all that still run as cancelled. One stream
    at a time on an engine; sequences that were not empty may be decoded between its steps.

    Raises ValueError when a request names tokens outside the vocabulary, no sequence is empty, or
    max_prompt_tokens_per_batch < 1 (prompt tokens of one batch; default: what one ubatch has room for beside the
    rows that generate), or steps_per_dispatch is no number in [1, 32] (steps that the outputs that generate make in one
    dispatch; default: as many as take a tenth of a second).
    """

    def __init__(
        self,
        engine: Decodes,
        requests: Sequence[Request | Refused],
        *,
        max_prompt_tokens_per_batch: int | None = None,
        steps_per_dispatch: int | None = None,
    ):
        self._requests = tuple(requests)
        self._outputs: dict[tuple[int, int], Output] = {}
        self._pieces: collections.deque[Piece] = collections.deque()
        self._start = time.perf_counter()
        waiting = []
        for k, given in enumerate(self._requests):
            taken = isinstance(given, Request)
            request = given if taken else Request(ids=given.ids, n=given.n)
            if taken:
                request.check(engine.batch_config.n_vocab)
            for i in range(request.n):
                output = self._outputs[k, i] = Output(k, i, request, engine.tokenizer)
                if taken:
                    waiting.append(output)
                else:
                    text = output.transcript.end("refused", given.error)
                    self._pieces.append(output.piece(text))
        self._loop = Loop(
            engine,
            waiting,
            max_prompt_tokens_per_batch=max_prompt_tokens_per_batch,
            steps_per_dispatch=steps_per_dispatch,
        )

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Piece:
        try:
            while not self._pieces:
                if not self._loop.schedule:
                    raise StopIteration
                self._pieces.extend(self._loop.step())
        except BaseException:
            self.close()
            raise
        return self._pieces.popleft()

    def cancel(self, index: int) -> None:
        """End all outputs of prompt `index` that still run: their cells are free, the others go on as they would.

        What the last dispatch has drawn for them (see steps_per_dispatch) still comes, and is part of the results.
        Raises ValueError for an unknown prompt.
        """
        if not 0 <= index < len(self._requests):
            raise ValueError(f"prompt {index} is unknown, a prompt in [0, {len(self._requests)}) is needed")
        for i in range(self._requests[index].n):
            output = self._outputs[index, i]
            if output.transcript.reason is None:
                self._pieces.append(self._loop.end(output, "cancelled"))

    def close(self) -> None:
        """Cancel everything that still runs."""
        for index in range(len(self._requests)):
            self.cancel(index)

    def __del__(self) -> None:
        """End when nobody holds it any more, as a generator does: a loop that was left would keep its sequences."""
        if "_loop" in vars(self) and not sys.is_finalizing():
            self.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def report(self) -> Report:
        """What all outputs have cost so far."""
        return self._loop.report

    @property
    def results(self) -> list[Generation]:
        """The generation of each prompt, in order. Raises ValueError while some still run."""
        running = sum(output.transcript.reason is None for output in self._outputs.values())
        if running:
            raise ValueError(
                f"{running} of {amount(len(self._outputs), 'output')} "
                f"{noun(running, 'has', 'have')} not ended: iterate to the end, or close the stream"
            )
        return [
            self._generation(k, 0, tuple(self._generation(k, i) for i in range(1, request.n)))
            for k, request in enumerate(self._requests)
        ]

    def generation(self, index: int, number: int = 0) -> Generation:
        """Output `number` of a prompt, without the others. ValueError for one that is unknown or has not ended."""
        output = self._outputs.get((index, number))
        if output is None or output.transcript.reason is None:
            raise ValueError(f"output {number} of prompt {index} is unknown, or has not ended")
        return self._generation(index, number)

    def _generation(self, index: int, number: int, others: tuple[Generation, ...] = ()) -> Generation:
        output = self._outputs[index, number]
        run, transcript = output.run, output.transcript
        ended = output.ended or self._start
        first = output.first or ended
        return Generation(
            index=index,
            output=number,
            text=transcript.text,
            tokens=transcript.tokens,
            prompt_tokens=list(run.request.ids),
            finish_reason=transcript.reason or "",
            error=transcript.error,
            logprobs=None if run.request.logprobs is None else transcript.logprobs,
            first_token_seconds=None if output.first is None else first - self._start,
            prompt_seconds=0.0 if output.started is None else first - output.started,
            decode_seconds=ended - first,
            report=self.report,
            others=others,
        )
