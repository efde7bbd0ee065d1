import sys

import numpy as np
import pytest

from tests.loaders.tiny_gguf import vocabulary_fields, write_gguf
from ubjax.loaders.gguf import open_gguf
from ubjax.loaders.tokenizer import Tokenizer


def test_a_missing_package_is_one_sentence_with_the_remedy(tmp_path, monkeypatch):
    fields = vocabulary_fields("gpt2", ["a", "b", "ab"], pre="gpt-2", merges=["a b"])
    path = write_gguf(tmp_path / "a.gguf", fields, {"x": np.ones(3, np.float32)})
    file = open_gguf(path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ImportError, match=r"^reading GGUF files needs the package gguf .*: pip install 'ubjax\[gguf\]'$"
    ):
        open_gguf(path)
    with pytest.raises(
        ImportError, match=r"^a byte-level BPE tokenizer needs the package tokenizers .*: pip install"
    ):
        Tokenizer.from_gguf(file)
