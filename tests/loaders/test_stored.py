"""Models loaded as "stored": every row is that of the float32 load, and what is a matrix of blocks stays one."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.cli.tiny_model import TOKENS
from tests.loaders.test_blocks import bits
from tests.loaders.tiny_bert import bert_tensors, gguf_words, write_bert
from tests.loaders.tiny_gguf import GGML, vocabulary_fields, write_gguf
from tests.models.helpers import Cache, rows_of
from ubjax import load_model
from ubjax.cli import main
from ubjax.loaders import FolderError, bert, load_decoder, open_gguf
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import load_weights
from ubjax.models.matrix import Blocks, Matrix
from ubjax.models.quantized import QuantizedRows

EMBD, FF, HEADS, KV_HEADS = 64, 96, 4, 2
HYPER = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": EMBD,
    "feed_forward_length": FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
KV = EMBD * KV_HEADS // HEADS
SHAPES = {
    "attn_q": (EMBD, EMBD),
    "attn_k": (KV, EMBD),
    "attn_v": (KV, EMBD),
    "attn_output": (EMBD, EMBD),
    "ffn_gate": (FF, EMBD),
    "ffn_up": (FF, EMBD),
    "ffn_down": (EMBD, FF),
}
TYPES = (
    {"attn_q": "Q5_0", "attn_k": "Q8_0", "attn_v": "Q4_1", "attn_output": "Q5_1", "ffn_gate": "Q8_0",
     "ffn_up": "Q4_0", "ffn_down": "F32"},
    {"attn_q": "Q4_0", "attn_k": "F32", "attn_v": "Q8_0", "attn_output": "BF16", "ffn_gate": "Q4_1",
     "ffn_up": "Q4_1", "ffn_down": "Q5_0"},
)  # fmt: skip
# Of the first block all but the last are blocks; of the second one part of q, k and v is not.
BLOCKS = [
    "embedding", "layers.0.attn.qkv", "layers.0.attn.output", "layers.0.ffn.gate_up",
    "layers.1.ffn.gate_up", "layers.1.ffn.down",
]  # fmt: skip


def packed(values, name):
    return gguf.quants.quantize(values, GGML[name]), GGML[name]


def tiny_tensors():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return (rng.standard_normal(shape) / 8).astype(np.float32)

    tensors = {"token_embd.weight": packed(normal(len(TOKENS), EMBD), "Q8_0")}
    tensors["output_norm.weight"] = 1 + normal(EMBD)
    for i, types in enumerate(TYPES):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{norm}.weight"] = 1 + normal(EMBD)
        for part, kind in types.items():
            tensors[f"blk.{i}.{part}.weight"] = packed(normal(*SHAPES[part]), kind)
        tensors[f"blk.{i}.attn_q.bias"] = normal(EMBD)
        tensors[f"blk.{i}.attn_k.bias"] = normal(KV)
    return tensors


def fields_of(architecture):
    words = vocabulary_fields("gpt2", TOKENS, pre="gpt-2", merges=["a b"], eos_token_id=0)
    return words | {f"{architecture}.{key}": value for key, value in HYPER.items()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("stored") / "tiny.gguf", fields_of("llama"), tiny_tensors())


def matrices(model):
    """The matrices of a model, by their places."""
    return {
        ".".join(map(str, place)).removesuffix(".weight"): module
        for place, module in nnx.iter_modules(model)
        if isinstance(module, Matrix)
    }


def vectors(model):
    return [leaf for leaf in jax.tree.leaves(nnx.state(model)) if leaf.ndim == 1]


@jax.jit
def every_row(split):
    matrix = nnx.merge(*split)
    return matrix.rows(jnp.arange(matrix.shape[0]))


def check_rows(stored, full):
    """Every row of every matrix is the same, bit for bit."""
    found, want = matrices(stored), matrices(full)
    assert found.keys() == want.keys() and found
    for name, matrix in want.items():
        rows, full_rows = (every_row(nnx.split(kept)) for kept in (found[name], matrix))
        np.testing.assert_array_equal(bits(rows), bits(full_rows), err_msg=name)


def n_bytes(model):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))


def test_matrices_are_blocks_where_all_their_parts_are_and_rows_are_the_same(path):
    told = []
    (stored, _), (full, _) = (
        load_model(path, dtype="stored", on_tensor=lambda *n: told.append(n)),
        load_model(path),
    )
    check_rows(stored, full)
    kinds = {name: type(matrix) for name, matrix in matrices(stored).items()}
    assert sorted(name for name, kind in kinds.items() if kind is Blocks) == sorted(BLOCKS)
    plain = {type(matrix) for matrix in matrices(full).values()}
    assert {kind for kind in kinds.values() if kind is not Blocks} == plain
    assert len(told) == len(tiny_tensors())
    for i in range(2):
        for part in ("attn.qkv", "ffn.gate_up"):
            matrix = matrices(stored)[f"layers.{i}.{part}"]
            with_offset = (i, part) in ((0, "attn.qkv"), (1, "ffn.gate_up"))
            assert (getattr(matrix, "offset", None) is not None) == with_offset
    for found, want in zip(vectors(stored), vectors(full), strict=True):
        np.testing.assert_array_equal(bits(found), bits(want))


def test_logits_are_those_of_the_float32_load(path):
    found, want = (
        Cache(load_decoder(path, dtype=dtype)[0]).run([rows_of([5, 99, 7, 7, 200])])
        for dtype in ("stored", "float32")
    )
    assert np.ptp(want) > 1
    np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_fused_tensors_come_as_their_parts(tmp_path, architecture):
    tensors = tiny_tensors()
    for i in range(2):
        for name in ("attn_q.bias", "attn_k.bias", "attn_q.weight", "attn_k.weight", "attn_v.weight"):
            del tensors[f"blk.{i}.{name}"]
        rng = np.random.default_rng(i)
        tensors[f"blk.{i}.attn_qkv.weight"] = packed(rng.random((EMBD + 2 * KV, EMBD), np.float32), "Q5_1")
        if architecture == "phi3":
            del tensors[f"blk.{i}.ffn_gate.weight"]
            tensors[f"blk.{i}.ffn_up.weight"] = packed(rng.random((2 * FF, EMBD), np.float32), "Q8_0")
    file = open_gguf(write_gguf(tmp_path / "a.gguf", fields_of(architecture), tensors, architecture))
    hyper = hyperparameters(file)
    full, stored = (dict(load_weights(file, hyper, stored=stored)) for stored in (False, True))
    assert full.keys() == stored.keys()
    kept = {name for name, weight in stored.items() if isinstance(weight, QuantizedRows)}
    assert {f"blk.{i}.attn_{part}.weight" for i in range(2) for part in "qkv"} <= kept
    for name, weight in stored.items():
        rows = weight.full() if name in kept else weight
        np.testing.assert_array_equal(bits(rows), bits(full[name]), err_msg=name)


def test_only_matrices_stay_blocks(tmp_path):
    values = np.random.default_rng(0).random((2, 3, 64), np.float32)
    tensors = {
        "cube": packed(values, "Q8_0"),
        "vector": packed(values[0, 0], "Q8_0"),
        "half": packed(values[0], "F16"),
    }
    file = open_gguf(write_gguf(tmp_path / "a.gguf", {}, tensors))
    for name in tensors:
        np.testing.assert_array_equal(file.stored(name), file.tensor(name))


def test_an_encoder(tmp_path):
    sizes = {"block_count": 1, "context_length": 32, "embedding_length": 32, "feed_forward_length": 64}
    sizes |= {"attention.head_count": 4, "attention.layer_norm_epsilon": 1e-12}
    special = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    fields = {f"bert.{key}": value for key, value in sizes.items()}
    fields |= vocabulary_fields("bert", gguf_words(), [3] * 4 + [1] * 8, **special)
    rng, tensors, wider = np.random.default_rng(0), {}, {12: 32, 20: 64}
    for name, values in bert_tensors().items():
        vocabulary = "embeddings" in name and values.ndim == 2
        shape = [n if vocabulary and not axis else wider[n] for axis, n in enumerate(values.shape)]
        weight = rng.standard_normal(shape).astype(np.float32)
        tensors[bert.llama_cpp_name(name)] = packed(weight, "Q8_0") if len(shape) == 2 else weight
    path = write_gguf(tmp_path / "bert.gguf", fields, tensors, architecture="bert")
    (stored, _), (full, _) = load_model(path, dtype="stored"), load_model(path)
    check_rows(stored, full)
    assert {type(matrix) for matrix in matrices(stored).values()} == {Blocks}


def test_a_folder_is_refused_before_it_is_read(tmp_path, capsys):
    write_bert(tmp_path, bert_tensors())
    (tmp_path / "config.json").write_text("not read", "utf-8")
    sentence = (
        f"{tmp_path}: dtype is 'stored' but a folder holds no blocks, "
        "one of float32, bfloat16, float16, int8, q8_0 is needed"
    )
    with pytest.raises(FolderError) as caught:
        load_model(tmp_path, dtype="stored")
    assert str(caught.value) == sentence
    assert main(["embed", str(tmp_path), __file__, "--dtype", "stored"]) != 0
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_smollm2():
    (stored, tokenizer), (full, _) = load_decoder("smollm2", dtype="stored"), load_decoder("smollm2")
    check_rows(stored, full)
    assert {type(matrix) for matrix in matrices(stored).values()} == {Blocks}
    assert n_bytes(stored) < 0.32 * n_bytes(full)
    prompt = tokenizer.encode("The capital of France is")
    answer = [
        7042,
        30,
        198,
        198,
        504,
        2988,
        314,
        42,
    ]  # " Paris.\n\nThe answer is:", the most likely token each time
    rows = [rows_of(prompt + answer[:-1])]
    for model in (stored, full):
        logits = Cache(model).run(rows, n_outputs=16)
        assert logits[len(prompt) - 1 :].argmax(axis=1).tolist() == answer
