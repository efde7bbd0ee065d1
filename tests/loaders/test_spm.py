import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loaders.tiny_gguf import vocabulary_fields, write_gguf
from ubjax.loaders.gguf import open_gguf
from ubjax.loaders.spm import SentencePieceEncoder, word_boundary
from ubjax.loaders.tokenizer import StreamDecoder, Tokenizer
from ubjax.loaders.vocabulary import TokenKind, Vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SCORES = {"ab": -1.0, "bc": -2.0, "abc": -3.0, "cd": -4.0, "▁": -5.0, "▁a": -0.5, "aa": -6.0}
TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *"abcd",
    *SCORES,
    "<end_of_turn>",
    "\n\n",
]
KINDS = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 11 + [NORMAL, USER_DEFINED]


def ids_of(*tokens):
    return [TOKENS.index(token) for token in tokens]


@pytest.fixture
def build(tmp_path):
    def build(**more):
        scores = [SCORES.get(token, -100.0) for token in TOKENS]
        fields = vocabulary_fields("llama", TOKENS, KINDS, scores, **more)
        return Tokenizer.from_gguf(open_gguf(write_gguf(tmp_path / "a.gguf", fields, {})))

    return build


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "abcd",
            ["abc", "d"],
        ),  # ab (-1), then abc (-3) before cd (-4); the drawing in the module's docstring
        ("bcd", ["bc", "d"]),
        ("aaa", ["aa", "a"]),  # two equal pairs: the left one
        ("aaaa", ["aa", "aa"]),
        (" ab", ["▁a", "b"]),  # -0.5 beats ab
        ("  a", ["▁", "▁a"]),
        ("aé", ["a", "<0xC3>", "<0xA9>"]),
        ("\n", ["<0x0A>"]),
        ("a\n\nb", ["a", "\n\n", "b"]),  # user-defined tokens are cut out first
        ("a\n\n\nb", ["a", "\n\n", "<0x0A>", "b"]),
        ("ab</s>cd", ["ab", "</s>", "cd"]),
        ("", []),
    ],
)
def test_ids_worked_out_by_hand(build, text, expected):
    tokenizer = build(add_space_prefix=False)
    assert tokenizer.encode(text, add_special=False) == ids_of(*expected)
    assert tokenizer.encode(text) == ids_of("<s>", *expected)
    assert tokenizer.decode(ids_of(*expected)) == text


def test_the_space_prefix_comes_back_after_each_special_token(build):
    tokenizer = build()
    assert tokenizer.encode("ab") == ids_of("<s>", "▁a", "b")
    assert tokenizer.encode("ab</s>ab") == ids_of("<s>", "▁a", "b", "</s>", "▁a", "b")
    assert tokenizer.encode("") == ids_of("<s>")
    assert tokenizer.decode(tokenizer.encode("ab")) == "<s> ab"
    assert tokenizer.decode(tokenizer.encode("ab"), skip_special=True) == " ab"


def test_control_tokens_are_text_unless_parsed(build):
    tokenizer = build(add_space_prefix=False)
    letters = [f"<0x{byte:02X}>" for byte in b"</s>"]
    assert tokenizer.encode("a</s>\n\n", parse_special=False, add_special=False) == ids_of(
        "a", *letters, "\n\n"
    )


def test_special_ids_as_the_file_says(build):
    tokenizer = build(bos_token_id=5, eos_token_id=259, add_eos_token=True)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.add_eos) == (5, 259, True, True)
    assert tokenizer.encode("b", parse_special=False) == [5, *ids_of("▁", "b"), 259]
    assert tokenizer.eog_ids == {259, *ids_of("<end_of_turn>", "</s>")}
    assert build(bos_token_id=5000).bos_id == 1
    assert build(add_bos_token=False).encode("") == []
    # It was a normal token; as the end of a turn it is a control token whatever the file says.
    assert tokenizer.is_special(TOKENS.index("<end_of_turn>"))


def test_stream_gives_whole_characters_only(build):
    stream = StreamDecoder(build())
    ids = ids_of("▁a", "<0xF0>", "<0x9F>", "<0x9A>", "<0x80>", "<0xC3>", "b", "<0xE2>")
    assert [stream.feed([token_id]) for token_id in ids] == [" a", "", "", "", "🚀", "", "\ufffdb", ""]
    assert stream.flush() == "\ufffd"
    assert stream.feed(np.array(ids_of("a"), np.int32)) == "a"


def test_a_character_without_byte_tokens_is_unknown(tmp_path):
    fields = vocabulary_fields(
        "llama", ["<unk>", "<s>", "</s>", "a", "▁"], [2, 3, 3, 1, 1], add_space_prefix=False
    )
    tokenizer = Tokenizer.from_gguf(open_gguf(write_gguf(tmp_path / "a.gguf", fields, {})))
    assert tokenizer.encode("aé a") == [1, 3, 0, 4, 3]


def naive(text: str, ids: dict[str, int], scores: tuple) -> list[int]:
    """The rule on the whole text: join the best pair, the leftmost of equals, until none is left."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[ids[a + b]], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in ids
        ]
        if not pairs:
            return [ids[symbol] for symbol in symbols]
        i = min(pairs)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(
    st.sets(st.text("ab▁", min_size=2, max_size=4), max_size=12),
    st.lists(st.sampled_from([-1.0, -2.0, -3.0]), min_size=15, max_size=15),
    st.text("ab ", max_size=24),
)
def test_words_apart_are_the_text_at_once(pieces, scores, text):
    tokens = ["a", "b", "▁", *sorted(pieces)]

    vocabulary = Vocabulary(
        model="llama",
        pre="default",
        tokens=tuple(tokens),
        kinds=(TokenKind.NORMAL,) * len(tokens),
        scores=tuple(scores),
        ids={token: index for index, token in enumerate(tokens)},
        bos_id=None,
        eos_id=None,
        unk_id=None,
        eog_ids=frozenset(),
        add_bos=False,
        add_eos=False,
        add_space_prefix=False,
    )
    expected = naive(text.replace(" ", "▁"), vocabulary.ids, vocabulary.scores)
    assert SentencePieceEncoder(vocabulary).encode(text) == expected


def test_where_words_may_be_cut():
    assert word_boundary(("a", "▁a", "x")).split("▁a▁▁x▁") == ["▁a", "▁", "▁x", "▁"]
    assert word_boundary(("a", "▁▁", "]▁^")).split("▁a▁▁x]▁") == ["▁a", "▁▁x]▁"]
