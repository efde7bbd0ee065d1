"""The whole way of one batch as a picture: batch, ubatches, cells, masks."""

import textwrap
from collections.abc import Sequence
from typing import Any

import jax

from ubjax.config import MemoryConfig
from ubjax.memory.cells import Cells
from ubjax.pictures import Picture
from ubjax.pictures.batch import batch_sheet, describe_batch
from ubjax.pictures.cells import cells_sheet, describe_cells
from ubjax.pictures.grid import Limits, draw_tokens
from ubjax.pictures.mask import mask_sheet
from ubjax.pictures.plan import PANEL, ROOM, UBATCHES, gap_panel, shape_named
from ubjax.pictures.sheet import BOLD, FAINT, Sheet
from ubjax.pictures.wording import count, ends
from ubjax.typing import Text, Whole
from ubjax.viz.way import Way

MASKS = 3
_BATCH = Limits(across=24, lines=2)
_KEY = (
    "large: position, small: sequence; dot: output; hatched: padding; dashed: free cell; "
    "underlined: written by this batch; triangle: head"
)


def show(
    batch: Any,
    n_ubatch: Whole,
    strategy: Text = "equal",
    *,
    memory: MemoryConfig | None = None,
    cells: Cells | None = None,
    texts: Sequence[str] | None = None,
) -> Picture:
    """Draw what becomes of a Batch: its ubatches, padded to powers of two, the cells they get, what each row sees.

    `strategy`: simple, equal, equal-any or seq, as in `ubjax split`. `memory` and `cells` [NS, C]: the cache that the
    batch meets; without them an empty one with a little more room than needed, with a stream for each sequence for
    "equal" and "seq" and unified for the others. `texts` [n_tokens] are shown when the pointer is over a token. The
    batch is not validated. Jupyter shows the result, `to_svg` writes it to a file; what is too much is left out and
    counted.

    Raises ValueError for an unknown strategy, an n_ubatch below 1, a strategy that doesn't go with the memory's
    streams, and cells or texts of other sizes.
    """
    with jax.default_device(jax.devices("cpu")[0]):
        way = Way(batch, n_ubatch, strategy, memory, cells, texts)
        sheet = Sheet()
        tokens, n_padding = way.tokens(), way.batch.capacity - int(way.batch.n_tokens)
        label = f"{describe_batch(tokens, n_padding)}; {_describe_plan(way, strategy)}"
        _section(
            sheet, f"1  Batch: {describe_batch(tokens, n_padding)}", batch_sheet(tokens, n_padding, _BATCH)
        )
        _section(sheet, f"2  Ubatches: {_describe_plan(way, strategy)}", _ubatches(way))
        if way.refused is not None:
            _section(sheet, "3  Cells: none were given out", _sentence(way.refused))
        else:
            written = cells_sheet(way.cells(), way.written())
            _section(sheet, f"3  Cells after it: {describe_cells(way.cells())}", written)
            _section(sheet, "4  Masks: the cells that each row sees", _masks(way))
        sheet.text(0, sheet.height + 18, _KEY, size=10, look=FAINT)
    return sheet.picture(label)


def _section(sheet: Sheet, title: str, content: Sheet) -> None:
    """A headed part under what is there."""
    sheet.text(0, sheet.height + (34 if sheet.height else 14), title, look=BOLD)
    sheet.below(content)


def _describe_plan(way: Way, strategy: str) -> str:
    view = way.view
    fill = f", {view.n_padded:,} of {view.n_rows:,} rows are padding" if len(view) else ""
    return f"{strategy}, n_ubatch {way.n_ubatch}: {count(len(view), 'ubatch', 'ubatches')}{fill}"


def _sentence(text: str) -> Sheet:
    sheet = Sheet()
    for line in textwrap.wrap(text, 120):
        sheet.text(0, sheet.height + 12, line)
    return sheet


def _ubatches(way: Way) -> Sheet:
    """The first and last ubatches as panels."""
    n = len(way.view)
    first, last = ends(n, UBATCHES)
    panels = [_panel(way, k) for k in range(first)]
    if last:
        panels.append(gap_panel(n - first - last))
    panels += [_panel(way, k) for k in range(n - last, n)]
    sheet = Sheet()
    sheet.flow(panels, ROOM)
    return sheet


def _panel(way: Way, k: int) -> Sheet:
    sheet, ubatch = Sheet(), way.view[k]
    shape = shape_named(ubatch.n_tokens, ubatch.n_seqs, ubatch.equal_seqs)
    sheet.text(0, 12, f"ubatch {k}: {shape}")
    sheet.height += 4
    draw_tokens(sheet, *way.ubatch(k), PANEL)
    return sheet


def _masks(way: Way) -> Sheet:
    """The first ubatches' masks as panels."""
    panels = []
    for k, mask in enumerate(way.masks(MASKS)):
        panel = Sheet()
        panel.text(0, 12, f"ubatch {k}")
        panel.below(mask_sheet(mask), gap=4)
        panels.append(panel)
    if len(way.view) > MASKS:
        panels.append(gap_panel(len(way.view) - MASKS))
    sheet = Sheet()
    sheet.flow(panels, ROOM)
    return sheet
