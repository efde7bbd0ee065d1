"""A state is untrusted input: it is loaded as it was saved, or refused in one sentence, soon and in little memory."""

import functools
import json
import random
import resource
import struct
import time

import numpy as np
import pytest

from tests.saving.helpers import engine_of, joined, parts
from tests.tiny import state, unchanged
from ubjax.saving.state import ALL, ONE, SavedRows, State

N = 5  # rows of each cache


@functools.cache
def engine(kind):
    """An engine that holds a state made by hand: no decode, no programs but those of loading."""
    loaded = engine_of(kind)
    loaded.set_state(by_hand(kind, ALL))
    return loaded


@functools.cache
def by_hand(kind, holds) -> bytes:
    """Positions 0..4 of sequence 1 (and sequence 2 from 3 on), random K and V."""
    form, rng = engine_of(kind)._form, np.random.default_rng(0)
    rows = []
    for n_layers in form.layers:
        shape = (2, n_layers, form.n_heads, N, form.head_dim)
        k, v = rng.standard_normal(shape).astype(np.float32)
        seq = np.array([[2], [2], [2], [6], [6]], np.uint32) if holds == ALL else None
        rows.append(SavedRows(pos=np.arange(N, dtype=np.int32)[None], seq=seq, k=k, v=v))
    saved = State(tokens=np.arange(3, dtype=np.int32), caches=tuple(rows))
    return joined(form.metadata(holds), saved.tensors())


def refused(kind, data, words, seq=0):
    loaded = engine(kind)
    before = state(loaded)
    with pytest.raises(ValueError, match=words) as caught:
        loaded.set_state(data, seq)
    assert unchanged(loaded, before)
    text = str(caught.value)
    assert text.startswith("the state ") and "nothing was changed" in text and "\n" not in text
    assert len(text) < 400
    text.encode()  # fit for any terminal


def test_the_state_by_hand_is_whole():
    for kind in ("unified", "window"):
        loaded = engine(kind)
        assert loaded.get_state(None, [0, 1, 2]) == by_hand(kind, ALL)
        assert loaded.set_state(by_hand(kind, ONE), 0) == [0, 1, 2]
        assert loaded.get_state(0, [0, 1, 2]) == by_hand(kind, ONE)


@pytest.mark.parametrize(("kind", "seq"), [("unified", 0), ("window", None)])
def test_flipped_bytes(kind, seq):
    loaded, whole = engine(kind), by_hand(kind, ALL if seq is None else ONE)
    loaded.set_state(whole, seq)
    before, rng = state(loaded), random.Random(0)
    n_header = 8 + struct.unpack("<Q", whole[:8])[0]
    places = [*range(n_header), *rng.sample(range(n_header, len(whole)), 100)]
    survivors = 0
    for at in places:
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        try:
            loaded.set_state(data, seq)
        except ValueError as error:
            assert "nothing was changed" in str(error)
            continue
        survivors += 1
        assert whole[at : at + 1] == b" "  # a blank at the end of the header, flipped to another
        assert loaded.get_state(seq, [0, 1, 2]) == whole
    assert survivors < 8
    loaded.set_state(whole, seq)
    assert [x.tobytes() for x in state(loaded)] == [x.tobytes() for x in before]


def test_cut_and_longer_files():
    whole = by_hand("window", ONE)
    for n in (*range(0, 60), *range(60, len(whole), 37), len(whole) - 1):
        refused("window", whole[:n], "bytes|digest|possible here")
    refused("window", whole + b"\0", "of data")


def header_of(edit):
    """The state with an edited JSON header; its digest is left as it was."""
    whole = by_hand("unified", ONE)
    (n,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + n])
    text = edit(header)
    text = text if isinstance(text, bytes) else json.dumps(header if text is None else text).encode()
    return struct.pack("<Q", len(text)) + text + whole[8 + n :]


HEADERS = {
    "not an object": (lambda h: [h], "its header is list, an object is needed"),
    "not JSON": (lambda h: b"{" * 40, "its header is no JSON"),
    "not text": (lambda h: b"\xff" * 40, "its header is no JSON"),
    "deep": (lambda h: b"[" * 200_000, "its header (is nested too deeply|claims)"),
    "long number": (lambda h: b'{"a":' + b"9" * 5000 + b"}", "its header is no JSON|not described"),
    "NaN": (lambda h: h["full.pos"].update(shape=[float("nan")]), "NaN is no number"),
    "twice": (lambda h: b'{"tokens":{},"tokens":{}}', "a name is there twice"),
    "metadata": (
        lambda h: h.update(__metadata__={"format": 5}),
        "its __metadata__ is not an object of texts",
    ),
    "format": (
        lambda h: h["__metadata__"].__delitem__("format"),
        "its format is missing, 'ubjax state' is needed",
    ),
    "version": (
        lambda h: h["__metadata__"].update(version="2"),
        "its version is '2', '1' is needed",
    ),
    "unknown field": (
        lambda h: h["__metadata__"].update({"model.new": "1" * 500}),
        r"its model\.new is '1+\.\.\.1+', missing is needed",
    ),
    "lone surrogate": (
        lambda h: h["__metadata__"].update({"model.n_ff": "\ud800"}),
        r"its model\.n_ff is '\\ud800', '32' is needed",
    ),
    "kind": (lambda h: h["__metadata__"].update(holds="x"), "it holds 'x', 'one sequence' is needed;"),
    "no entry": (lambda h: h.update(tokens=[]), "the tensor 'tokens' is not described by dtype, shape and"),
    "no tensor": (
        lambda h: h.__delitem__("full.pos"),
        "the tensor 'full.k' begins at byte 32 of the data, 12 is needed",
    ),
    "dtype": (lambda h: h["full.k"].update(dtype="F64"), "the tensor 'full.k' has dtype 'F64', one of F32"),
    "dtype of another size": (lambda h: h["full.k"].update(dtype="F16"), "'full.k' has 640 bytes, 320 are"),
    "dtype of another kind": (
        lambda h: h["full.k"].update(dtype="I32"),
        r"'full.k' is I32 \[2, 2, 5, 8\], F32 \[2, 2, 5, 8\] is needed",
    ),
    "shape": (
        lambda h: h["full.k"].update(shape=[2, 5, 2, 8]),
        r"'full.k' is F32 \[2, 5, 2, 8\], F32 \[2, 2, 5, 8\] is needed",
    ),
    "negative": (lambda h: h["full.pos"].update(shape=[1, -5]), r"'full.pos' has shape \[1, -5\]"),
    "fractions": (lambda h: h["full.pos"].update(shape=[1, 5.0]), r"'full.pos' has shape \[1, 5.0\]"),
    "true": (lambda h: h["full.pos"].update(shape=[True, 5]), r"'full.pos' has shape \[True, 5\]"),
    "many sizes": (
        lambda h: h["full.pos"].update(shape=[1] * 100_000),
        r"'full.pos' has shape \[1, 1, 1, 1, 1, 1, \.\.\.\], at most 8",
    ),
    "huge": (lambda h: h["full.pos"].update(shape=[2**61, 2**61]), "has 20 bytes, .* are needed"),
    "count": (lambda h: h["full.pos"].update(shape=[1, 6]), "'full.pos' has 20 bytes, 24 are needed"),
    "scalar": (lambda h: h["tokens"].update(shape=[3, 1]), r"'tokens' is I32 \[3, 1\], I32 \[3\] is needed"),
    "beyond": (
        lambda h: h["full.v"].update(data_offsets=[672, 2**61]),
        r"'full.v' ends at byte \d+ of the data, 1312 bytes of data were found",
    ),
    "turned": (lambda h: h["full.pos"].update(data_offsets=[32, 12]), r"'full.pos' lies at \[32, 12\]"),
    "one offset": (lambda h: h["full.pos"].update(data_offsets=[12]), r"'full.pos' lies at \[12\]"),
    "overlap": (
        lambda h: h["full.v"].update(data_offsets=[32, 672]),
        "'full.v' begins at byte 32 of the data, 672 is needed",
    ),
    "a tensor more": (
        lambda h: h.update({"x" * 500: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
        r"the tensor 'x+\.\.\.x+' is there, no state has one",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_lie(name):
    edit, words = HEADERS[name]
    refused("unified", header_of(edit), words)


@pytest.mark.parametrize("length", [0, 1, 2**20 + 1, 2**31, 2**63, 2**64 - 1])
def test_lengths_that_lie(length):
    data = struct.pack("<Q", length) + by_hand("unified", ONE)[8:]
    refused("unified", data, rf"its header claims {length} bytes, 2 to \d+ are possible here")


def other(name, at, value):
    def edit(tensors):
        tensors[name][at] = value

    return edit


VALUES = {
    "negative position": (
        ONE,
        other("full.pos", (0, 2), -1),
        r"row 2 of full.pos is -1, a position in \[0, ",
    ),
    "late position": (ONE, other("full.pos", (0, 2), 2**30 + 1), "row 2 of full.pos is 1073741825"),
    "position of no row": (ONE, other("window.pos", (0, 4), 9), "its window cache holds position 9"),
    "rows twice": (
        ONE,
        lambda t: doubled(t, "window"),
        "its window cache holds position 0 of a sequence more often",
    ),
    "a hole at the end": (
        ONE,
        other("window.pos", (0, 4), 3),
        "its window cache holds position 3 of a sequence more often than its full",
    ),
    "another end": (ONE, lambda t: shortened(t, 4), "up to position 4, its window cache up to 3"),
    "no end": (ONE, lambda t: shortened(t, 0), "up to position 4, its window cache up to -1"),
    "a hole": (
        ONE,
        lambda t: shortened(t, [0, 1, 3, 4]),
        "given up positions that the end of a sequence needs",
    ),
    "no number": (ONE, other("full.k", (0, 0, 0, 0), np.nan), "layer 0 of full.k holds numbers that are not"),
    "infinite": (ONE, other("window.v", (0, 1, 4, 7), -np.inf), "layer 0 of window.v holds numbers"),
    "token": (ONE, other("tokens", 1, 61), r"token 1 has id 61, an id in \[0, 61\) is needed"),
    "negative token": (ONE, other("tokens", 0, -1), "token 0 has id -1"),
    "no sequence": (ALL, other("full.seq", (3, 0), 0), "row 3 of full.seq belongs to no sequence"),
    "unknown sequence": (ALL, other("full.seq", (3, 0), 16), r"it holds sequence 4, sequences in \[0, 4\)"),
    "far sequence": (ALL, lambda t: widened(t), r"it holds sequence 287, sequences in \[0, 4\)"),
    "sequence of no row": (ALL, other("window.seq", (0, 0), 10), "its window cache holds position 0"),
}


def doubled(tensors, cache):
    for name, axis in (("pos", 1), ("k", 2), ("v", 2)):
        tensors[f"{cache}.{name}"] = np.repeat(tensors[f"{cache}.{name}"], 2, axis)


def shortened(tensors, rows):
    """The rows of the window cache, the first so many or those."""
    for name, axis in (("pos", 1), ("k", 2), ("v", 2)):
        whole = tensors[f"window.{name}"]
        tensors[f"window.{name}"] = np.take(whole, range(rows) if isinstance(rows, int) else rows, axis)


def widened(tensors):
    words = np.zeros((N, 9), np.uint32)
    words[:, 8] = 2**31
    tensors["full.seq"] = words


@pytest.mark.parametrize("name", VALUES)
def test_values_that_can_not_be(name):
    """With a digest that is right."""
    holds, edit, words = VALUES[name]
    metadata, tensors = parts(by_hand("window", holds))
    edit(tensors)
    refused("window", joined(metadata, tensors), words, seq=0 if holds == ONE else None)


def test_positions_may_repeat_and_have_holes():
    metadata, tensors = parts(by_hand("unified", ONE))
    tensors["full.pos"][:] = [[0, 2, 2, 7, 7]]
    data = joined(metadata, tensors)
    loaded = engine("unified")
    assert loaded.set_state(data, 3) == [0, 1, 2]
    assert loaded.get_state(3, [0, 1, 2]) == data


def test_huge_files_are_not_read(tmp_path):
    """A sparse file with a header that fits its size: rows beyond the cache are refused by the header."""
    whole = by_hand("unified", ONE)
    (n,) = struct.unpack("<Q", whole[:8])
    header, at, rows = json.loads(whole[8 : 8 + n]), 0, 2**27
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        entry["shape"] = [rows if size == N else size for size in entry["shape"]]
        entry["data_offsets"] = [at, at + 4 * int(np.prod(entry["shape"]))]
        at = entry["data_offsets"][1]
    text = json.dumps(header).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + at)
    loaded = engine("unified")
    before, start, peak = (
        state(loaded),
        time.perf_counter(),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )
    with pytest.raises(ValueError, match=rf"the state needs {rows} cells of one stream"):
        loaded.load_state(path, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100_000  # KiB
    assert time.perf_counter() - start < 5
    assert unchanged(loaded, before)
