"""`benchmarks/hlo.py`: K/V is updated in place by every program of a decode, and what copies it is found."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from benchmarks import hlo
from tests.test_decode_loop import KINDS
from ubjax import EngineConfig
from ubjax.memory.kv import KV
from ubjax.models.decoder import Decoder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_program_of_a_decode_keeps_kv_in_its_place(kind):
    config, sizes = KINDS[kind]
    n_kv = [48, 96] if kind == "unified" else [48]
    n_ctx = n_kv[-1] if sizes.get("kv_unified") else 3 * n_kv[-1]
    sizes = {**sizes, "n_ctx": n_ctx, "n_seq_max": 3, "n_batch": 6, "n_ubatch": 3, "kv_pad": 48}
    model = Decoder(dataclasses.replace(config, n_ctx_train=96), rngs=nnx.Rngs(0))
    # With 4 rows the scores of a head, turned round, would have the size of its keys.
    found = list(hlo.looks(model, EngineConfig(**sizes), rows="1,3", n_kv=n_kv))
    assert [fault for look in found for fault in hlo.faults(look)] == []
    made = {(look.rows, look.program) for look in found}
    assert made == {(rows, program) for rows in (1, 3) for program in ("step", "decode_steps")}
    assert len(found) == len(made) * len(n_kv) and ("windows" in kind) == ("windows" in found[0].cache)
    assert all(look.kept == look.of and look.whole == look.copied == 0 for look in found)


def test_what_copies_the_cache_is_found():
    kv = (KV(k=(jnp.zeros((2, 2, 64, 8)),), v=(), n_cells=64),)

    def read_through_a_slice(cache, row):
        cache = jax.lax.dynamic_update_slice(cache, row, (0, 0, 3, 0))
        return cache, jnp.einsum("shcd,shrd->shcr", cache[:, :, :32], row)

    arrays = kv[0].k[0], jnp.zeros((2, 2, 1, 8))
    for donated in ((0,), ()):
        compiled = jax.jit(read_through_a_slice, donate_argnums=donated).lower(*arrays).compile()
        n_whole, n_bytes = hlo.copies_of(compiled.as_text(), kv)
        assert n_whole >= 1 and n_bytes >= 2 * 2 * 64 * 8 * 4
    names = {"cache": "unified", "program": "step", "shape": "1x1", "rows": 1, "copied": 0, "temp": 0}
    assert hlo.faults(hlo.Look(**names, kept=8, of=8, whole=0)) == []
    lost, copied = hlo.faults(hlo.Look(**names, kept=0, of=8, whole=2))
    assert "0 of 8 bytes of K/V stay" in lost and "2 arrays of K/V are copied whole" in copied


@pytest.mark.slow
def test_the_command_ends_with_json(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["hlo.py", "--model", "tiny", "--sequences", "2", "--context", "256", "--rows", "2"]
    )
    hlo.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["faults"] == 0 and {row["cache"] for row in result["rows"]} == {"unified", "streams"}
