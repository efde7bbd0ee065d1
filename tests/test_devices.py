"""The control plane on the CPU device beside an accelerator (here a second CPU device), or in a program on it."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.test_decode_loop import KINDS
from tests.test_whole_decode import SIZES, S, batches, pair
from tests.tiny import CONFIG, one_capacity, state
from ubjax import Engine, EngineConfig, count_compilations
from ubjax.buckets import Bucket
from ubjax.control import plan_decode
from ubjax.host_batch import fitted
from ubjax.memory import caches
from ubjax.memory.init_batch import CAUSAL
from ubjax.models.decoder import Decoder
from ubjax.whole_decode import decode_whole

pytestmark = pytest.mark.slow  # many programs

CPU, ACCELERATOR = jax.devices("cpu")[:2]
SOME = pytest.mark.parametrize("kind", ["unified", "windows in streams"])


@functools.cache
def beside(kind):
    """An engine with weights and K/V on the accelerator, otherwise as those of `pair`."""
    config, sizes = KINDS[kind]
    with jax.default_device(ACCELERATOR):
        model = Decoder(config, rngs=nnx.Rngs(0))
    sizes = EngineConfig(**SIZES, **sizes)
    return one_capacity(Engine(model, None, sizes, rows=[(1 if sizes.kv_unified else S, 4)]))


def places(tree):
    return {device for leaf in jax.tree.leaves(tree) for device in leaf.devices()}


@SOME
def test_a_decode_transfers_nothing_unasked(kind):
    plain, engine = pair(kind)[0], beside(kind)
    plain.clear(), engine.clear()
    for n, arrays in enumerate(batches(kind)):
        decode = engine.decode_at_once if n == 1 else engine.decode
        outputs = np.flatnonzero(arrays["output"]).tolist()
        want = [plain.decode(plain.batch(**arrays)).logits(i) for i in outputs[:1]]
        with jax.transfer_guard("disallow"):
            found = decode(engine.batch(**arrays))
            logits = [found.logits(i) for i in outputs[:1]]
        np.testing.assert_array_equal(logits, want)
        assert places([buffer for buffer, _ in found.buffers()]) == {ACCELERATOR}
    assert engine.device == ACCELERATOR and places(vars(engine)["_kv"]) == {ACCELERATOR}
    assert places(vars(engine)["_cells"]) == {CPU}
    for a, b in zip(state(plain), state(engine), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_goes_from_device_to_device_unasked():
    """Sequence operations, what they owe, generation and states."""
    results = []
    for engine in (pair("windows in streams")[0], beside("windows in streams")):
        engine.clear()
        with jax.transfer_guard_device_to_device("disallow"):
            texts = engine.generate([[1, 2, 3], [4, 5]], max_tokens=6)
            engine.decode(engine.batch(np.arange(8), seq_id=[0] * 5 + [1] * 3))
            engine.shift(0, 0, 2)
            engine.cp(1, 3)
            logits = engine.decode(engine.batch([7, 8, 9], seq_id=[0, 3, 3])).logits(-1)
            saved = engine.get_state()
            engine.clear()
            engine.set_state(saved)
            results.append((logits.tolist(), saved, engine.get_state(), [text.tokens for text in texts]))
    assert results[0] == results[1] and results[0][1] == results[0][2]


@SOME
def test_batches_are_split_and_decoded_in_a_program_on_the_accelerator(kind):
    """Several batches in one scan: validation, split, slots and all ubatches of each, none of it on the host."""
    plain, engine = pair(kind)[0], beside(kind)
    plain.clear(), engine.clear()
    step, known = vars(engine)["_step"], engine.caches
    rows = {"n_blocks": 1 if engine.memory.unified else S, "n_block_rows": 4}
    sizes = {"n_vocab": CONFIG.n_vocab, "n_outputs": 16}

    @jax.jit
    def decoded(leaves, kv, cells, batches, n_ubatch):
        def one(state, batch):
            cells, kv = state
            prepared, _ = plan_decode(batch, cells, n_ubatch, CAUSAL, engine.batch_config, known, 4)
            model = functools.partial(step.pure, leaves)
            bucket = Bucket(**rows, n_outputs=4)
            logits, kv = decode_whole(model, cells, kv, batch, prepared, bucket, known, **sizes)
            return (prepared.cells, kv), (logits, prepared.status.code, prepared.plan.n_ubatches)

        return jax.lax.scan(one, (cells, kv), batches)

    wanted, given = [], []
    for arrays in batches(kind):
        batch = plain.batch(**arrays)
        given.append(fitted(batch, 16, plain.buckets.capacity))
        outputs = plain.decode(batch)
        wanted.append([outputs.logits(int(i)) for i in np.flatnonzero(arrays["output"])])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *given)
    kv = step.new_kv((48,) * len(known))
    arguments = jax.device_put((caches.empty(known), stacked, np.int32(4)), ACCELERATOR)
    with jax.transfer_guard("disallow"):
        (cells, kv), (logits, codes, n_ubatches) = jax.block_until_ready(decoded(step.leaves, kv, *arguments))
    assert places((cells, kv, logits)) == {ACCELERATOR}
    assert codes.tolist() == [0, 0, 0] and min(n_ubatches.tolist()) > 1
    for found, want in zip(np.asarray(logits), wanted, strict=True):
        np.testing.assert_allclose(found[: len(want)], want, rtol=0, atol=1e-5)
        assert not found[len(want) :].any()
    for a, b in zip(jax.tree.leaves((cells, kv)), state(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 if b.dtype == np.float32 else 0)
    with count_compilations() as count:  # other sizes of ubatches are data
        _, (_, _, more) = decoded(step.leaves, kv, *arguments[:2], jax.device_put(np.int32(3), ACCELERATOR))
    assert count.total == 0 and sum(more.tolist()) > sum(n_ubatches.tolist())
