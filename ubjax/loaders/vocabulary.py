"""The vocabulary of a GGUF: tokens, their kinds, the special ids and the tokens that end a generation.

Defaults and repairs are llama.cpp's (`llama_vocab::impl::load`): special ids by model kind, out-of-range ids
fall back to the default, well-known end-of-generation and fill-in-the-middle tokens count as control tokens
whatever the file says.
"""

import dataclasses
import enum
import re

from ubjax.loaders.metadata import Metadata, short
from ubjax.loaders.pre_tokenizers import PRE_TOKENIZERS


class TokenKind(enum.IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


KINDS: dict[float, TokenKind] = {kind.value: kind for kind in TokenKind}
MAX_TOKENS = 1 << 24


def texts(line: str) -> tuple[str, ...]:
    """The token texts of a line."""
    return tuple(line.split())


# Tokens that end a generation wherever they occur.
END_TEXTS = (
    *texts(
        "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <|endoftext|> <|end_of_text|>"
    ),
    *texts("<end_of_turn> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <eos> <end_of_utterance> <turn|> [e~["),
    *texts("<|tool_response> <｜end▁of▁sentence｜>"),
)
# Fill-in-the-middle tokens by key; the last three end a generation too.
FIM_TEXTS = {
    "fim_pre": (
        *texts("<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE>"),
        *texts("<|code_prefix|> <|prefix|>"),
    ),
    "fim_suf": (
        *texts("<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF>"),
        *texts("<|code_suffix|> <|suffix|>"),
    ),
    "fim_mid": (
        *texts("<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID>"),
        *texts("<|code_middle|> <|middle|>"),
    ),
    "fim_pad": texts("<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    "fim_rep": texts("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    "fim_sep": texts("<|file_sep|>"),
}
FIM_ENDS = ("fim_pad", "fim_rep", "fim_sep")
# Always shown, as they structure the answer; and then <|end|> closes a part of it, not the whole.
SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens by id with their kinds and scores, ids by text, and how the file wants text to be encoded.

    `model` is "gpt2" (byte-level BPE), "llama" (SentencePiece BPE by scores) or "bert" (WordPiece); `pre` names the
    pre-tokenizer of the first. Ids are None when the model has no such token. `eog_ids` end a generation.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    scores: tuple[float | int, ...]
    ids: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary under `tokenizer.ggml.`; GGUFError names the key that is missing or wrong."""
    model = metadata.require("tokenizer.ggml.model", str)
    if model not in ("gpt2", "llama", "bert"):
        raise metadata.error(
            f"the tokenizer {short(model)} is not supported, 'gpt2', 'llama' or 'bert' is needed"
        )
    pre = metadata.optional("tokenizer.ggml.pre", str, "default")
    if model == "gpt2" and pre not in PRE_TOKENIZERS:
        raise metadata.error(
            f"the pre-tokenizer {short(pre)} is not supported, one of {', '.join(PRE_TOKENIZERS)} is needed"
        )
    tokens = read_tokens(metadata)
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise metadata.error(f"the token {short(twice)} is in the vocabulary twice")
    spm, words = model == "llama", model == "bert"
    column = read_column(metadata, "token_type", len(tokens), TokenKind.NORMAL)
    kinds = [KINDS.get(kind, TokenKind.UNDEFINED) for kind in column]
    bos_id, eos_id, unk_id = special_ids(metadata, model, len(tokens))
    adds_bos = spm or words or PRE_TOKENIZERS[pre].add_bos
    add_bos = metadata.optional("tokenizer.ggml.add_bos_token", bool, adds_bos)
    add_eos = words or metadata.optional("tokenizer.ggml.add_eos_token", bool, False)
    for add, token_id, name in ((add_bos, bos_id, "bos"), (add_eos, eos_id, "eos")):
        if add and token_id is None:
            raise metadata.error(
                f"tokenizer.ggml.add_{name}_token is set, tokenizer.ggml.{name}_token_id is needed"
            )
    eog_ids = end_of_generation(metadata, ids, kinds, eos_id)
    for token, kind in zip(tokens, kinds, strict=True):
        if kind is TokenKind.BYTE and not BYTE_TEXT.fullmatch(token):
            raise metadata.error(f"the byte token {short(token)} has no value, the form '<0x0A>' is needed")
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=tuple(kinds),
        scores=read_column(metadata, "scores", len(tokens), 0.0),
        ids=ids,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
        eog_ids=eog_ids,
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=metadata.optional("tokenizer.ggml.add_space_prefix", bool, spm),
    )


def read_tokens(metadata: Metadata) -> tuple[str, ...]:
    """The token texts; an empty one gets a name of its own, as in llama.cpp."""
    key = "tokenizer.ggml.tokens"
    count = metadata.array_length(key)
    if not 1 <= count <= MAX_TOKENS:
        raise metadata.error(f"{key} has {count} tokens, 1 to {MAX_TOKENS} are needed")
    tokens = metadata.require(key, tuple)
    if not isinstance(tokens[0], str):
        raise metadata.error(f"{key} holds numbers, strings are needed")
    return tuple(token or f"[EMPTY_{index}]" for index, token in enumerate(tokens))


def read_column(metadata: Metadata, name: str, n_vocab: int, default: float | int) -> tuple[float | int, ...]:
    """`tokenizer.ggml.{name}`, one number per token; `default` for each when the file lacks it."""
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return (default,) * n_vocab
    if (count := metadata.array_length(key)) != n_vocab:
        raise metadata.error(f"{key} has {count} values, {n_vocab} (one a token) are needed")
    column = metadata.require(key, tuple)
    if isinstance(column[0], str):
        raise metadata.error(f"{key} holds strings, numbers are needed")
    return column


def special_id(metadata: Metadata, name: str, default: int | None, n_vocab: int) -> int | None:
    """`tokenizer.ggml.{name}_token_id`, or the default where that is missing or outside the vocabulary."""
    token_id = metadata.optional(f"tokenizer.ggml.{name}_token_id", int, None)
    for candidate in (token_id, default):
        if candidate is not None and 0 <= candidate < n_vocab:
            return candidate
    return None


def special_ids(metadata: Metadata, model: str, n_vocab: int) -> tuple[int | None, int | None, int | None]:
    """The tokens before a text and behind it, and the unknown one; of BERT those are [CLS] and [SEP]."""
    if model == "bert":
        bos_id = special_id(metadata, "cls", special_id(metadata, "bos", 101, n_vocab), n_vocab)
        eos_id = special_id(metadata, "seperator", 102, n_vocab)  # the key is spelled so
        return bos_id, eos_id, special_id(metadata, "unknown", 100, n_vocab)
    spm = model == "llama"
    bos_id = special_id(metadata, "bos", 1 if spm else 11, n_vocab)
    eos_id = special_id(metadata, "eos", 2 if spm else 11, n_vocab)
    return bos_id, eos_id, special_id(metadata, "unknown", 0 if spm else None, n_vocab)


def end_of_generation(
    metadata: Metadata, ids: dict[str, int], kinds: list[TokenKind], eos_id: int | None
) -> frozenset[int]:
    """The tokens that end a generation; in `kinds` they (and fill-in-the-middle tokens) become CONTROL."""
    ends = {ids[text] for text in END_TEXTS if text in ids}
    controls = set(ends)
    for name, texts in FIM_TEXTS.items():
        token_id = special_id(metadata, name, None, len(ids))
        if token_id is None:
            token_id = next((ids[text] for text in texts if text in ids), None)
            controls |= set() if token_id is None else {token_id}
        if token_id is not None and name in FIM_ENDS:
            ends.add(token_id)
    for token_id in controls:
        kinds[token_id] = TokenKind.CONTROL
    for text in SHOWN_TEXTS:
        if text in ids:
            kinds[ids[text]] = TokenKind.USER_DEFINED
    named = (eos_id, special_id(metadata, "eot", None, len(ids)), special_id(metadata, "eom", None, len(ids)))
    ends |= {token_id for token_id in named if token_id is not None}
    calls = {"<|call|>", "<|calls|>"} & ids.keys()
    if "<|end|>" in ids and calls and {"<|return|>", "<|flush|>"} & ids.keys():
        ends.discard(ids["<|end|>"])
        kinds[ids["<|end|>"]] = TokenKind.USER_DEFINED
    return frozenset(ends)
