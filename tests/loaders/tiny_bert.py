"""Tiny folders of BERT: a WordPiece tokenizer of a dozen tokens, random weights of one layer."""

import json

import numpy as np
import safetensors.numpy

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "a", "cat", "##s", "!", "dog"]
TINY = {
    "vocab_size": len(WORDS),
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 32,
}


def wordpiece_json():
    """The tokenizer, which cuts and pads as they come with a folder; neither is wanted here."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)

    def piece(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    single = [piece("SpecialToken", "[CLS]", 0), piece("Sequence", "A", 0), piece("SpecialToken", "[SEP]", 0)]
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [{"id": i, "content": WORDS[i], "special": True} | flags for i in range(4)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)],
            "special_tokens": {
                name: {"id": name, "ids": [i], "tokens": [name]} for i, name in ((2, "[CLS]"), (3, "[SEP]"))
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: i for i, word in enumerate(WORDS)},
        },
    }


def save_tokenizer(folder):
    """tokenizer.json and tokenizer_config.json."""
    settings = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk")}
    (folder / "tokenizer.json").write_text(json.dumps(wordpiece_json()), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def gguf_words():
    """The tokens as a GGUF has them."""
    return [
        word if i < 4 else word[2:] if word.startswith("##") else f"▁{word}" for i, word in enumerate(WORDS)
    ]


def bert_tensors(n_labels=0, norm=("weight", "bias")):
    """Random weights by Hugging Face's names without the prefix; with labels a pooler and a classification head."""
    rng, n, ff = np.random.default_rng(0), TINY["hidden_size"], TINY["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), n),
        "embeddings.position_embeddings.weight": (TINY["max_position_embeddings"], n),
        "embeddings.token_type_embeddings.weight": (2, n),
        **{f"embeddings.LayerNorm.{kind}": (n,) for kind in norm},
    }
    parts = {f"attention.{name}": (n, n) for name in ("self.query", "self.key", "self.value", "output.dense")}
    parts |= {"intermediate.dense": (ff, n), "output.dense": (n, ff)}
    parts |= {"attention.output.LayerNorm": (n,), "output.LayerNorm": (n,)}
    parts = {f"encoder.layer.0.{part}": shape for part, shape in parts.items()}
    parts |= {"pooler.dense": (n, n), "classifier": (n_labels, n)} if n_labels else {}
    for part, shape in parts.items():
        shapes |= {f"{part}.weight": shape, f"{part}.bias": shape[:1]}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_bert(folder, tensors, **config):
    """A folder of these tensors, its configuration changed as said; returns it."""
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    found = TINY | {"model_type": "bert", "num_hidden_layers": 1} | config
    (folder / "config.json").write_text(json.dumps(found), "utf-8")
    save_tokenizer(folder)
    return folder
