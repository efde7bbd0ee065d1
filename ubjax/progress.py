"""One line of progress on a terminal, redrawn in place: `loading smollm2 [#####     ] 120/272`."""

import sys
import time
from io import TextIOBase
from typing import TextIO

WIDTH = 20  # of the bar, in characters
SECONDS_UNSEEN = 2.0
SECONDS = 0.05  # between two drawings: a terminal is slow, and nobody reads faster


class Progress:
    """Counts up to `total` on `stream` (default: stderr).

    On a terminal the line is redrawn in place and ends when the count is complete or the block is left, by an
    error too. Elsewhere the label is printed once and nothing after it. Without a total (None) the first `update`
    may bring it.

    >>> with Progress(2, "loading tiny", sys.stdout) as progress:
    ...     for i in range(2):
    ...         progress.update(i + 1)
    loading tiny ...
    """

    def __init__(self, total: int | None, label: str, stream: TextIO | TextIOBase | None = None):
        self.total, self.label, self.done = total, label, 0
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._drawn = -1.0
        self._open = False
        if self._live:
            self._draw()
        else:
            print(f"{label} ...", file=self._stream, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def update(self, done: int, total: int | None = None) -> None:
        """`done` of the total are there; draws at most every SECONDS, and the last one always."""
        self.done, self.total = done, self.total if total is None else total
        if self._live and (self.done == self.total or time.monotonic() - self._drawn >= SECONDS):
            self._draw()

    def on_tensor(self, name: str, i: int, n: int) -> None:
        """`update` in the form that `load_model(on_tensor=...)` calls."""
        self.update(i, n)

    def close(self) -> None:
        """Draw what is reached and end the line, once."""
        if self._open:
            self._draw()
            print(file=self._stream, flush=True)
            self._open = False

    def _draw(self) -> None:
        bar = ""
        if self.total is not None:
            filled = WIDTH * min(self.done, self.total) // max(self.total, 1)
            bar = f" [{'#' * filled:{WIDTH}}] {self.done}/{self.total}"
        print(f"\r{self.label}{bar or ' ...'}\x1b[K", end="", file=self._stream, flush=True)
        self._drawn, self._open = time.monotonic(), True


class LateProgress:
    """A Progress on stderr for what turns out to take long: from `SECONDS_UNSEEN` on, and on a terminal alone."""

    def __init__(self, label: str):
        self._label, self._start = label, time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> "LateProgress":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def update(self, done: int, total: int) -> None:
        """`done` of the total are there."""
        late = time.monotonic() - self._start > SECONDS_UNSEEN
        if self._progress is None and late and done < total and sys.stderr.isatty():
            self._progress = Progress(total, self._label)
        if self._progress is not None:
            self._progress.update(done)

    def close(self) -> None:
        """End the line, if there is one."""
        if self._progress is not None:
            self._progress.close()
