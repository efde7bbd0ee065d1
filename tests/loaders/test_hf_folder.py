"""Folders as transformers writes them, and damaged ones: loaded whole, or refused in one sentence."""

import json
import shutil
import struct

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from tests.models.helpers import Cache, rows_of
from ubjax.loaders import FolderError, HFFolder, load_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 12,
    "tie_word_embeddings": True,
    "eos_token_id": 3,
}
WORDS = ["<s>", "</s>", "Ġa", "b", "a", "Ġ", "Ã", "©", "ab", "<tool>"]


def tokenizer_json():
    """Byte-level BPE of a few tokens; <s> comes first, <tool> is an added token that is not special."""
    added = [{"id": i, "content": WORDS[i], "special": i < 2} for i in (0, 1, 9)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": [token | flags for token in added],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE",
            "vocab": {word: i for i, word in enumerate(WORDS)},
            "merges": [["Ġ", "a"], ["a", "b"]],
        },
    }


def tensors():
    rng, layer = np.random.default_rng(0), "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (12, 8),
        "model.norm.weight": (8,),
        f"{layer}input_layernorm.weight": (8,),
        f"{layer}post_attention_layernorm.weight": (8,),
        f"{layer}self_attn.q_proj.weight": (8, 8),
        f"{layer}self_attn.k_proj.weight": (4, 8),
        f"{layer}self_attn.v_proj.weight": (4, 8),
        f"{layer}self_attn.o_proj.weight": (8, 8),
        f"{layer}mlp.gate_proj.weight": (12, 8),
        f"{layer}mlp.up_proj.weight": (12, 8),
        f"{layer}mlp.down_proj.weight": (8, 12),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder, files):
    for name, value in files.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")


@pytest.fixture
def folder(tmp_path):
    """A tiny llama, written by hand, with a table that older files carry and a model computes."""
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token }}ab"}
    write(
        tmp_path,
        {"config.json": CONFIG, "tokenizer.json": tokenizer_json(), "tokenizer_config.json": settings},
    )
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    safetensors.numpy.save_file(tensors() | extra, tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_is_a_model_and_its_tokenizer(folder):
    heard = []
    model, tokenizer = load_model(folder, on_tensor=lambda *args: heard.append(args))
    assert (model.config.architecture, model.config.n_vocab, model.config.tie_embeddings) == (
        "llama",
        12,
        True,
    )
    assert [args[1:] for args in heard] == [(i, 11) for i in range(1, 12)]
    np.testing.assert_array_equal(every_row(model.embedding), tensors()["model.embed_tokens.weight"])
    assert tokenizer.encode("ab a") == [0, 8, 2]
    assert tokenizer.encode("ab ab<s>", add_special=False) == [8, 2, 3, 0]
    assert 0 not in tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert tokenizer.encode("ab<tool>", add_special=False, parse_special=False) == [8, 9]
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.eos_id) == (12, 0, 1)
    assert tokenizer.eog_ids == {1, 3}  # </s>, and what config.json names
    assert tokenizer.decode([0, 8, 2, 6, 7, 9]) == "<s>ab aé<tool>"
    assert tokenizer.decode([0, 8, 9], skip_special=True) == "ab<tool>"
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}]) == [0, 8]
    with pytest.raises(ValueError, match=r"the lone surrogate U\+D800 at character 1"):
        tokenizer.encode("a\ud800")


def every_row(matrix):
    return matrix.rows(np.arange(matrix.shape[0], dtype=np.int32))


def test_weights_are_views_of_the_file_or_converted(folder):
    view = HFFolder(folder).tensor("model.norm.weight")
    assert not view.flags.owndata and not view.flags.writeable  # of the mapped file, nothing is read ahead
    del view
    safetensors.numpy.save_file(
        {name: w.astype(np.float16) for name, w in tensors().items()}, folder / "model.safetensors"
    )
    half = HFFolder(folder).tensor("model.norm.weight")
    assert half.dtype == np.float32
    np.testing.assert_array_equal(half, tensors()["model.norm.weight"].astype(np.float16))
    model, _ = load_model(folder, dtype="bfloat16")
    assert (model.embedding.values.dtype, model.norm.weight.dtype) == (jnp.bfloat16, jnp.float32)
    known = "float32, bfloat16, float16, int8, q8_0, stored"
    with pytest.raises(ValueError, match=f"dtype is 'int4', one of {known} is needed"):
        load_model(folder, dtype="int4")


def test_shards_and_names_without_the_head(folder):
    whole, (one, two) = tensors(), (folder / "a-1.safetensors", folder / "a-2.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: name.removeprefix("model.") for name in whole}
    where = {name: (one if i % 2 else two) for i, name in enumerate(whole)}
    for path in (one, two):
        part = {names[name]: w for name, w in whole.items() if where[name] == path}
        safetensors.numpy.save_file(part, path)
    index = {"metadata": {}, "weight_map": {names[name]: path.name for name, path in where.items()}}
    write(folder, {"model.safetensors.index.json": index})
    model, _ = load_model(folder)
    found = every_row(model.layers[0].ffn.down.weight)
    np.testing.assert_array_equal(found, whole["model.layers.0.mlp.down_proj.weight"])
    for name, words in (("../a-1.safetensors", "one of the folder's own"), ("b.safetensors", "no such file")):
        index["weight_map"]["norm.weight"] = name
        write(folder, {"model.safetensors.index.json": index})
        with pytest.raises(FolderError, match=words):
            load_model(folder)
    write(folder, {"model.safetensors.index.json": {"weight_map": {"x": 5}}})
    with pytest.raises(FolderError, match="names the file '5', one of the folder's own is needed"):
        load_model(folder)


def config(**change):
    return lambda folder: write(folder, {"config.json": CONFIG | change})


def tokens(**change):
    return lambda folder: write(folder, {"tokenizer.json": tokenizer_json() | change})


def weights(edit):
    def apply(folder):
        found = tensors()
        edit(found)
        safetensors.numpy.save_file(found, folder / "model.safetensors")

    return apply


def header(text, length=None):
    text = text.encode()
    start = struct.pack("<Q", len(text) if length is None else length)
    return lambda folder: (folder / "model.safetensors").write_bytes(start + text)


DAMAGED = {
    "no JSON": (lambda f: write(f, {"config.json": "{"}), "config.json: it is no JSON"),
    "a list": (lambda f: write(f, {"config.json": []}), "config.json: it is list, an object is needed"),
    "model type": (config(model_type="t5"), "model type 't5' is not supported, one of llama, "),
    "no size": (config(hidden_size=None), "the key 'hidden_size' of config.json is missing"),
    "size": (config(hidden_size="8"), "hidden_size is '8', a whole number from 1 is needed"),
    "layers": (config(num_hidden_layers=10**8), "num_hidden_layers is 100000000, .* tensors of 1 layers"),
    "epsilon": (config(rms_norm_eps=-1), "rms_norm_eps is -1, a number above 0 is needed"),
    "rope": (config(rope_scaling={"factor": "8"}), "factor is '8', a number above 0 is needed"),
    "rope kind": (config(rope_parameters=[1]), r"rope_parameters is \[1\], an object is needed"),
    "rope list": (config(rope_scaling={"mrope_section": [1, "a"]}), r"mrope_section is \[1, 'a'\], a number"),
    "text part": (config(text_config=[1]), r"text_config is \[1\], an object is needed"),
    "layers of the text part": (
        config(text_config={"num_hidden_layers": 9}),
        "num_hidden_layers is 9, and there",
    ),
    "layer types": (config(layer_types=["full_attention"] * 2), "a text for each layer is needed"),
    "heads": (config(num_attention_heads=9), "head_dim is 0, at least 1 is needed"),
    "shape": (config(intermediate_size=13), r"has shape \[8, 12\], \[8, 13\] is needed"),
    "unknown tensor": (weights(lambda w: w.update(lora=np.ones(2, np.float32))), "'model.lora' is not one"),
    "missing tensor": (weights(lambda w: w.pop("model.norm.weight")), "tensors are missing: output_norm"),
    "integers": (
        weights(lambda w: w.update({"model.norm.weight": np.ones(8, np.int64)})),
        "the tensor 'model.norm.weight' is I64 .8., floating point is needed",
    ),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors: 0 bytes were found"),
    "length": (header("{}", 2**60), "its header claims 1152921504606846976 bytes, 2 to 2 are possible here"),
    "header": (header("[1]  "), "its header is list, an object is needed"),
    "outside": (
        header('{"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'),
        "the tensor 'x' ends at byte 36 of the data, 0 bytes",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json: there is no such file"),
    "tokenizer": (tokens(model={"type": "BPE"}), "tokenizer.json: is no tokenizer: "),
    "ids": (
        tokens(added_tokens=[], model={"type": "BPE", "vocab": {"<s>": 99}, "merges": []}),
        r"has ids up to 99, ids in \[0, 12\) are needed",
    ),
    "eos": (
        lambda f: write(f, {"tokenizer_config.json": {"eos_token": "<end>"}}),
        "its eos_token is '<end>', a token of tokenizer.json is needed",
    ),
    "template": (
        lambda f: write(f, {"tokenizer_config.json": {"chat_template": 5}}),
        "its chat_template is int, text is needed",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_folders(folder, name):
    edit, words = DAMAGED[name]
    edit(folder)
    with pytest.raises(ValueError, match=words) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_templates_of_their_own_file_and_by_name(folder):
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "ab"}]
    write(folder, {"tokenizer_config.json": {"chat_template": named}})
    assert load_model(folder)[1].chat_template == "ab"
    write(folder, {"chat_template.jinja": "é"})
    assert load_model(folder)[1].chat_template == "é"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(FolderError, match=r"chat_template\.jinja: is no UTF-8"):
        load_model(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama, factors, biases", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"]
)
def test_what_transformers_saves_gives_its_logits(tmp_path, folder, name):
    from tests.models.test_peers import A, logits_of, peer

    target, model = tmp_path / "saved", peer(name)
    model.save_pretrained(target, max_shard_size="8KB")
    assert len(list(target.glob("*.safetensors"))) > 1
    shutil.copy(folder / "tokenizer.json", target)
    decoder, _ = load_model(target)
    found = Cache(decoder, n_cells=24).run([rows_of(A)])
    np.testing.assert_allclose(found, logits_of(model, A), atol=2e-5)
