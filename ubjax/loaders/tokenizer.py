"""Text to token ids and back, by the vocabulary of a GGUF, token for token as llama.cpp does it."""

import codecs
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from ubjax.loaders.bpe import BytePairEncoder, token_text_bytes
from ubjax.loaders.chat import render_chat
from ubjax.loaders.gguf import GGUFFile
from ubjax.loaders.spm import SPACE, SentencePieceEncoder
from ubjax.loaders.vocabulary import BYTE_TEXT, TokenKind, Vocabulary, read_vocabulary
from ubjax.loaders.wordpiece import WordPieceEncoder

SPECIAL = (TokenKind.CONTROL, TokenKind.UNKNOWN)


def check_text(text: str) -> None:
    """Raises ValueError for a text with a lone surrogate, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "text that UTF-8 can hold is needed"
        ) from None


@runtime_checkable
class Encoding(Protocol):
    """Text without special tokens -> ids."""

    def encode(self, text: str, /) -> Any:
        """The ids."""
        ...


class Tokenizer:
    """Encodes and decodes; made by `Tokenizer.from_gguf`.

    `n_vocab` tokens; `bos_id` and `eos_id` (None when the model has none); `add_bos`, `add_eos`: what the
    file wants `encode` to add; `eog_ids`: the tokens that end a generation; `chat_template`: the file's jinja
    template, or None.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoding,
        chat_template: str | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self.n_vocab = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eog_ids = vocabulary.eog_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.chat_template = chat_template
        # SentencePiece marks where words begin, also after a special token.
        self._space_prefix = " " if vocabulary.model == "llama" and vocabulary.add_space_prefix else ""
        parsed = [i for i, kind in enumerate(vocabulary.kinds) if kind in (*SPECIAL, TokenKind.USER_DEFINED)]
        # Longest first, as a shorter special token may lie inside a longer one.
        self._parsed = sorted(parsed, key=lambda i: -len(vocabulary.tokens[i].encode()))

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "Tokenizer":
        """The tokenizer under `tokenizer.ggml.`; GGUFError if it is missing, unsupported or inconsistent."""
        vocabulary = read_vocabulary(file.metadata)
        match vocabulary.model:
            case "gpt2":
                encoder = BytePairEncoder(vocabulary, file.metadata)
            case "bert":
                encoder = WordPieceEncoder(vocabulary)
            case _:
                encoder = SentencePieceEncoder(vocabulary)
        return cls(vocabulary, encoder, file.metadata.optional("tokenizer.chat_template", str, None))

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special` adds BOS and EOS where the file says so; `parse_special` turns the text of control
        tokens, such as "<|im_start|>", into those tokens (user-defined tokens are found either way). A byte
        that a byte-level vocabulary lacks is left out, as in llama.cpp.

        Raises:
            ValueError: the text has a lone surrogate, which no UTF-8 can hold.
        """
        check_text(text)
        ids = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        after_special = True
        for part in self._split_special(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(self._space_prefix + part if after_special else part)
            after_special = isinstance(part, int)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids of two texts in one sequence, and the token type of each: 0 up to the first text's end, then 1.

        Raises ValueError for a model that knows no pairs: one without a token to end a text.
        """
        if not self.add_eos or self.eos_id is None:
            raise ValueError(
                "the tokenizer ends no text with a token of its own, which a pair of texts needs"
            )
        ids = self.encode(first)
        rest = [*self.encode(second, add_special=False), self.eos_id]
        return ids + rest, [0] * len(ids) + [1] * len(rest)

    def _split_special(self, text: str, parse_special: bool) -> list[str | int]:
        """Cut out the special tokens, one after the other, the longest first."""
        tokens, kinds = self._vocabulary.tokens, self._vocabulary.kinds
        parts: list[str | int] = [text] if text else []
        for token_id in self._parsed:
            token = tokens[token_id]
            if token not in text or (kinds[token_id] in SPECIAL and not parse_special):
                continue
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    cut.append(part)
                    continue
                for index, piece in enumerate(part.split(token)):
                    cut += ([token_id] if index else []) + ([piece] if piece else [])
            parts = cut
        return parts

    def is_special(self, token_id: int) -> bool:
        """Whether it is a control or unknown token, one that `skip_special` leaves out."""
        return self._vocabulary.kinds[self._checked(token_id)] in SPECIAL

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, possibly a part of a character; special tokens give their text.

        Raises:
            ValueError: the id is not in [0, n_vocab).
        """
        text, kind = self._vocabulary.tokens[self._checked(token_id)], self._vocabulary.kinds[token_id]
        if kind in (*SPECIAL, TokenKind.USER_DEFINED):
            return text.encode()
        if kind is TokenKind.BYTE:
            match = BYTE_TEXT.fullmatch(text)
            return bytes.fromhex(match[1]) if match else b""
        if kind is not TokenKind.NORMAL:
            return b""  # unused and undefined tokens, as in llama.cpp
        if self._vocabulary.model == "gpt2":
            return token_text_bytes(text)
        return text.replace(SPACE, " ").encode()

    def decode(self, ids: Iterable[SupportsIndex], *, skip_special: bool = False) -> str:
        """The text of `ids`: their bytes joined, what is not UTF-8 as U+FFFD.

        Nothing is added or stripped, so decode(a + b) is decode(a) + decode(b) at character borders; the
        space that `encode` puts first under add_space_prefix is there in the result.

        Raises:
            ValueError: an id is not in [0, n_vocab).
        """
        decoder = StreamDecoder(self, skip_special=skip_special)
        return decoder.feed(ids) + decoder.flush()

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation by the file's chat template, up to where the assistant is to speak.

        messages: mappings with role ("system", "user", "assistant") and content. Raises ValueError when the file has no
        template, for messages of another form, and for what the template refuses.
        """
        if self.chat_template is None:
            raise ValueError("the model's file has no chat template: raw text is needed")
        bos, eos = (self._text_of(i) for i in (self.bos_id, self.eos_id))
        text = render_chat(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos,
            eos_token=eos,
        )
        # Most templates begin with BOS themselves; then it must not come twice.
        return self.encode(text, add_special=not (bos and text.startswith(bos)))

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self.token_bytes(token_id).decode(errors="replace")

    def stream(self) -> "StreamDecoder":
        """A decoder that is fed token by token, for text of this tokenizer."""
        return StreamDecoder(self)

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.n_vocab:
            raise ValueError(
                f"the token id {token_id} is not in the vocabulary, 0 to {self.n_vocab - 1} is needed"
            )
        return token_id


class StreamDecoder:
    """Decodes a stream of ids: each `feed` gives the complete characters, the rest waits for more."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[SupportsIndex]) -> str:
        """The text that `ids` complete; ValueError for an id outside the vocabulary."""
        tokenizer = self._tokenizer
        known = map(operator.index, ids)
        shown = [i for i in known if not (self._skip_special and tokenizer.is_special(i))]
        return self._utf8.decode(b"".join(tokenizer.token_bytes(i) for i in shown))

    def flush(self) -> str:
        """What is still incomplete, as U+FFFD; the decoder then starts anew."""
        return self._utf8.decode(b"", final=True)
