"""Transcript: one output as it grows, token by token: its text, and why it ends."""

from ubjax.generate.decodes import TextCodec
from ubjax.generate.request import Request
from ubjax.generate.sampler import TokenLogprob
from ubjax.generate.stops import StopTail


class Transcript:
    """Tokens, text and end of one output.

    `reason` is None until it ends: "stop" (an end-of-generation token, a stop token, a stop string), "length"
    (max_tokens), "context" (no cell for another token), "cancelled" or "refused" (`error` says why). The token that
    completes a stop string is kept, its text is cut; tokens that end an output are no part of it.
    """

    def __init__(self, request: Request, codec: TextCodec | None):
        self._request = request
        self._stream = codec.stream() if codec else None
        self.ends = request.stop_tokens.union(codec.eog_ids if codec else ())
        self._tail = StopTail(request.stop)
        self._pieces: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: str | None = None
        self.error: str | None = None

    @property
    def text(self) -> str:
        """The text so far, without what could still become a stop string."""
        return "".join(self._pieces)

    def take(self, chosen: TokenLogprob) -> str:
        """Add a chosen token; the text that can be shown now. Sets `reason` when the output ends with it."""
        if chosen.token in self.ends:
            return self.end("stop")
        self.tokens.append(chosen.token)
        if self._request.logprobs is not None:
            self.logprobs.append(chosen)
        text = self._emit(self._stream.feed([chosen.token])) if self._stream else ""
        if self._tail.stopped is not None:
            self.reason = "stop"
        elif len(self.tokens) == self._request.max_tokens:
            text += self.end("length")
        return text

    def end(self, reason: str, error: str | None = None) -> str:
        """End the output; the text that was waiting for more (half a character becomes U+FFFD)."""
        text = self._emit(self._stream.flush()) if self._stream else ""
        rest = self._tail.flush()
        self._pieces.append(rest)
        self.reason, self.error = reason, error
        return text + rest

    def _emit(self, text: str) -> str:
        text = self._tail.feed(text)
        self._pieces.append(text)
        return text
