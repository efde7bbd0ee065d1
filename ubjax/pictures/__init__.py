"""Pictures of batches, plans, ubatches, cells and masks as SVG, from plain arrays on the host.

Everything here knows numpy alone; the classes above hand their arrays down in `_repr_html_`.
"""

from ubjax.pictures.batch import draw_batch
from ubjax.pictures.cells import CellRows, draw_cells
from ubjax.pictures.plan import draw_plan
from ubjax.pictures.sheet import Picture
from ubjax.pictures.tokens import TokenRows
from ubjax.pictures.ubatch import draw_ubatch

__all__ = ["CellRows", "Picture", "TokenRows", "draw_batch", "draw_cells", "draw_plan", "draw_ubatch"]
