"""Folders of BERT that are damaged or are another model: one sentence about the folder; prompts and pairs of texts."""

import json
import sys
import types
from unittest import mock

import numpy as np
import pytest

from tests.loaders.tiny_bert import WORDS, bert_tensors, gguf_words, write_bert
from tests.loaders.tiny_gguf import vocabulary_fields, write_gguf
from ubjax import Engine, EngineConfig, load_model
from ubjax.cli import main
from ubjax.loaders import FolderError, GGUFError, bert

N = 12


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


CHANGED = {
    "roberta": (
        {"model_type": "roberta"},
        r"the model type 'roberta' is not supported \(its positions begin behind a padding token\), one of llama, ",
    ),
    "xlm-roberta": ({"model_type": "xlm-roberta"}, r"'xlm-roberta' is not supported \(its positions begin"),
    "another": (
        {"model_type": "nomic_bert"},
        "the model type 'nomic_bert' is not supported, one of llama, .*, bert is",
    ),
    "no type": ({"model_type": None}, "the key 'model_type' of config.json is missing"),
    "causal": (
        {"is_decoder": True},
        "is_decoder is true, a model whose tokens see all of their text is needed",
    ),
    "causal?": ({"is_decoder": 1}, "is_decoder is 1, true or false is needed"),
    "positions": ({"position_embedding_type": "relative_key"}, "learned positions are needed"),
    "activation": ({"hidden_act": "silu"}, "the activation 'silu' is not supported, one of gelu, "),
    "heads": ({"num_attention_heads": 5}, "5 heads can't share a width of 12, a divisor is needed"),
    "layers": ({"num_hidden_layers": 2}, "num_hidden_layers is 2, and there are tensors of 1 layers"),
    "words": ({"vocab_size": 5}, r"tokenizer.json: has ids up to 11, ids in \[0, 5\) are needed"),
    "more words": (
        {"vocab_size": 99},
        r"the tensor 'token_embd.weight' has shape \[12, 12\], \[99, 12\] is needed",
    ),
    "places": (
        {"max_position_embeddings": 31},
        r"'position_embd.weight' has shape \[32, 12\], \[31, 12\] is needed",
    ),
    "types": ({"type_vocab_size": 3}, r"'token_types.weight' has shape \[2, 12\], \[3, 12\] is needed"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_configurations_that_are_refused(tmp_path, name):
    change, words = CHANGED[name]
    write_bert(tmp_path, bert_tensors(), **change)
    with pytest.raises(FolderError, match=f"^{tmp_path}.*{words}") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


EDITED = {
    "missing": (
        lambda w: w.pop("embeddings.word_embeddings.weight"),
        "tensors are missing: token_embd.weight",
    ),
    "half a pooler": (lambda w: w.pop("pooler.dense.bias"), "tensors are missing: cls.bias"),
    "head of one axis": (
        lambda w: w.update({"classifier.weight": ones(N), "classifier.bias": ones(N)}),
        r"the tensor 'cls.output.weight' has shape \[12\], \[12, 12\] is needed",
    ),
    "head of no axis": (
        lambda w: w.update({"classifier.weight": ones(), "classifier.bias": ones(1)}),
        r"the tensor 'cls.output.weight' has shape \[\], \[1, 12\] is needed",
    ),
    "unknown": (lambda w: w.update({"lora.weight": ones(2)}), "the tensor 'lora.weight' is not one that"),
    "two layers": (
        lambda w: w.update({"encoder.layer.1.output.dense.bias": ones(N)}),
        "is not one that this model",
    ),
    "twice": (
        lambda w: w.update({"bert.pooler.dense.bias": ones(N)}),
        "the tensor 'cls.bias' was given twice",
    ),
    "integers": (
        lambda w: w.update({"pooler.dense.bias": ones(N, dtype=np.int8)}),
        r"the tensor 'pooler.dense.bias' is I8 \[12\], floating point is needed",
    ),
}


@pytest.mark.parametrize("name", EDITED)
def test_weights_that_are_refused(tmp_path, name):
    edit, words = EDITED[name]
    tensors = bert_tensors(n_labels=2)
    edit(tensors)
    write_bert(tmp_path, tensors)
    with pytest.raises(FolderError, match=f"^{tmp_path}.*{words}"):
        load_model(tmp_path)


@pytest.mark.parametrize("part", [0, 7, 100, 0.5, 0.99])
def test_cut_weights_are_refused(tmp_path, part):
    write_bert(tmp_path, bert_tensors())
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: part if isinstance(part, int) else int(part * len(data))])
    with pytest.raises(FolderError, match=f"^{path}: "):
        load_model(tmp_path)


@pytest.mark.parametrize("token", [5, [1], {"content": [1]}, "[NONE]"])
def test_special_tokens_that_are_none(tmp_path, token):
    write_bert(tmp_path, bert_tensors())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"cls_token": token}), "utf-8")
    with pytest.raises(FolderError, match=r"its cls_token is .*, a token of tokenizer.json is needed"):
        load_model(tmp_path)


def test_a_gguf_that_is_refused(tmp_path):
    fields = {
        "bert.block_count": 1,
        "bert.context_length": 32,
        "bert.embedding_length": N,
        "bert.feed_forward_length": 20,
        "bert.attention.head_count": 3,
        "bert.attention.layer_norm_epsilon": 1e-12,
    }
    special = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    fields |= vocabulary_fields("bert", gguf_words(), [3] * 4 + [1] * 8, **special)
    named = {bert.llama_cpp_name(name): weight for name, weight in bert_tensors().items()}
    without = {name: weight for name, weight in named.items() if name != "blk.0.attn_q.bias"}
    for more, tensors, words in (
        (
            {"bert.attention.causal": True},
            named,
            "bert.attention.causal is true, a model whose tokens see all",
        ),
        ({"bert.pooling_type": 9}, named, "bert.pooling_type is 9, 0 to 4 is needed"),
        ({}, without, "tensors are missing: blk.0.attn_q.bias"),
        ({}, named | {"position_embd.weight": ones(32, 13)}, r"has shape \[32, 13\], \[32, 12\] is needed"),
    ):
        path = write_gguf(tmp_path / "m.gguf", fields | more, tensors, architecture="bert")
        with pytest.raises(GGUFError, match=f"^{path}: .*{words}"):
            load_model(path)
    path = write_gguf(tmp_path / "m.gguf", {"nomic-bert.block_count": 1}, named, architecture="nomic-bert")
    with pytest.raises(
        GGUFError, match=r"the architecture 'nomic-bert' is not supported, one of llama, .*, bert is"
    ):
        load_model(path)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A model that ranks, with prompts."""
    folder = write_bert(tmp_path_factory.mktemp("bert"), bert_tensors(n_labels=1))
    settings = {"prompts": {"query": "dog ", "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), "utf-8")
    return Engine(*load_model(folder), EngineConfig(n_batch=32, n_ubatch=16, n_seq_max=4))


def test_prompts_come_before_texts(engine):
    texts = ["a cat", "cats !"]
    want = engine.embed([f"dog {text}" for text in texts])
    np.testing.assert_array_equal(engine.embed(texts, prompt_name="query"), want)
    np.testing.assert_array_equal(engine.embed(texts, prompt_name="document"), engine.embed(texts))
    ids = [engine.tokenizer.encode(text) for text in texts]
    prompts = engine.tokenizer.prompts
    try:
        engine.tokenizer.prompts = type(prompts)(texts=prompts.texts, default="query")
        np.testing.assert_array_equal(engine.embed(texts), want)
        plain = engine.embed(ids)  # ids are taken as they are
        np.testing.assert_array_equal(engine.embed(texts, prompt_name="document"), plain)
    finally:
        engine.tokenizer.prompts = prompts
    for given, name, words in (
        (texts, "passage", "text 0: the prompt 'passage' is not known, one of query, document is needed"),
        (texts, ["query"], r"text 0: the prompt \['query'\] is not known"),
        ([[1, 2]], "query", "text 0 is token ids, a text is needed to begin with a prompt"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.embed(given, prompt_name=name)


def test_documents_that_are_none(engine):
    assert engine.rerank("a", []).shape == (0,)
    scores = engine.rerank("a", ["cat", "dogs a"])
    for documents in (("cat", "dogs a"), iter(["cat", "dogs a"]), np.array(["cat", "dogs a"])):
        np.testing.assert_array_equal(engine.rerank("a", documents), scores)
    for query, documents, words in (
        ("a", "cat", "the documents are one text, a list of texts is needed"),
        ("a", None, "the documents are None, a list of texts is needed"),
        ("a", {"cat"}, "the documents are {'cat'}, a list of texts is needed"),
        ("a", {"cat": 1}, "the documents are {'cat': 1}, a list"),
        ("a", b"cat", "the documents are b'cat', a list"),
        ("a", ["cat", None], "document 1 is None, a text is needed"),
        ("a", [["cat"]], r"document 0 is \['cat'\], a text is needed"),
        (None, ["cat"], "the query is None, a text is needed"),
        (["a"], ["cat"], r"the query is \['a'\], a text is needed"),
        ("a", ["cat", "\ud800"], r"document 1: the text has the lone surrogate U\+D800"),
        ("\ud800", ["cat"], r"the query: the text has the lone surrogate U\+D800"),
        ("a", ["cat", "a " * 14], r"document 1 has 18 tokens, 1 to 16 \(n_ubatch\) are possible"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            engine.rerank(query, documents)


def test_text_of_any_kind(engine):
    """What the vocabulary lacks is one unknown token; nothing between the special tokens is a text too."""
    odd = ["", " ", "\0", "\u200b", "é\u0301", "🦙", "\u2028", "\x7f", "a" * 10_000, "漢字"]
    assert np.isfinite(engine.embed(odd)).all()
    unknown = engine.embed([[2, WORDS.index("[UNK]"), 3]])
    np.testing.assert_allclose(engine.embed("🦙"), unknown, atol=1e-6)
    with pytest.raises(ValueError, match=r"^text 1: the text has the lone surrogate U\+D800 at character 1"):
        engine.embed(["a", "a\ud800"])
    with pytest.raises(ValueError, match=r"^text 0 has 20002 tokens, 1 to 16 \(n_ubatch\) are possible"):
        engine.embed("a " * 20_000)
    found = engine.embed(["a"] * 999 + ["cat"])
    np.testing.assert_allclose(found[[0, 998, 999]], engine.embed(["a", "a", "cat"]), atol=1e-6)


def test_a_name_of_the_hub(engine, tmp_path, monkeypatch, capsys):
    """From the download to vectors, in Python and on the command line."""
    folder = write_bert(tmp_path, bert_tensors(n_labels=1))
    hub, asked = types.ModuleType("huggingface_hub"), []
    hub.snapshot_download = lambda name, allow_patterns: asked.append(name) or str(folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    found = Engine(*load_model("owner/tiny-bert"), EngineConfig(n_batch=32, n_ubatch=16, n_seq_max=4))
    want = engine.embed(["a cat", "dog"])
    np.testing.assert_array_equal(found.embed(["a cat", "dog"]), want)
    (tmp_path / "texts.txt").write_text("a cat\ndog\n", "utf-8")
    sizes = ["--n-batch", "32", "--n-ubatch", "16", "--n-seq-max", "4"]
    assert main(["embed", "owner/tiny-bert", str(tmp_path / "texts.txt"), *sizes]) == 0
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_array_equal(np.array(out, np.float32), want)
    assert asked == ["owner/tiny-bert"] * 2
    hub.snapshot_download = lambda name, allow_patterns: str(folder / "none")
    assert main(["embed", "owner/tiny-bert", str(tmp_path / "texts.txt")]) == 2
    assert "the hub's model 'owner/tiny-bert' has no config.json" in capsys.readouterr().err


@pytest.mark.slow
def test_the_package_of_the_hub_takes_these_arguments(tmp_path, monkeypatch):
    import huggingface_hub

    write_bert(tmp_path, bert_tensors())
    download = mock.create_autospec(huggingface_hub.snapshot_download, return_value=str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_model("owner/tiny-bert")[0].config.n_embd == N
