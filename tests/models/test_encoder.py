"""The encoder: its spans and padding against all rows at once, and BERT against transformers on torch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.loaders.tiny_bert import TINY, bert_tensors, gguf_words, save_tokenizer, write_bert
from tests.loaders.tiny_gguf import vocabulary_fields, write_gguf
from tests.models.torch_peers import randomized
from tests.tiny import ENCODER, tiny_encoder
from ubjax import Batch, BatchConfig, EncoderEngine, load_model, split_whole, take_ubatch
from ubjax.buckets import Bucket
from ubjax.loaders import bert
from ubjax.models.encoder import Encoder, EncoderConfig

CONFIG = BatchConfig(n_vocab=ENCODER.n_vocab, n_batch=64, n_seq_max=8, n_embd_state=1)


def ubatch_of(lengths, n_rows, state=None):
    """One ubatch with a sequence of each length, of random tokens."""
    tokens = np.random.default_rng(0).integers(0, ENCODER.n_vocab, sum(lengths))
    batch = Batch.from_arrays(
        tokens, seq_id=np.repeat(np.arange(len(lengths)), lengths), state=state, config=CONFIG
    )
    bucket = Bucket(n_blocks=1, n_block_rows=n_rows, n_outputs=0)
    return take_ubatch(batch, split_whole(batch, n_rows), 0, bucket)


@functools.cache
def encoder():
    """The tiny encoder as a jitted function."""
    return jax.jit(tiny_encoder(), static_argnums=1)


@pytest.mark.parametrize("lengths", [[5, 8, 3, 7, 8, 1], [8] * 8, [1]])
def test_a_span_sees_what_all_rows_see(lengths):
    whole, n = encoder(), sum(lengths)
    every = whole(ubatch_of(lengths, 64), 64)[:n]
    np.testing.assert_allclose(whole(ubatch_of(lengths, 64), 8)[:n], every, atol=2e-6)
    np.testing.assert_allclose(whole(ubatch_of(lengths, 64), 16)[:n], every, atol=2e-6)
    alone = whole(ubatch_of(lengths[:1], 16), 16)[: lengths[0]]
    np.testing.assert_allclose(alone, every[: lengths[0]], atol=2e-6)


def test_garbage_in_padding_changes_nothing():
    clean = ubatch_of([5, 3], 16)
    rows = np.asarray(clean.valid)
    dirty = dataclasses.replace(
        clean,
        token=jnp.where(rows, clean.token, 7),
        pos=jnp.where(rows, clean.pos, 9),
        seq=jnp.where(rows[:, None], clean.seq, 1),
    )
    found = [np.asarray(encoder()(ubatch, 16))[rows] for ubatch in (clean, dirty)]
    np.testing.assert_array_equal(*found)
    assert np.isfinite(encoder()(dirty, 16)).all()


def test_sizes_that_can_not_be():
    sizes = {"n_layers": 1, "n_embd": 8, "n_ff": 8, "n_heads": 2, "n_vocab": 9, "n_ctx_train": 9}
    for change, words in (
        ({"n_heads": 3}, "3 heads can't share a width of 8, a divisor is needed"),
        ({"n_ff": 0}, "n_ff is 0, at least 1 is needed"),
        ({"norm_eps": float("nan")}, "norm_eps is nan, a finite number above 0 is needed"),
        ({"activation": "tanh"}, "the activation is 'tanh', one of gelu, gelu_tanh, relu is needed"),
    ):
        with pytest.raises(ValueError, match=words):
            EncoderConfig(**sizes | change)
    without = Encoder(EncoderConfig(**sizes), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the model has no classification head"):
        without.rank(jnp.zeros((1, 8)))


def peer(cls, **change):
    """A model of transformers with random weights."""
    import transformers

    return randomized(getattr(transformers, cls)(transformers.BertConfig(**TINY | change)))


TEXTS = ["Unaffable cats!", "a dog", "dogs a cat a cat unaffable !!", "a", "cat un", "zebra"]


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_bert_equals_transformers(tmp_path, activation):
    import torch

    model = peer("BertModel", hidden_act=activation)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    encoder, tokenizer = load_model(tmp_path)
    assert tokenizer.encode(TEXTS[0]) == [2, 4, 5, 6, 8, 9, 10, 3]
    engine = EncoderEngine(encoder, tokenizer)
    ids = [tokenizer.encode(text) for text in TEXTS]
    with torch.no_grad():
        want = [model(torch.asarray(one)[None]).last_hidden_state[0].numpy() for one in ids]
    assert np.ptp(want[0]) > 2
    batch = engine.batch(np.concatenate(ids), seq_id=np.repeat(range(len(ids)), [len(one) for one in ids]))
    np.testing.assert_allclose(engine.encode(batch).embeddings(), np.concatenate(want), atol=2e-5)
    for kind, rows in (
        ("mean", [one.mean(0) for one in want]),
        ("cls", [one[0] for one in want]),
        ("last", [one[-1] for one in want]),
    ):
        np.testing.assert_allclose(engine.embed(TEXTS, pooling=kind, normalize=False), rows, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n_labels", [1, 3])
def test_a_classification_head_equals_transformers(tmp_path, n_labels):
    import torch

    model = peer("BertForSequenceClassification", num_labels=n_labels)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    encoder, tokenizer = load_model(tmp_path)
    engine, query = EncoderEngine(encoder, tokenizer), TEXTS[0]
    pairs = [tokenizer.encode_pair(query, text) for text in TEXTS]
    assert pairs[1] == ([2, 4, 5, 6, 8, 9, 10, 3, 7, 11, 3], [0] * 8 + [1] * 3)
    with torch.no_grad():
        want = np.concatenate(
            [
                model(torch.asarray(ids)[None], token_type_ids=torch.asarray(types)[None]).logits.numpy()
                for ids, types in pairs
            ]
        )
        alone = model(torch.asarray(tokenizer.encode(query))[None]).logits.numpy()
    scores = engine.rerank(query, TEXTS)
    np.testing.assert_allclose(scores, want[:, 0] if n_labels == 1 else want, atol=2e-5)
    np.testing.assert_allclose(engine.embed([query], pooling="rank"), alone, atol=2e-5)
    assert np.ptp(want[:, 0]) > 0.1


def test_a_gguf_gives_what_the_folder_gives(tmp_path):
    """The same weights under llama.cpp's names and Hugging Face's; the tokenizers agree."""
    tensors = bert_tensors(norm=("gamma", "beta"))
    folder = tmp_path / "folder"
    folder.mkdir()
    head = {"cls.predictions.bias": np.zeros(3, np.float32)}
    write_bert(folder, {f"bert.{name}": w for name, w in tensors.items()} | head)
    fields = {
        "bert.block_count": 1,
        "bert.context_length": 32,
        "bert.embedding_length": 12,
        "bert.feed_forward_length": 20,
        "bert.attention.head_count": 3,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.pooling_type": 2,
    }
    special = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    fields |= vocabulary_fields("bert", gguf_words(), [3] * 4 + [1] * 8, **special)
    named = {bert.llama_cpp_name(name): weight for name, weight in tensors.items()}
    path = write_gguf(tmp_path / "tiny.gguf", fields, named, architecture="bert")
    (encoder, tokenizer), (other, other_tokenizer) = load_model(path), load_model(folder)
    assert encoder.pooling.kind == "cls" and other.pooling is None and not other.config.pooler
    for text in (*TEXTS, "ünaffáble  [SEP] CAT"):
        assert tokenizer.encode(text) == other_tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == other_tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.encode_pair("a", "cat") == other_tokenizer.encode_pair("a", "cat")
    assert tokenizer.decode([2, 4, 5, 6, 8, 3], skip_special=True) == " unaffable cat"
    found = [
        EncoderEngine(*pair).embed(TEXTS[:2], pooling="mean")
        for pair in ((encoder, tokenizer), (other, tokenizer))
    ]
    np.testing.assert_array_equal(*found)
