"""The step: shared programs, donation, what the compiled program copies, and logits through the whole control plane."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.helpers import FULL, GROUPED, decoder, random_weights
from tests.models.oracle import Reference
from ubjax.analysis import count_compilations
from ubjax.batch import Batch
from ubjax.buckets import Bucket
from ubjax.config import BatchConfig, MemoryConfig
from ubjax.control import plan_decode, stage
from ubjax.memory.cells import Cells
from ubjax.memory.init_batch import CAUSAL
from ubjax.models.decoder import Decoder
from ubjax.step import Step

UNIFIED = MemoryConfig(n_cells=32, n_seq_max=4)
STREAMS = MemoryConfig(n_cells=32, n_seq_max=4, unified=False)
A, B = [5, 1, 30, 7, 7, 2], [36, 0, 4]


def staged_of(cells, memory, rows, bucket, n_vocab=37):
    """Rows (token, pos, seq) as one staged ubatch; every row is an output."""
    config = BatchConfig(n_vocab=n_vocab, n_batch=16, n_seq_max=memory.n_seq_max)
    batch = Batch.from_arrays(
        [token for token, _, _ in rows],
        pos=[pos for _, pos, _ in rows],
        seq_id=[seq for _, _, seq in rows],
        output=[True] * len(rows),
        config=config,
        capacity=16,
    )
    prepared, _ = plan_decode(batch, cells, np.array(16, np.int32), CAUSAL, config, (memory,), 16)
    assert int(prepared.status.code) == 0 and int(prepared.plan.n_ubatches) == 1
    zero = np.array(0, np.int32)
    at = (batch, prepared.plan, prepared.slot, zero, prepared.causal)
    return stage(prepared.cells, *at, bucket, (memory,))


def interleaved(start, stop):
    """The rows of A in sequence 1 and B in sequence 2 at these positions, position by position."""
    rows = [(t[p], p, s) for p in range(start, stop) for s, t in ((1, A), (2, B)) if p < len(t)]
    return rows, [(s, p) for _, p, s in rows]


@pytest.mark.parametrize(("memory", "n_kv"), [(UNIFIED, 16), (STREAMS, 32)], ids=["unified", "streams"])
def test_logits_equal_numpy_through_the_control_plane(memory, n_kv):
    step, cells = Step(decoder(GROUPED), (memory,)), (Cells.empty(memory),)
    kv = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), step.new_kv((n_kv,)))
    found = {}
    for start, stop, length in ((0, 2, 3), (2, 3, 1), (3, 6, 4)):
        rows, names = interleaved(start, stop)
        blocks = 1 if memory.unified else len({seq for seq, _ in names})
        length = max(length, len(rows)) if memory.unified else length
        staged = staged_of(cells, memory, rows, Bucket(n_blocks=blocks, n_block_rows=length, n_outputs=8))
        logits, kv = step(kv, staged)
        cells = staged.cells
        ubatch = jax.device_get(staged.ubatch)
        order = [int(i) for i in ubatch.batch_idx[ubatch.out_rows[ubatch.out_rows < len(ubatch.valid)]]]
        found |= {names[i]: row for i, row in zip(order, np.asarray(logits), strict=False)}
    reference = Reference(GROUPED, random_weights(GROUPED))
    for seq, tokens in ((1, A), (2, B)):
        rows = np.stack([found[seq, p] for p in range(len(tokens))])
        np.testing.assert_allclose(rows, reference.logits(tokens), atol=1e-5)


def test_models_of_one_configuration_share_a_program():
    bucket = Bucket(n_blocks=1, n_block_rows=1, n_outputs=1)
    config = dataclasses.replace(GROUPED, norm_eps=2e-5)  # a program that no other test has compiled
    models = [decoder(config, 0), decoder(config, 1), Decoder(config, rngs=nnx.Rngs(0))]
    steps = [Step(model, (STREAMS,)) for model in models]
    assert steps[0].program is steps[1].program is steps[2].program
    assert steps[0].program is not Step(decoder(GROUPED), (STREAMS,)).program
    assert steps[0].program is not Step(models[0], (UNIFIED,)).program
    logits = []
    with count_compilations() as count:
        for step in steps:
            kv, cells = step.new_kv((32,)), (Cells.empty(STREAMS),)
            for pos in range(2):
                for seq in range(4):
                    staged = staged_of(cells, STREAMS, [(5, pos, seq)], bucket)
                    row, kv = step(kv, staged)
                    cells = staged.cells
                    logits.append(np.asarray(row))
    assert count.by_name["jit(step)"] + count.by_name["step"] == 1
    np.testing.assert_allclose(logits[0], logits[3], atol=1e-5)  # another sequence, the same program and row
    assert np.abs(logits[0] - logits[8]).max() > 0.1  # another model


def test_kv_is_donated_and_nothing_else():
    step = Step(decoder(FULL), (UNIFIED,))
    staged = staged_of(
        (Cells.empty(UNIFIED),), UNIFIED, [(5, 0, 0)], Bucket(n_blocks=1, n_block_rows=1, n_outputs=1)
    )
    kv = step.new_kv((32,))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(kv)]
    _, after = step(kv, staged)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(kv))
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after)] == pointers
    assert not any(leaf.is_deleted() for leaf in (*step.leaves, *jax.tree.leaves(staged)))


def test_the_step_runs_where_the_weights_are():
    device = jax.devices()[1]
    with jax.default_device(device):
        model = Decoder.from_weights(GROUPED, random_weights(GROUPED).items())
    step = Step(model, (UNIFIED,))
    staged = staged_of(
        (Cells.empty(UNIFIED),), UNIFIED, [(5, 0, 0)], Bucket(n_blocks=1, n_block_rows=1, n_outputs=1)
    )
    logits, kv = step(step.new_kv((16,), "bfloat16"), staged)
    assert step.device == device and logits.devices() == {device}
    assert {leaf.dtype for leaf in jax.tree.leaves(kv)} == {jnp.dtype("bfloat16")}
    assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(kv))


def copied_elements(hlo):
    """Elements of each array that a compiled program copies as it is or turned round."""
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* (?:copy|transpose)\(", hlo)
    return [math.prod(int(n) for n in shape.split(",") if n) for shape in shapes]


def test_the_search_for_copies_finds_one():
    def read_through_a_slice(cache, row):
        cache = jax.lax.dynamic_update_slice(cache, row, (3, 0))
        return cache, cache[:64] @ row[0]

    arrays = jax.ShapeDtypeStruct((256, 32), jnp.float32), jax.ShapeDtypeStruct((1, 32), jnp.float32)
    compiled = jax.jit(read_through_a_slice, donate_argnums=0).lower(*arrays).compile()
    assert max(copied_elements(compiled.as_text()), default=0) >= 256 * 32


SHAPES = {
    "1 row": (UNIFIED, 1, 1),
    "4 rows": (UNIFIED, 1, 4),
    "16 rows": (UNIFIED, 1, 16),
    "32 rows, of which half are padding": (UNIFIED, 1, 32),
    "1 stream of 4": (STREAMS, 1, 1),
    "all streams": (STREAMS, 4, 1),
    "3 rows in each of 2 streams": (STREAMS, 2, 3),
}


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_program_copies_a_cache(shape, n_kv_heads):
    memory, n_blocks, length = shape
    memory = dataclasses.replace(memory, n_cells=512)
    config = dataclasses.replace(GROUPED, n_layers=1, head_dim=256, n_kv_heads=n_kv_heads)
    step = Step(decoder(config), (memory,))
    bucket = Bucket(n_blocks=n_blocks, n_block_rows=length, n_outputs=1)
    rows = [(5, t, s) for s in range(n_blocks) for t in range(min(length, 16))]
    staged = staged_of((Cells.empty(memory),), memory, rows, bucket)
    compiled = step.program.lower(step.leaves, step.new_kv((512,)), staged).compile()
    one_head_of_one_stream = 512 * config.head_dim  # more than all scores, which may be turned round
    assert max(copied_elements(compiled.as_text()), default=0) < one_head_of_one_stream
    assert compiled.memory_analysis().alias_size_in_bytes == step.new_kv((512,))[0].nbytes
