"""The tokenizer of a Hugging Face folder: its tokenizer.json through the `tokenizers` package.

Special tokens and the chat template come from tokenizer_config.json and the files beside it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ubjax.loaders.extras import import_extra
from ubjax.loaders.hf_folder import FolderError, HFFolder
from ubjax.loaders.hf_pooling import Prompts, read_prompts
from ubjax.loaders.spm import SPACE
from ubjax.loaders.tokenizer import Tokenizer, check_text
from ubjax.loaders.vocabulary import BYTE_TEXT, END_TEXTS, MAX_TOKENS, TokenKind, Vocabulary
from ubjax.typing import Text

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
# By the type of a tokenizer.json's model, how its tokens stand for text; BPE has two ways.
MODELS = {"WordPiece": "bert", "Unigram": "llama", "BPE": "llama"}


class FolderTokenizer(Tokenizer):
    """A `Tokenizer` whose encoding is that of a tokenizer.json, special tokens and all.

    `prompts`: what the folder has to put before texts that are to be embedded.
    """

    def __init__(self, vocabulary: Vocabulary, backend: Any, chat_template: str | None, prompts: Prompts):
        super().__init__(vocabulary, backend, chat_template)
        self._backend, self.prompts = backend, prompts

    def prompted(self, text: str, name: Text | None) -> str:
        """A text behind a prompt: the one of that name, or the folder's default (which may be none)."""
        name = self.prompts.default if name is None else name
        if name is None:
            return text
        known = self.prompts.texts
        if not isinstance(name, str) or name not in known:
            raise ValueError(
                f"the prompt {name!r} is not known, one of {', '.join(known)} is needed"
                if known
                else f"the prompt {name!r} is not known: this model's files name no prompts"
            )
        return known[name] + text

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`, as the tokenizer.json has it; see `Tokenizer.encode`."""
        check_text(text)
        self._backend.encode_special_tokens = not parse_special
        return self._backend.encode(text, add_special_tokens=add_special).ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids of two texts in one sequence, and the token type (0, 1) of each."""
        for text in (first, second):
            check_text(text)
        self._backend.encode_special_tokens = False
        found = self._backend.encode(first, second)
        return found.ids, found.type_ids


def read_tokenizer(folder: HFFolder, n_vocab: int) -> FolderTokenizer:
    """The tokenizer of a folder, for a model of `n_vocab` tokens.

    Raises FolderError for a tokenizer.json that is missing, damaged or larger than the model, and for special tokens
    that it lacks.
    """
    hf = import_extra("tokenizers", "a Hugging Face tokenizer")
    found, settings = folder.json(TOKENIZER), folder.optional_json(SETTINGS)
    try:
        backend = hf.Tokenizer.from_buffer(folder.read(TOKENIZER))
    except Exception as error:  # the package has no error of its own
        raise folder.error(TOKENIZER, f"is no tokenizer: {error}") from None
    backend.no_padding()
    backend.no_truncation()
    ids = backend.get_vocab(with_added_tokens=True)
    if not ids or max(ids.values()) >= min(n_vocab, MAX_TOKENS):
        raise folder.error(
            TOKENIZER, f"has ids up to {max(ids.values(), default=-1)}, ids in [0, {n_vocab}) are needed"
        )
    kinds = _kinds(backend, ids, n_vocab)
    model = _model(found)
    names = ("cls_token", "sep_token") if model == "bert" else ("bos_token", "eos_token")
    bos_id, eos_id = (_special(folder, settings, name, ids) for name in names)
    ends = _ends(folder, eos_id, ids, n_vocab)
    for token_id in ends:
        kinds[token_id] = TokenKind.CONTROL
    tokens = [f"[EMPTY_{i}]" for i in range(n_vocab)]
    for token, i in ids.items():
        tokens[i] = _word(token, found) if model == "bert" and kinds[i] is TokenKind.NORMAL else token
    vocabulary = Vocabulary(
        model=model,
        pre="",
        tokens=tuple(tokens),
        kinds=tuple(kinds),
        scores=(),
        ids=ids,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=None,
        eog_ids=ends,
        add_bos=False,
        add_eos=False,
        add_space_prefix=False,
    )
    return FolderTokenizer(vocabulary, backend, _chat_template(folder, settings), read_prompts(folder))


def _model(found: Mapping[str, Any]) -> str:
    """How tokens stand for text: "gpt2" by GPT-2's bytes, "llama" with "▁" for a space, "bert" by words."""
    kind = found.get("model", {}).get("type", "WordPiece")
    byte_level = kind == "BPE" and '"ByteLevel"' in _types(found)
    return "gpt2" if byte_level else MODELS.get(kind, "llama")


def _types(found: Mapping[str, Any]) -> str:
    """The types of the pre-tokenizer and the decoder, quoted."""
    parts = [found.get(name) or {} for name in ("pre_tokenizer", "decoder")]
    parts += [
        inner for part in parts for name in ("pretokenizers", "decoders") for inner in part.get(name, ())
    ]
    return " ".join(f'"{part.get("type")}"' for part in parts)


def _word(token: str, found: Mapping[str, Any]) -> str:
    """A WordPiece token as llama.cpp writes it: "▁" before the beginning of a word, nothing before what goes on."""
    prefix = found.get("model", {}).get("continuing_subword_prefix", "##")
    return token.removeprefix(prefix) if token.startswith(prefix) else SPACE + token


def _kinds(backend: Any, ids: Mapping[str, int], n_vocab: int) -> list[TokenKind]:
    kinds = [TokenKind.UNUSED] * n_vocab
    for token, i in ids.items():
        kinds[i] = TokenKind.BYTE if BYTE_TEXT.fullmatch(token) else TokenKind.NORMAL
    for i, token in backend.get_added_tokens_decoder().items():
        kinds[i] = TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED
    return kinds


def _special(folder: HFFolder, settings: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> int | None:
    """The id of a special token: by the text in tokenizer_config.json, else by the id in config.json."""
    text = settings.get(name)
    text = text.get("content") if isinstance(text, Mapping) else text
    if text is None:
        number = folder.config.get(f"{name}_id")
        return number if type(number) is int and number in ids.values() else None
    if not isinstance(text, str) or text not in ids:
        raise folder.error(SETTINGS, f"its {name} is {text!r}, a token of {TOKENIZER} is needed")
    return ids[text]


def _ends(folder: HFFolder, eos_id: int | None, ids: Mapping[str, int], n_vocab: int) -> frozenset[int]:
    """The tokens that end a generation: what the folder names as such, and those of that name in any model."""
    named = [eos_id] + [ids[text] for text in END_TEXTS if text in ids]
    for settings in (folder.config, folder.optional_json("generation_config.json")):
        found = settings.get("eos_token_id")
        named += found if isinstance(found, list) else [found]
    return frozenset(_numbers(named, n_vocab))


def _numbers(found: Iterable[Any], n_vocab: int) -> Iterable[int]:
    return (number for number in found if type(number) is int and 0 <= number < n_vocab)


def _chat_template(folder: HFFolder, settings: Mapping[str, Any]) -> str | None:
    """The template in its own file or in tokenizer_config.json; of several the one named "default"."""
    if (folder.path / TEMPLATE).is_file():
        try:
            return folder.read(TEMPLATE).decode()
        except UnicodeDecodeError:
            raise folder.error(TEMPLATE, "is no UTF-8") from None
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
        found = named.get("default")
    if found is None or isinstance(found, str):
        return found
    raise FolderError(
        f"{folder.path / SETTINGS}: its chat_template is {type(found).__name__}, text is needed"
    )
