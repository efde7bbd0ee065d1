"""The memory of an attention model: cells, slots, sequence operations, masks, and the K/V arrays they describe.

plan = split_simple(batch, n_ubatch)
slot, cells', n_kv, status = prepare(cells, batch, plan, config, max_rows=...)     all ubatches or none
cells = apply_slot(cells, batch, plan, slot, k, config)                            as ubatch k runs
mask = attention_mask(cells, take_ubatch(batch, plan, k, bucket), n_kv, config)    what its rows see
"""

from ubjax.memory.cells import Cells
from ubjax.memory.context import context_shift
from ubjax.memory.init_batch import Prepared, init_batch
from ubjax.memory.kv import KV, grow
from ubjax.memory.mask import attention_mask, cell_valid
from ubjax.memory.ops import add, clear, cp, div, keep, pos_max, pos_min, rm, seq_ranges
from ubjax.memory.prepare import prepare
from ubjax.memory.slots import apply_slot

__all__ = [
    "KV",
    "Cells",
    "Prepared",
    "add",
    "apply_slot",
    "attention_mask",
    "cell_valid",
    "clear",
    "context_shift",
    "cp",
    "div",
    "grow",
    "init_batch",
    "keep",
    "pos_max",
    "pos_min",
    "prepare",
    "rm",
    "seq_ranges",
]
