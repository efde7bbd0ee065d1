"""A GGUF is untrusted input: opening and loading succeed or raise GGUFError, soon and in little memory."""

import random
import resource
import struct
import time
import tracemalloc

import numpy as np
import pytest

from tests.loaders.tiny_gguf import (
    HYPER,
    VOCAB,
    key,
    llama_tensors,
    raw_gguf,
    tensor_row,
    text,
    vocabulary_fields,
    write_gguf,
)
from ubjax.loaders.gguf import GGUFError, open_gguf
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import load_weights
from ubjax.loaders.tokenizer import Tokenizer

ONE = struct.pack("<I", 1)
HUGE = struct.pack("<Q", 2**63)
X32 = tensor_row("x", [8])  # 32 bytes of F32


def array(element: int, count: int, payload: bytes = b"") -> bytes:
    return key("k", 9, struct.pack("<IQ", element, count) + payload)


CASES = {
    "magic": (b"GGML" + bytes(40), r"not a GGUF file: it begins with b'GGML', b'GGUF' is needed"),
    "short": (b"GG", r"not a GGUF file: it begins with b'GG', b'GGUF' is needed"),
    "version 1": (raw_gguf([], [], version=1), r"GGUF version 1 is not supported"),
    "version 99": (raw_gguf([], [], version=99), r"GGUF version 99 is not supported"),
    "big-endian": (raw_gguf([], [], version=3 << 24), r"big-endian GGUF is not supported"),
    "tensor count": (
        b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
        r"0 metadata keys and 9223372036854775808 tensors need at least \d+ bytes, 0 are left",
    ),
    "key count": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(99),
        r"1152921504606846976 metadata keys and 0 tensors need at least \d+ bytes, 99 are left",
    ),
    "key length": (
        raw_gguf([HUGE + bytes(40)], []),
        r"a metadata key needs 9223372036854775808 bytes at byte 32",
    ),
    "key text": (raw_gguf([key(b"\xff", 4, ONE)], []), r"a metadata key is b'\\xff', UTF-8 is needed"),
    "key twice": (raw_gguf([key("k", 4, ONE)] * 2, []), r"the metadata key 'k' is there twice"),
    "value type": (raw_gguf([key("k", 13, ONE)], []), r"the value of 'k' has the unknown type 13"),
    "value cut": (raw_gguf([key("k", 8, HUGE)], []), r"the value of 'k' needs 9223372036854775808 bytes"),
    "array type": (
        raw_gguf([array(9, 1, bytes(12))], []),
        r"the value of 'k' is an array of type 9, numbers or",
    ),
    "array of numbers": (
        raw_gguf([array(10, 2**61)], []),
        r"the value of 'k' needs 18446744073709551616 bytes",
    ),
    "array of strings": (
        raw_gguf([array(8, 2**40)], []),
        r"'k' \(1099511627776 strings\) needs 8796093022208 ",
    ),
    "array element": (
        raw_gguf([array(8, 2, text("a") + HUGE)], []),
        r"element 1 of the value of 'k' needs 9223372036854775808 bytes",
    ),
    "tensor text": (raw_gguf([], [text(b"\xfe") + bytes(40)]), r"a tensor name is b'\\xfe', UTF-8 is needed"),
    "no dimensions": (
        raw_gguf([], [tensor_row("x", [])], bytes(32)),
        r"'x' has 0 dimensions, 1 to 4 are needed",
    ),
    "dimensions": (raw_gguf([], [tensor_row("x", [1] * 5)]), r"'x' has 5 dimensions, 1 to 4 are needed"),
    "zero": (raw_gguf([], [tensor_row("x", [4, 0])]), r"'x' has shape \[0, 4\]"),
    "overflow": (
        raw_gguf([], [tensor_row("x", [2**32] * 4)]),
        r"truncated in the tensor data: 'x' needs 1361129467683753853853498429727072845824 bytes at",
    ),
    "no whole blocks": (
        raw_gguf([], [tensor_row("x", [33], 2)]),
        r"rows of Q4_0 need a positive multiple of 32",
    ),
    "unknown type": (raw_gguf([], [tensor_row("x", [32], 99)]), r"'x' has the unsupported ggml type 99"),
    "removed type": (raw_gguf([], [tensor_row("x", [32], 4)]), r"'x' has the unsupported ggml type 4"),
    "offset": (
        raw_gguf([], [tensor_row("x", [8], 0, 4)], bytes(64)),
        r"'x' begins at offset 4, a multiple of 32",
    ),
    "far offset": (
        raw_gguf([], [tensor_row("x", [8], 0, 2**62)]),
        r"'x' needs 32 bytes at byte \d+, 0 are there",
    ),
    "data cut": (
        raw_gguf([], [X32], bytes(31)),
        r"truncated in the tensor data: 'x' needs 32 bytes at byte 64, 31",
    ),
    "tensor twice": (raw_gguf([], [X32, X32], bytes(32)), r"the tensor 'x' is there twice"),
    "overlap": (raw_gguf([], [X32, tensor_row("y", [8])], bytes(32)), r"the tensors 'x' and 'y' overlap"),
    "alignment 0": (raw_gguf([key("general.alignment", 4, bytes(4))], []), r"alignment is 0, a power of two"),
    "alignment 3": (
        raw_gguf([key("general.alignment", 4, b"\3\0\0\0")], []),
        r"alignment is 3, a power of two",
    ),
    "alignment text": (
        raw_gguf([key("general.alignment", 8, text("32"))], []),
        r"is the str '32', int is needed",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_sentence(tmp_path, case):
    content, message = CASES[case]
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(GGUFError, match=message) as caught:
        open_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_a_string_array_with_bad_utf8_is_named_when_it_is_asked_for(tmp_path):
    (tmp_path / "a.gguf").write_bytes(raw_gguf([array(8, 2, text("a") + text(b"\xff\xfe"))], []))
    file = open_gguf(tmp_path / "a.gguf")
    with pytest.raises(
        GGUFError, match=r"a.gguf: the value of 'k': element 1 is b'\\xff\\xfe', UTF-8 is needed$"
    ):
        file.metadata["k"]


def whole_model(path, tokenizer="gpt2"):
    """A llama with a tokenizer, complete enough to load."""
    tokens = ["a", "b", "c", "Ġ", "ab", "Ġab", "<|im_end|>", "<s>", "1", "<0x41>"]
    kinds = [1, 1, 1, 1, 1, 1, 3, 3, 1, 6]
    assert len(tokens) == VOCAB
    more = {"pre": "smollm", "merges": ["a b", "Ġ ab"]} if tokenizer == "gpt2" else {"scores": [-1.0] * VOCAB}
    fields = vocabulary_fields(tokenizer, tokens, kinds, **more)
    return write_gguf(path, HYPER | fields, llama_tensors(np.random.default_rng(0)))


def load_all(path) -> int:
    """Everything a caller may do with a file; the number of weights."""
    file = open_gguf(path)
    hyper = hyperparameters(file)
    tokenizer = Tokenizer.from_gguf(file)
    tokenizer.decode(tokenizer.encode("ab ab<|im_end|>"))
    return sum(weight.size for _, weight in load_weights(file, hyper))


def test_cut_anywhere(tmp_path):
    content = whole_model(tmp_path / "a.gguf").read_bytes()
    assert load_all(tmp_path / "a.gguf") == sum(
        x.size for x in llama_tensors(np.random.default_rng(0)).values()
    )
    data = content.index(b"blk.1.ffn_up.weight") + 64
    for n in [*range(256), *range(256, data, 5), *range(data, len(content), 61), len(content) - 1]:
        (tmp_path / "cut.gguf").write_bytes(content[:n])
        with pytest.raises(GGUFError, match=r"truncated in the (header|tensor data)|not a GGUF file"):
            open_gguf(tmp_path / "cut.gguf")


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
def test_random_damage(tmp_path, tokenizer):
    content = whole_model(tmp_path / "a.gguf", tokenizer).read_bytes()
    header = content.index(b"blk.1.ffn_up.weight") + 64
    rng = random.Random(0)
    extremes = [
        bytes(8),
        b"\xff" * 8,
        HUGE,
        struct.pack("<Q", 2**31),
        struct.pack("<Q", 7),
        struct.pack("<Q", 2**20),
    ]
    outcomes = {"loaded": 0, "refused": 0}
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for _ in range(350):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            at = rng.randrange(4, header)
            patch = rng.choice([rng.randbytes(1), rng.randbytes(1), rng.randbytes(4), rng.choice(extremes)])
            damaged[at : at + len(patch)] = patch
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        start = time.monotonic()
        try:
            load_all(tmp_path / "damaged.gguf")
            outcomes["loaded"] += 1
        except GGUFError:
            outcomes["refused"] += 1
        assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 < megabytes + 100
    assert outcomes["loaded"] > 3
    assert outcomes["refused"] > 200
