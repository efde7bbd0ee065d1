"""`benchmarks/embed.py`, small: both sides agree, and the last line is JSON."""

import json
import sys

import pytest

from benchmarks import embed
from tests.loaders.tiny_bert import save_tokenizer
from tests.models.test_encoder import peer


def test_texts_are_the_same_for_a_seed_and_padding_is_counted():
    texts = embed.random_texts(50, ["a", "b"], 0)
    assert texts == embed.random_texts(50, ["a", "b"], 0) != embed.random_texts(50, ["a", "b"], 1)
    assert all(3 <= len(text.split()) <= 200 for text in texts)
    lengths = [5] * 32 + [2, 1]
    assert embed.torch_padding(["aaaaa"] * 32 + ["bb", "c"], lengths) == pytest.approx(1 - 163 / 164)


@pytest.mark.slow
def test_the_command_ends_with_json(tmp_path, monkeypatch, capsys):
    peer("BertModel", max_position_embeddings=256).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    arguments = ["--model", str(tmp_path), "--texts", "20", "--rounds", "2", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["embed.py", *arguments])
    embed.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["other"].startswith("transformers ") and result["jax"]
    assert len(result["ratios"]) == len(result["rates"]["ubjax"]) == 2
    assert result["difference"] < 1e-4
    assert 0 <= result["padding"]["ubjax"] < 1
