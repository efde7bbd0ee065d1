"""all-MiniLM-L6-v2 against recorded vectors of transformers on torch."""

import numpy as np
import pytest

from tests.helpers import golden
from ubjax import EncoderEngine, EngineConfig, load_model
from ubjax.pooling import Pooling

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine():
    return EncoderEngine(*load_model("minilm"), EngineConfig(n_batch=256, n_ubatch=128, n_seq_max=8))


@pytest.fixture(scope="module")
def recorded():
    (lines,) = golden("minilm.json.gz")
    return lines


def test_token_ids(engine, recorded):
    assert len(recorded) == 8
    for line in recorded:
        assert engine.tokenizer.encode(line["text"]) == line["ids"]


def test_vectors(engine, recorded):
    texts = [line["text"] for line in recorded]
    assert engine.pooling == Pooling(kind="mean", normalize=True)
    found, want = engine.embed(texts), np.array([line["mean"] for line in recorded])
    np.testing.assert_allclose(found, want, atol=1e-4)
    assert ((found * want).sum(axis=1) > 0.99999).all()
    for kind in ("cls", "last"):
        rows = engine.embed(texts, pooling=kind, normalize=False)[:, :16]
        np.testing.assert_allclose(rows, [line[kind] for line in recorded], atol=1e-3)


def test_64_texts_in_any_packing(engine, recorded):
    model, tokenizer = load_model("minilm")
    words = " ".join(line["text"] for line in recorded).split()
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, n)) for n in rng.integers(1, 20, 64)]
    alone = EncoderEngine(model, tokenizer, EngineConfig(n_seq_max=1, n_batch=64, n_ubatch=64))
    want = np.concatenate([alone.embed(text) for text in texts])
    order = rng.permutation(64)
    shuffled = engine.embed([texts[i] for i in order])
    np.testing.assert_allclose((shuffled * want[order]).sum(axis=1), 1, atol=1e-5)
    whole = EncoderEngine(model, tokenizer).embed(texts)
    np.testing.assert_allclose(np.diag(whole @ want.T), 1, atol=1e-5)
