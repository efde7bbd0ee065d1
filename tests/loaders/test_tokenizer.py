import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import golden
from tests.loaders.tiny_gguf import vocabulary_fields, write_gguf
from ubjax.loaders.bpe import BYTE_OF
from ubjax.loaders.find import find_model
from ubjax.loaders.gguf import GGUFError, open_gguf
from ubjax.loaders.tokenizer import StreamDecoder, Tokenizer

MERGES = ["1 9", "19 8", "198 4", "Ġ i", "Ċ Ċ", "' s", "' S", "Ġ Ġ", "i 1", "Ġ =", "= ="]
TOKENS = [*BYTE_OF, *(merge.replace(" ", "") for merge in MERGES), "<|end|>", "<tool>", "", "i198"]
KINDS = [1] * (256 + len(MERGES)) + [3, 4, 1, 1]


@pytest.fixture
def build(tmp_path):
    def build(pre="gpt-2", tokens=TOKENS, kinds=KINDS, merges=MERGES, **more):
        # The writer leaves out empty arrays, so no merges means one that no text reaches.
        if not merges:
            tokens, kinds, merges = [*tokens, "⟨", "⟩", "⟨⟩"], [*kinds, 1, 1, 1], ["⟨ ⟩"]
        fields = vocabulary_fields("gpt2", tokens, kinds, pre=pre, merges=merges, **more)
        return Tokenizer.from_gguf(open_gguf(write_gguf(tmp_path / "a.gguf", fields, {})))

    return build


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # Where the digits are cut: nowhere, each, after three.
        (
            "1984",
            {
                "gpt-2": "1984",
                "smollm": "1 9 8 4",
                "qwen2": "1 9 8 4",
                "llama-bpe": "198 4",
                "default": "198 4",
            },
        ),
        (" i1", {"gpt-2": "Ġi 1", "smollm": "Ġi 1", "qwen2": "Ġi 1", "llama-bpe": "Ġi 1", "default": "Ġi 1"}),
        # Contractions: the newer expressions take capitals too.
        (
            "i's",
            {"gpt-2": "i 's", "smollm": "i 's", "qwen2": "i 's", "llama-bpe": "i 's", "default": "i ' s"},
        ),
        (
            "i'S",
            {"gpt-2": "i ' S", "smollm": "i ' S", "qwen2": "i 'S", "llama-bpe": "i 'S", "default": "i ' S"},
        ),
        # The last space belongs to the next word.
        ("i   i", dict.fromkeys(("gpt-2", "smollm", "qwen2", "llama-bpe", "default"), "i ĠĠ Ġi")),
        # The newer expressions keep newlines together, with the punctuation before them.
        (
            "s!ĊĊi",
            {"gpt-2": "s ! Ċ Ċ i", "smollm": "s ! Ċ Ċ i", "qwen2": "s ! ĊĊ i", "llama-bpe": "s ! ĊĊ i"},
        ),
        # "default" takes punctuation apart from the space before it.
        ("i ==", {"gpt-2": "i Ġ= =", "qwen2": "i Ġ= =", "llama-bpe": "i Ġ= =", "default": "i Ġ =="}),
    ],
)
def test_pre_tokenizers_by_hand(build, text, pieces):
    for pre, expected in pieces.items():
        ids = build(pre).encode(text.replace("Ċ", "\n"), add_special=False)
        assert [TOKENS[token_id] for token_id in ids] == expected.split(" "), pre


def test_newlines_stay_with_punctuation_where_the_model_learned_it(build):
    merges = ["! Ċ", "!Ċ Ċ"]
    tokens = [*BYTE_OF, "!Ċ", "!ĊĊ"]
    for pre, expected in {"llama-bpe": [257], "qwen2": [257], "gpt-2": [*map(tokens.index, "!ĊĊ")]}.items():
        assert build(pre, tokens, [1] * 258, merges).encode("!\n\n", add_special=False) == expected


def test_words_that_are_tokens_skip_the_merges_in_llama3(build):
    # " i" is a word, and a token without merges of its own in this vocabulary.
    tokens = [*BYTE_OF, "Ġi"]
    assert build("llama-bpe", tokens, [1] * 257, []).encode(" i", add_special=False) == [256]
    assert build("qwen2", tokens, [1] * 257, []).encode(" i") == [*map(tokens.index, "Ġi")]


def test_bos_by_default_and_as_the_file_says(build):
    assert build("llama-bpe", bos_token_id=3).encode("i") == [3, TOKENS.index("i")]
    assert build("gpt-2", bos_token_id=3).encode("i") == [TOKENS.index("i")]
    assert build("gpt-2", bos_token_id=3, add_bos_token=True).encode("i") == [3, TOKENS.index("i")]
    assert build("llama-bpe", bos_token_id=3).encode("i", add_special=False) == [TOKENS.index("i")]
    assert build().bos_id == build().eos_id == 11


def test_special_tokens_are_cut_out_longest_first(build):
    tokens = [*BYTE_OF, "<ab>", "ab>c", "b>"]
    tokenizer = build("gpt-2", tokens, [1] * 256 + [3, 3, 4], [])
    assert tokenizer.encode("<ab>c") == [256, tokens.index("c")]  # of the two of 4 bytes the first
    assert tokenizer.encode("xab>c<ab>") == [tokens.index("x"), 257, 256]
    assert tokenizer.encode("<ab>", parse_special=False) == [*map(tokens.index, "<a"), 258]


def test_token_bytes_and_decode(build):
    tokenizer = build()
    assert tokenizer.token_bytes(TOKENS.index("Ġi")) == b" i"
    assert tokenizer.token_bytes(TOKENS.index("<tool>")) == b"<tool>"
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in range(256)) == bytes(BYTE_OF.values())
    ids = tokenizer.encode("i<|end|><tool> i")
    assert tokenizer.decode(ids) == "i<|end|><tool> i"
    assert tokenizer.decode(ids, skip_special=True) == "i<tool> i"
    assert tokenizer.decode([]) == ""
    assert tokenizer.n_vocab == len(TOKENS)
    assert tokenizer.chat_template is None


@pytest.mark.parametrize("token_id", [-1, len(TOKENS), 10**12])
def test_ids_outside_the_vocabulary(build, token_id):
    tokenizer = build()
    message = f"^the token id {token_id} is not in the vocabulary, 0 to {len(TOKENS) - 1} is needed$"
    for use in (
        tokenizer.token_bytes,
        lambda i: tokenizer.decode([i]),
        lambda i: StreamDecoder(tokenizer).feed([i]),
    ):
        with pytest.raises(ValueError, match=message):
            use(token_id)


@pytest.mark.parametrize(
    ("text", "message"), [("a\ud800b", "U+D800 at character 1"), ("\udfff", "U+DFFF at character 0")]
)
def test_lone_surrogates(build, text, message):
    with pytest.raises(ValueError, match=r"^the text has the lone surrogate ") as caught:
        build().encode(text)
    assert message in str(caught.value)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "the metadata key 'tokenizer.ggml.model' is missing, str is needed"),
        ({"model": "t5"}, "the tokenizer 't5' is not supported, 'gpt2', 'llama' or 'bert' is needed"),
        ({"pre": "tekken"}, "the pre-tokenizer 'tekken' is not supported, one of default, gpt-2, llama-bpe"),
        ({"tokens": None}, "the metadata key 'tokenizer.ggml.tokens' is missing, an array is needed"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens holds numbers, strings are needed"),
        ({"tokens": ["a", "b", "a"], "token_type": [1] * 3}, "the token 'a' is in the vocabulary twice"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 values, 2 .one a token. are needed"),
        ({"token_type": ["a", "b"]}, "tokenizer.ggml.token_type holds strings, numbers are needed"),
        ({"token_type": [1, 6]}, "the byte token 'b' has no value, the form '<0x0A>' is needed"),
        ({"scores": [1.0] * 3}, "tokenizer.ggml.scores has 3 values, 2 .one a token. are needed"),
        ({"pre": "qwen2"}, "the metadata key 'tokenizer.ggml.merges' is missing, tuple is needed"),
        ({"merges": ["a b"]}, "merges: element 0 needs the token 'ab', which is not in the vocabulary"),
        ({"merges": ["ab"]}, "merges: element 0 is 'ab', two tokens with a space between them are needed"),
        ({"merges": [1, 2]}, "merges: element 0 is '1', two tokens with a space between them are needed"),
        (
            {"add_bos_token": True},
            "tokenizer.ggml.add_bos_token is set, tokenizer.ggml.bos_token_id is needed",
        ),
        (
            {"add_eos_token": True},
            "tokenizer.ggml.add_eos_token is set, tokenizer.ggml.eos_token_id is needed",
        ),
        (
            {"bos_token_id": "one"},
            "the metadata key 'tokenizer.ggml.bos_token_id' is the str 'one', int is needed",
        ),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path, fields, message):
    changed = vocabulary_fields("gpt2", ["a", "b"], pre="gpt-2")
    changed |= {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    kept = {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(GGUFError, match=f"a.gguf: .*{message}"):
        Tokenizer.from_gguf(open_gguf(write_gguf(tmp_path / "a.gguf", kept, {})))


@pytest.mark.parametrize(
    ("tokens", "keys", "ends", "shown"),
    [
        (["<|im_end|>", "<|endoftext|>", "x"], {"eos_token_id": 2}, {0, 1, 2}, set()),
        (["<|eot_id|>", "<|eom_id|>", "x", "y"], {"eos_token_id": 2, "eot_token_id": 3}, {0, 1, 2, 3}, set()),
        (["<reponame>", "<fim_prefix>", "[PAD]", "<|file_sep|>"], {}, {0, 2, 3}, set()),
        (["<fim_pad>", "x", "<reponame>"], {"fim_pad_token_id": 1}, {1, 2}, set()),
        (["<|end|>", "<|start|>"], {}, {0}, {1}),
        (["<|end|>", "<|return|>", "<|call|>", "<|message|>"], {}, {1, 2}, {0, 3}),
        (["<|end|>", "<|calls|>", "<|flush|>"], {}, {1, 2}, {0}),
    ],
)
def test_ends_of_generation(build, tokens, keys, ends, shown):
    tokenizer = build("gpt-2", tokens, [1] * len(tokens), [], **keys)
    assert tokenizer.eog_ids == ends
    for token_id in shown:  # user-defined, whatever the file says
        assert not tokenizer.is_special(token_id)
        assert tokenizer.encode(tokens[token_id], parse_special=False) == [token_id]


@pytest.fixture(scope="module")
def smollm2():
    return Tokenizer.from_gguf(open_gguf(find_model("smollm2")))


@pytest.mark.slow
def test_smollm2_as_llama_cpp_tokenizes(smollm2):
    (answers,) = golden("e2e_smollm2.json.gz")
    for text, expected in answers["tokenize"].items():
        assert smollm2.encode(text) == expected
        assert smollm2.decode(expected) == text
        stream = StreamDecoder(smollm2)
        assert "".join(stream.feed([token_id]) for token_id in expected) + stream.flush() == text
    assert len(answers["tokenize"]) == 14


@pytest.mark.slow
def test_smollm2_specials(smollm2):
    assert (smollm2.n_vocab, smollm2.bos_id, smollm2.eos_id) == (49152, 1, 2)
    assert (smollm2.add_bos, smollm2.add_eos) == (False, False)
    assert {token_id: smollm2.token_bytes(token_id) for token_id in smollm2.eog_ids} == {
        0: b"<|endoftext|>",
        2: b"<|im_end|>",
        4: b"<reponame>",
    }
    assert smollm2.chat_template.startswith("{% for message in messages %}")
    assert smollm2.encode("<|im_end|>", parse_special=False) != [2]
    assert smollm2.encode("a\x04b") == smollm2.encode("a") + smollm2.encode("b")
    assert smollm2.decode([1, *smollm2.encode("Hi"), 2], skip_special=True) == "Hi"


@pytest.mark.slow
# Its vocabulary lacks 21 bytes (some control characters, planes 4 to 11); they are left out, as in llama.cpp.
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=40))
def test_smollm2_decodes_what_it_encoded(smollm2, text):
    ids = smollm2.encode(text, parse_special=False)
    assert smollm2.decode(ids) == text
    assert b"".join(map(smollm2.token_bytes, ids)) == text.encode()
