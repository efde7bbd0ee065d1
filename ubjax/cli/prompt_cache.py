"""`--prompt-cache FILE`: what a prompt left in the cache, for the next prompt that begins alike."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ubjax.engine import Engine
from ubjax.generate import Piece
from ubjax.pictures.wording import amount


class PromptCache:
    """A file with the state of one prompt and its tokens; read if it is there, written once a prompt is computed.

    As llama.cpp's --prompt-cache. A file that can't be loaded is an error, and stays as it is.
    """

    def __init__(self, engine: Engine, path: Path, ids: Sequence[int]):
        self._engine, self._path, self._ids = engine, path, list(ids)
        self._saved = False
        engine.prefix_cache = (
            True  # the prompt starts from what is kept, and is kept itself if it ends at once
        )
        if path.exists():
            tokens = engine.load_state(path, 0)
            engine.keep_prefix(0, tokens)
            self._saved = tokens == self._ids

    def on_piece(self, piece: Piece) -> None:
        """Write the file when the first piece has come: the sequence holds the prompt, and nothing behind it."""
        if not self._saved:
            self._saved = True
            self._engine.save_state(self._path, self._sequence(), self._ids)

    def _sequence(self) -> int:
        """The sequence that runs; or, when it has ended with its first token, the one that is kept with the prompt."""
        kept = self._engine.kept()
        held = [seq for seq in range(self._engine.memory.n_seq_max) if self._engine.pos_max(seq) >= 0]
        return next(seq for seq in held if kept.get(seq, tuple(self._ids)) == tuple(self._ids))

    def report(self, n_computed: int) -> None:
        """One line on stderr."""
        n = len(self._ids)
        cached = f"{n - n_computed} of {amount(n, 'prompt token was', 'prompt tokens were')}"
        print(f"{cached} in {self._path}", file=sys.stderr)
