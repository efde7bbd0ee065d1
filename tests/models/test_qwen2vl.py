"""Qwen2-VL's text decoder against transformers on torch: tiny random weights, text alone and an image between text."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loaders.test_hf_folder import tokenizer_json
from tests.loaders.tiny_gguf import vocabulary_fields, write_gguf
from tests.models.torch_peers import randomized
from tests.tiny import one_capacity
from ubjax import BucketLadder, Engine, EngineConfig, load_model, mrope_positions
from ubjax.batch import ROW_EMBD, ROW_ID
from ubjax.loaders.hf_config import hf_hyperparameters
from ubjax.loaders.hf_names import hf_weights
from ubjax.models.config import DecoderConfig
from ubjax.models.decoder import Decoder

pytestmark = pytest.mark.slow

SECTIONS = [2, 3, 1]
TEXT: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 48,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": SECTIONS},
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {"depth": 1, "embed_dim": 8, "num_heads": 2, "hidden_size": 48}
IDS = [5, 1, 30, 7, 7, 2, 19]
PARTS = [3, (2, 6), 4]  # an image of 2 x 6 tokens behind three of the ids, before the other four
IMAGE = slice(3, 15)
N = 19


@functools.cache
def peer():
    """A model of transformers, vision part and all, with random weights."""
    import transformers

    config = transformers.Qwen2VLConfig(text_config=TEXT, vision_config=VISION)
    return randomized(transformers.Qwen2VLForConditionalGeneration(config))


@functools.cache
def tensors():
    return {name: value.numpy() for name, value in peer().state_dict().items()}


@functools.cache
def hyper():
    return hf_hyperparameters(peer().config.to_dict(), tensors())


@functools.cache
def decoder():
    return Decoder.from_weights(
        DecoderConfig.from_hyperparameters(hyper()), hf_weights(tensors().items(), hyper())
    )


@functools.cache
def decoder_of_folder():
    """The model of a folder as transformers writes it, in shards and with the vision part in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peer().save_pretrained(folder, max_shard_size="40KB")
        assert len(list(folder.glob("*.safetensors"))) > 2
        assert json.loads((folder / "config.json").read_text("utf-8"))["model_type"] == "qwen2_vl"
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), "utf-8")
        model, tokenizer = load_model(folder)
        assert tokenizer.encode("ab a") == [0, 8, 2]
        return model


@functools.cache
def decoder_of_gguf():
    """The same weights by way of a GGUF, whose rows have four positions."""
    sizes = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 48,
        "feed_forward_length": 24,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 100.0,
        "rope.dimension_sections": [*SECTIONS, 0],
    }
    fields = {f"qwen2vl.{name}": value for name, value in sizes.items()}
    with tempfile.TemporaryDirectory() as folder:
        weights = dict(hf_weights(tensors().items(), hyper()))
        words = ["<unk>", "<s>", "</s>", *(chr(ord("a") + i) for i in range(34))]
        fields |= vocabulary_fields("llama", words, [2, 3, 3] + [1] * 34, [0.0] * 37)
        model, tokenizer = load_model(write_gguf(Path(folder) / "m.gguf", fields, weights, "qwen2vl"))
        assert tokenizer.n_vocab == 37
        return model


@functools.cache
def image():
    """What the rows of the image hold, as large as the embeddings of tokens."""
    return np.random.default_rng(1).normal(size=(12, 48)).astype(np.float32)


def expected(rows, pos):
    """The logits of embedding rows [T, E] at positions [3, T]."""
    import torch

    with torch.no_grad():
        given = {
            "inputs_embeds": torch.asarray(rows)[None],
            "position_ids": torch.asarray(pos, dtype=torch.long),
        }
        given["position_ids"] = given["position_ids"][:, None]
        return peer()(**given).logits[0].numpy()


@functools.cache
def rows_between_text():
    """Embedding rows of the ids with the image between them, and their logits."""
    table = tensors()["model.language_model.embed_tokens.weight"]
    rows = np.concatenate([table[IDS[:3]], image(), table[IDS[3:]]])
    return rows, expected(rows, mrope_positions(PARTS))


@functools.cache
def engine(n_ubatch, kv_unified, model=decoder):
    sizes = {"n_ctx": 32, "kv_pad": 32, "n_batch": 32, "n_seq_max": 2, "n_ubatch": n_ubatch}
    one = BucketLadder((n_ubatch,))  # one program of the step
    config = EngineConfig(**sizes, kv_unified=kv_unified)
    return one_capacity(Engine(model(), None, config, rows=one, n_outputs=one))


def mixed_batch(on):
    """Ids and embedding rows in one batch."""
    kind = np.full(N, ROW_ID)
    kind[IMAGE] = ROW_EMBD
    token, embd = np.zeros(N, np.int32), np.zeros((N, 48), np.float32)
    token[kind == ROW_ID], embd[IMAGE] = IDS, image()
    pos = mrope_positions(PARTS, n_pos=on.memory.n_pos)
    return on.batch(token, embd=embd, row_type=kind, pos=pos, output=[True] * N)


def logits_of(on, *batches):
    """The logits of all rows of some batches, each decoded behind the one before."""
    on.clear()
    found = []
    for batch in batches:
        outputs = on.decode(batch() if callable(batch) else batch)
        found += [outputs.logits(i) for i in range(int(outputs.out_ids.max()) + 1)]
    return np.stack(found)


def test_the_configuration_is_that_of_the_text_part():
    config = decoder().config
    assert (config.architecture, config.rope_sections, config.n_pos) == ("qwen2vl", (2, 3, 1), 3)
    assert config.biases == ("attn_q", "attn_k", "attn_v") and config.n_caches == 1
    assert decoder_of_gguf().config.rope_sections == (2, 3, 1, 0) and decoder_of_folder().config == config
    flat = {**TEXT, "model_type": "qwen2_vl", "vision_config": VISION, "tie_word_embeddings": False}
    rope = flat.pop("rope_parameters")
    flat |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": SECTIONS}}
    names = [name.replace("model.visual.", "visual.").replace("language_model.", "") for name in tensors()]
    assert DecoderConfig.from_hyperparameters(hf_hyperparameters(flat, names)) == config


@pytest.mark.parametrize("model", [decoder, decoder_of_folder, decoder_of_gguf])
def test_text_alone_equals_transformers(model):
    import torch

    with torch.no_grad():
        want = peer()(torch.asarray(IDS)[None]).logits[0].numpy()
    assert np.ptp(want) > 2
    on = engine(4, model is not decoder_of_gguf, model)
    found = logits_of(
        on, lambda: on.batch(IDS[:5], output=[1] * 5), lambda: on.batch(IDS[5:], output=[1] * 2)
    )
    np.testing.assert_allclose(found, want, atol=2e-5)
    assert on.pos_next(0) == 7


SETTINGS = [
    (4, True, decoder),
    (4, True, decoder_of_folder),
    (4, False, decoder_of_gguf),
    (2, False, decoder),
    (1, True, decoder),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_image_between_text_equals_transformers(setting):
    on = engine(*setting)
    np.testing.assert_allclose(logits_of(on, mixed_batch(on)), rows_between_text()[1], atol=2e-5)
    assert (on.pos_max(0), on.pos_next(0)) == (12, 13)


def test_an_image_in_chunks_equals_transformers():
    on, pos = engine(4, True), mrope_positions(PARTS)

    def chunk(start, stop):
        span = slice(3 + start, 3 + stop)
        return lambda: on.batch(embd=image()[start:stop], pos=pos[:, span], output=[1] * (stop - start))

    def text(ids):
        return lambda: on.batch(ids, output=[1] * len(ids))  # goes on at pos_next

    found = logits_of(on, text(IDS[:3]), chunk(0, 5), chunk(5, 12), text(IDS[3:]))
    np.testing.assert_allclose(found, rows_between_text()[1], atol=2e-5)
