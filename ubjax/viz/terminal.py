"""A cut batch as text for a terminal: a table of its ubatches, then their padded rows with one cell per token.

    equal: 3 ubatches, 2 shapes, 2 buckets; padding 4 of 20 rows, fill 80.0%
      ubatch  tokens  seqs x len  padded  out  sequences  batch rows
           0       4       4 x 1   4 x 1    1  0-3        0 5 10 15
           1       6       3 x 2   4 x 2    0  0-2        1-2 6-7 11-12
           2       6       3 x 2   4 x 2    0  0-2        3-4 8-9 13-14
           0  0|1|2|3
           1  00|11|22|..
           2  00|11|22|..

A cell shows the token's first sequence, and a + when it is in others as well; | parts the blocks of a rectangle.
Colours only repeat what the text says.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from ubjax.pictures.wording import amount, ends, ranges
from ubjax.viz.plan_view import BatchView, PlanView, UbatchView

# Backgrounds of the 256-colour palette on which black text is easy to read; neighbours differ in hue.
PALETTE = (81, 215, 120, 213, 227, 147, 203, 158, 180, 111, 155, 218)
SHOWN_FIRST, SHOWN_LAST = 5, 2  # ubatches that stand for a plan too long to be shown whole
SEQUENCES_WIDTH = 14
_HEADER = ("ubatch", "tokens", "seqs x len", "padded", "out", "sequences")
_PADDING, _PLAIN = -1, -2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ink:
    """What a terminal can show: ANSI colours or none, and the sign for a padded row."""

    colour: bool
    hatch: str = "."

    @classmethod
    def of(cls, *, terminal: bool, encoding: str, environ: Mapping[str, str]) -> "Ink":
        """Colours on a terminal unless NO_COLOR is set (https://no-color.org); a hatch where it can be encoded."""
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        try:
            hatch = "░"
            hatch.encode(encoding)
        except UnicodeEncodeError:
            hatch = "."
        return cls(colour=terminal and not plain, hatch=hatch)

    def heading(self, text: str) -> str:
        """Bold text."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def cells(self, cells: Iterable[tuple[str, int]]) -> str:
        """(text, kind) pairs side by side; the kind is a sequence id, padding or plain text."""
        runs = itertools.groupby(cells, key=lambda cell: cell[1])
        return "".join(self._run("".join(text for text, _ in run), kind) for kind, run in runs)

    def _run(self, text: str, kind: int) -> str:
        if not self.colour or kind == _PLAIN:
            return text
        style = "2" if kind == _PADDING else f"38;5;16;48;5;{PALETTE[kind % len(PALETTE)]}"
        return f"\x1b[{style}m{text}\x1b[0m"


class Canvas:
    """Draws plans of one batch in `width` columns; all cells have one width, so that tokens line up."""

    def __init__(self, batch: BatchView, ink: Ink, width: int):
        self.batch = batch
        self.ink = ink
        self.width = width
        shared = bool((batch.n_seqs > 1).any())
        label = len(str(batch.first_seq.max())) + shared
        # a space parts labels that need more than a digit
        self.cell_width = label if label == 1 else label + 1

    def rows_of_batch(self) -> str:
        """The tokens in batch order."""
        label = "batch "
        rows = np.arange(self.batch.n_tokens)
        return label + self.ink.cells(self._block(rows, len(rows), self.width - len(label)))

    def plan(self, view: PlanView) -> list[str]:
        """The lines of a plan: table, then cells; long plans are cut short in the middle."""
        if not len(view):
            return []
        first, last = len(view), 0
        if len(view) > SHOWN_FIRST + SHOWN_LAST + 1:
            first, last = SHOWN_FIRST, SHOWN_LAST
        shown = {k: view[k] for k in (*range(first), *range(len(view) - last, len(view)))}
        table = self._table(shown)
        number = max(len(_HEADER[0]), len(str(len(view) - 1)))
        room = self.width - number - 4
        picture = [f"  {k:>{number}}  {self.rows_of_ubatch(ubatch, room)}" for k, ubatch in shown.items()]
        if last:
            n = len(view) - first - last
            gap = f"  {'..':>{number}}  {amount(n, 'more ubatch', 'more ubatches')}"
            table.insert(1 + first, gap)
            picture.insert(first, gap)
        return table + picture

    def rows_of_ubatch(self, ubatch: UbatchView, room: int) -> str:
        """The padded rows of a ubatch in `room` columns: blocks, then rows of each, are left out in the middle."""
        bucket, length = ubatch.bucket, ubatch.block_tokens
        share = (room + 1) // bucket.n_blocks - 1
        least = 2 * self.cell_width + len(_gap(bucket.n_block_rows))
        rows = [ubatch.batch_idxs[b * length : (b + 1) * length] for b in range(bucket.n_blocks)]
        blocks = [self._block(filled, bucket.n_block_rows, max(share, least)) for filled in rows]
        size = 1 + sum(len(text) for text, _ in blocks[0])
        first, last = _ends(len(blocks), size, room + 1, " blocks")
        shown = [*blocks[:first], *blocks[len(blocks) - last :]]
        if last:
            shown.insert(first, [(_gap(len(blocks) - first - last, " blocks"), _PLAIN)])
        return self.ink.cells([cell for block in shown for cell in (("|", _PLAIN), *block)][1:])

    def _block(self, rows: np.ndarray, n_rows: int, room: int) -> list[tuple[str, int]]:
        """Cells of batch rows followed by padding up to `n_rows`, in about `room` columns."""
        first, last = _ends(n_rows, self.cell_width, room)
        places = (*range(first), *range(n_rows - last, n_rows))
        cells = [self._cell(int(rows[t])) if t < len(rows) else self._padding() for t in places]
        if last:
            cells.insert(first, (_gap(n_rows - first - last), _PLAIN))
        return cells

    def _cell(self, row: int) -> tuple[str, int]:
        seq = int(self.batch.first_seq[row])
        label = f"{seq}+" if self.batch.n_seqs[row] > 1 else str(seq)
        return label.rjust(self.cell_width), seq

    def _padding(self) -> tuple[str, int]:
        hatch = self.ink.hatch
        return (hatch if self.cell_width == 1 else " " + hatch * (self.cell_width - 1)), _PADDING

    def _table(self, shown: Mapping[int, UbatchView]) -> list[str]:
        entries = [_HEADER, *(_entry(k, ubatch) for k, ubatch in shown.items())]
        widths = [max(map(len, column)) for column in zip(*entries, strict=True)]
        left = [
            "  ".join([*map(str.rjust, texts[:-1], widths), texts[-1].ljust(widths[-1])]) for texts in entries
        ]
        room = self.width - len(left[0]) - 4
        rows = ["batch rows", *(ranges(ubatch.batch_idxs, room) for ubatch in shown.values())]
        return [f"  {texts}  {last}" for texts, last in zip(left, rows, strict=True)]


def _entry(k: int, ubatch: UbatchView) -> tuple[str, ...]:
    """What the table says of ubatch k, batch rows left out."""
    bucket = ubatch.bucket
    padded = f"{bucket.n_blocks} x {bucket.n_block_rows}" if ubatch.equal_seqs else str(bucket.n_rows)
    return (
        str(k),
        str(ubatch.n_tokens),
        f"{ubatch.n_seqs} x {ubatch.n_seq_tokens}",
        padded,
        str(ubatch.n_outputs),
        ranges(ubatch.seq_id_unq, SEQUENCES_WIDTH),
    )


def _gap(n: int, unit: str = "") -> str:
    return f"<{n} more{unit}>"


def _ends(n: int, size: int, room: int, unit: str = "") -> tuple[int, int]:
    """How many of n things of `size` columns to show before and behind a gap in `room` columns: (n, 0) when all fit."""
    if n * size <= room:
        return n, 0
    return ends(n, max(2, (room - len(_gap(n, unit))) // size))
