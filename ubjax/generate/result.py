"""What a generation gives back: pieces while it runs, generations at its end, and one report of what it cost."""

import dataclasses
import html

from ubjax.analysis import CompileCount
from ubjax.generate.sampler import TokenLogprob
from ubjax.pictures.wording import amount
from ubjax.usage import Usage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """What one step added to output `output` of prompt `index`: whole characters, and its tokens.

    The text may lag behind the tokens (half a character, or what may become a stop string). The last piece of an
    output has a finish_reason.
    """

    index: int
    output: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None


@dataclasses.dataclass(kw_only=True)
class Report:
    """What all prompts of one call cost together. Rates are in tokens per second.

    n_prompt: prompt tokens decoded, those again that a preempted output decoded twice. n_generated: tokens
    chosen. The seconds of a batch with both are divided by its tokens; compiling is part of them. n_preempted:
    how often an output was put back in the queue.
    """

    usage: Usage = dataclasses.field(default_factory=Usage)
    compilations: CompileCount = dataclasses.field(default_factory=CompileCount)
    n_prompt: int = 0
    n_generated: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    n_preempted: int = 0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second of prompt work."""
        return self.n_prompt / max(self.prompt_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Generated tokens per second of the other work."""
        return (self.usage.tokens - self.n_prompt) / max(self.decode_seconds, 1e-9)

    def __str__(self) -> str:
        again = f", {self.n_preempted} preempted" if self.n_preempted else ""
        again += " (with the time of compiling)" if self.compilations.total else ""
        return (
            f"{amount(self.n_prompt, 'prompt token')}, {self.prompt_rate:.1f} tokens/s; "
            f"{self.n_generated} generated, {self.decode_rate:.1f} tokens/s{again}\n{self.usage}\n{self.compilations}"
        )

    def _repr_html_(self) -> str:
        return _table(str(self).splitlines())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """One output of a prompt, and what it cost; printing it shows both.

    finish_reason: "stop" | "length" | "context" (the cache is full) | "cancelled" | "refused" (then `error`
    says why and there may be no tokens). logprobs: one entry a token, None unless asked for.
    first_token_seconds: from the call to the first token, waiting included; None without tokens.
    prompt_seconds: from the first batch with this prompt to the first token; decode_seconds: from there to the end.
    others: the further outputs of the same prompt, where n > 1. report: of the whole call.
    """

    index: int
    output: int
    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: str
    error: str | None
    logprobs: list[TokenLogprob] | None
    first_token_seconds: float | None
    prompt_seconds: float
    decode_seconds: float
    report: Report = dataclasses.field(repr=False)
    others: tuple["Generation", ...] = ()

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second."""
        return len(self.prompt_tokens) / max(self.prompt_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Decoded tokens per second, the first one (which the prompt gives) not counted."""
        return max(len(self.tokens) - 1, 0) / max(self.decode_seconds, 1e-9)

    def _cost(self) -> str:
        if self.error:
            return f"{self.finish_reason}: {self.error}"
        first = "" if self.first_token_seconds is None else f", first after {self.first_token_seconds:.2f} s"
        n = len(self.prompt_tokens)
        return (
            f"{amount(n, 'prompt token')}, {self.prompt_rate:.1f} tokens/s; {len(self.tokens)} "
            f"generated, {self.decode_rate:.1f} tokens/s{first} ({self.finish_reason})"
        )

    def __str__(self) -> str:
        return f"{self.text}\n\n{self._cost()}\n{self.report.usage}\n{self.report.compilations}"

    def _repr_html_(self) -> str:
        costs = [self._cost(), str(self.report.usage), str(self.report.compilations)]
        return f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre>' + _table(costs)


def _table(lines: list[str]) -> str:
    rows = "".join(f'<tr><td style="text-align: left">{html.escape(line)}</td></tr>' for line in lines)
    return f"<table>{rows}</table>"
