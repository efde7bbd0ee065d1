"""Stop strings in text that arrives in pieces.

    stop "END"      pieces   "the "  "E"   "N"   "TRY "    "EN"  "D of"
                    emitted  "the "  ""    ""    "ENTRY "  ""    ""        stopped, " of" is dropped

What could still become a stop string is held back, the rest goes out at once. However the text is cut into
pieces, the result is the same: the stop that is complete first wins, among those the longest, and the text ends
where it begins.
"""

from collections.abc import Sequence


class StopTail:
    """Holds back the end of a text; `stopped` is the stop string that was found, or None."""

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to emit now; nothing after a stop."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stopped = min(found)
            self._held = ""
            return text[:at]
        kept = len(text) - max((_beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[kept:]
        return text[:kept]

    def flush(self) -> str:
        """What was held back: the text has ended, no stop can follow."""
        text, self._held = self._held, ""
        return text


def _beginning(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of a stop string."""
    return next((k for k in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:k])), 0)
