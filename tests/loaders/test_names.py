import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loaders.tiny_gguf import (
    EMBD,
    FF,
    GGML,
    HEADS,
    HYPER,
    KV_HEADS,
    VOCAB,
    WIDTH,
    llama_tensors,
    write_gguf,
)
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import GGUFError, open_gguf
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import check_tensors, load_weights, split_name, tensor_specs, unpermute_rope


def rotated(pairs: np.ndarray, position: int, base: float) -> np.ndarray:
    """Rope on [..., pair, 2]: pair j turns by position * base^(-j / pairs)."""
    n = pairs.shape[-2]
    angle = position * base ** (-np.arange(n) / n)
    x, y = pairs[..., 0], pairs[..., 1]
    return np.stack([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], axis=-1)


def rope_norm(heads: np.ndarray, n_rot: int, position: int) -> np.ndarray:
    """NORM rope of ggml on [heads, width]: neighbours are a pair."""
    turned = rotated(heads[:, :n_rot].reshape(len(heads), n_rot // 2, 2), position, 10000.0)
    return np.concatenate([turned.reshape(len(heads), n_rot), heads[:, n_rot:]], axis=1)


def rope_neox(heads: np.ndarray, n_rot: int, position: int) -> np.ndarray:
    """NEOX rope on [heads, width]: value j and value j + n_rot / 2 are a pair."""
    first, second = heads[:, : n_rot // 2], heads[:, n_rot // 2 : n_rot]
    turned = rotated(np.stack([first, second], axis=-1), position, 10000.0)
    return np.concatenate([turned[..., 0], turned[..., 1], heads[:, n_rot:]], axis=1)


def converted(rows: np.ndarray, n_head: int) -> np.ndarray:
    """What the converter makes of a Hugging Face weight: row (head, half, j) becomes row (head, j, half)."""
    width = len(rows) // n_head
    out = np.empty_like(rows)
    for head in range(n_head):
        for half in range(2):
            for j in range(width // 2):
                out[head * width + 2 * j + half] = rows[head * width + half * (width // 2) + j]
    return out


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_attention_scores_survive_the_reordering(n_kv, group, n_pairs, n_plain, p, seed):
    rng = np.random.default_rng(seed)
    n_head, n_rot = n_kv * group, 2 * n_pairs
    width = n_rot + n_plain
    q = rng.standard_normal((n_head * width, 5)).astype(np.float32)
    k = rng.standard_normal((n_kv * width, 5)).astype(np.float32)
    q_bias, k_bias = q[:, 0].copy(), k[:, 1].copy()
    x, y = rng.standard_normal((2, 5))

    def scores(rope, q, q_bias, k, k_bias):
        queries = rope((q @ x + q_bias).reshape(n_head, width), n_rot, p)
        keys = rope((k @ y + k_bias).reshape(n_kv, width), n_rot, 3)
        return np.einsum("hd,hd->h", queries, np.repeat(keys, group, axis=0))

    as_in_file = scores(rope_norm, q, q_bias, k, k_bias)
    as_loaded = scores(
        rope_neox,
        *(unpermute_rope(weight, n_head, n_rot) for weight in (q, q_bias)),
        *(unpermute_rope(weight, n_kv, n_rot) for weight in (k, k_bias)),
    )
    np.testing.assert_allclose(as_loaded, as_in_file, rtol=1e-5, atol=1e-5)


def test_unpermute_by_hand():
    head = np.array([0, 1, 2, 3, 4, 5, 6], np.float32)
    np.testing.assert_array_equal(unpermute_rope(head, 1, 6), [0, 2, 4, 1, 3, 5, 6])
    np.testing.assert_array_equal(
        unpermute_rope(np.arange(8, dtype=np.float32), 2, 4), [0, 2, 1, 3, 4, 6, 5, 7]
    )


@pytest.mark.parametrize(("n_head", "n_rot"), [(0, 2), (5, 2), (2, 3), (2, 6)])
def test_unpermute_refuses_what_are_no_heads(n_head, n_rot):
    with pytest.raises(
        ValueError, match=f"8 rows are not {n_head} heads of which an even number, {n_rot}, is rot"
    ):
        unpermute_rope(np.zeros((8, 3), np.float32), n_head, n_rot)


def test_weights_come_as_they_were_before_conversion(tmp_path):
    rng = np.random.default_rng(0)
    original = llama_tensors(rng)
    original["output.weight"] = rng.standard_normal((VOCAB, EMBD)).astype(np.float32)
    original["rope_freqs.weight"] = np.array([1, 8], np.float32)
    for block in range(2):
        for role, size in {"attn_q": HEADS * WIDTH, "attn_k": KV_HEADS * WIDTH, "ffn_up": FF}.items():
            original[f"blk.{block}.{role}.bias"] = rng.standard_normal(size).astype(np.float32)
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    stored = {
        name: converted(value, heads[role]) if (role := split_name(name)[1].split(".")[0]) in heads else value
        for name, value in original.items()
    }
    file = open_gguf(write_gguf(tmp_path / "a.gguf", HYPER, stored))
    hyper = hyperparameters(file)
    assert hyper["optional_tensors"] == (
        "attn_k.bias",
        "attn_q.bias",
        "ffn_up.bias",
        "output.weight",
        "rope_freqs.weight",
    )
    assert not hyper["tie_embeddings"]
    weights = dict(load_weights(file, hyper))
    assert weights.keys() == original.keys()
    for name, value in original.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert not np.array_equal(stored["blk.0.attn_k.bias"], original["blk.0.attn_k.bias"])


SIZES = {
    "block_count": 1,
    "vocab_size": 7,
    "embedding_length": 6,
    "feed_forward_length": 8,
    "head_count": 3,
    "head_count_kv": 1,
    "key_length": 4,
    "value_length": 5,
    "rope_dimension_count": 2,
    "optional_tensors": (),
}
LLAMA_SHAPES = {
    "token_embd.weight": (7, 6),
    "output_norm.weight": (6,),
    "blk.0.attn_norm.weight": (6,),
    "blk.0.attn_q.weight": (12, 6),
    "blk.0.attn_k.weight": (4, 6),
    "blk.0.attn_v.weight": (5, 6),
    "blk.0.attn_output.weight": (6, 15),
    "blk.0.ffn_norm.weight": (6,),
    "blk.0.ffn_gate.weight": (8, 6),
    "blk.0.ffn_up.weight": (8, 6),
    "blk.0.ffn_down.weight": (6, 8),
}
QK_NORMS = {"blk.0.attn_q_norm.weight": (4,), "blk.0.attn_k_norm.weight": (4,)}
POST_NORMS = {"blk.0.post_attention_norm.weight": (6,), "blk.0.post_ffw_norm.weight": (6,)}


def specs_of(architecture, *optional):
    hyper = SIZES | {"architecture": architecture, "optional_tensors": optional}
    return {spec.name: spec.shape for spec in tensor_specs(hyper)}


def test_specs_of_a_tied_model_without_biases():
    assert specs_of("llama") == specs_of("qwen2") == LLAMA_SHAPES
    assert specs_of("qwen3") == LLAMA_SHAPES | QK_NORMS
    assert specs_of("gemma2") == LLAMA_SHAPES | POST_NORMS
    assert specs_of("gemma3") == LLAMA_SHAPES | POST_NORMS | QK_NORMS


def test_specs_of_fused_tensors():
    fused = LLAMA_SHAPES | {"blk.0.ffn_up.weight": (16, 6)}
    del fused["blk.0.ffn_gate.weight"]
    assert specs_of("phi3") == fused
    for part in "qkv":
        del fused[f"blk.0.attn_{part}.weight"]
    assert specs_of("phi3", "attn_qkv.weight") == fused | {"blk.0.attn_qkv.weight": (21, 6)}


@pytest.mark.parametrize("architecture", ["phi3", "llama"])
def test_fused_tensors_come_as_their_parts(tmp_path, architecture):
    """In a file of the architecture `llama` the rows of q and k are rotated as ever, in a fused tensor too."""
    plain = llama_tensors(np.random.default_rng(0))
    stored = dict(plain)
    for block in range(2):
        names = [f"blk.{block}.attn_{part}.weight" for part in "qkv"]
        stored[f"blk.{block}.attn_qkv.weight"] = np.concatenate([stored.pop(name) for name in names])
        if architecture == "phi3":
            names = [f"blk.{block}.ffn_{part}.weight" for part in ("gate", "up")]
            stored[f"blk.{block}.ffn_up.weight"] = np.concatenate([stored.pop(name) for name in names])
        else:
            for part, n_head in (("q", HEADS), ("k", KV_HEADS)):
                name = f"blk.{block}.attn_{part}.weight"
                plain[name] = unpermute_rope(plain[name], n_head, WIDTH)
    fields = {key.replace("llama.", f"{architecture}."): value for key, value in HYPER.items()}
    file = open_gguf(write_gguf(tmp_path / "a.gguf", fields, stored, architecture))
    hyper, told = hyperparameters(file), []
    weights = dict(load_weights(file, hyper, lambda *args: told.append(args)))
    assert weights.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert [i for _, i, _ in told] == list(range(1, len(stored) + 1))
    assert {name for name, _, _ in told} == set(stored)


def test_only_the_architecture_llama_has_rows_in_norm_order(tmp_path):
    tensors = llama_tensors(np.random.default_rng(0))
    fields = {key.replace("llama.", "qwen2."): value for key, value in HYPER.items()}
    file = open_gguf(write_gguf(tmp_path / "a.gguf", fields, tensors, "qwen2"))
    for name, value in load_weights(file, hyperparameters(file)):
        np.testing.assert_array_equal(value, tensors[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"blk.1.ffn_up.weight": None},
            r"the tensor 'blk.1.ffn_up.weight' is missing, shape \[16, 12\] is needed",
        ),
        (
            {"blk.0.attn_k.weight": np.ones((12, 12), np.float32)},
            r"the tensor 'blk.0.attn_k.weight' has shape \[12, 12\], \[4, 12\] is needed",
        ),
        ({"blk.0.attn_v.bias": np.ones(4, np.float32)}, r"the tensor 'blk.1.attn_v.bias' is missing"),
        (
            {"blk.0.attn_q_norm.weight": np.ones(4, np.float32)},
            r"the tensor 'blk.0.attn_q_norm.weight' is not one",
        ),
        (
            {"blk.2.attn_norm.weight": np.ones(12, np.float32)},
            r"'blk.2.attn_norm.weight' is not one .* with 2 blocks",
        ),
        ({f"blk.{'9' * 5000}.x": np.ones(1, np.float32)}, r"the tensor 'blk.9+\.\.\.' is not one"),
        (
            {"output_norm.weight": (np.ones(12, np.int32), GGML.I32)},
            r"the tensor 'output_norm.weight' has type I32, which cannot be dequantized",
        ),
    ],
)
def test_a_table_that_does_not_fit(tmp_path, change, message):
    tensors = {**llama_tensors(np.random.default_rng(0)), **change}
    path = write_gguf(
        tmp_path / "a.gguf", HYPER, {name: value for name, value in tensors.items() if value is not None}
    )
    file = open_gguf(path)
    with pytest.raises(GGUFError, match=f"a.gguf: .*{message}"):
        check_tensors(file, hyperparameters(file))


@pytest.mark.slow
def test_smollm2():
    file = open_gguf(find_model("smollm2"))
    hyper = hyperparameters(file)
    shapes = {name: weight.shape for name, weight in load_weights(file, hyper)}
    assert len(shapes) == 272
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 134_515_008
    assert shapes["blk.29.attn_k.weight"] == (192, 576)


@pytest.mark.slow
def test_gemma3():
    file = open_gguf(find_model("gemma3"))
    specs = check_tensors(file, hyperparameters(file))
    assert len(specs) == 236
    assert sum(int(np.prod(spec.shape)) for spec in specs) == 268_098_176
    assert {file.info(spec.name).type_name for spec in specs} == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}
