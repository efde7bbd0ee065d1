"""WordPiece (tokenizer.ggml.model "bert") through the `tokenizers` package.

Text is cleaned, lower-cased, stripped of accents and cut into words and punctuation; a word is cut into the longest
tokens from its beginning on, or is the unknown token as a whole. In a GGUF a token that begins a word has "▁" before
it, and one that goes on has nothing:

    unaffable -> ▁un aff able        as Hugging Face writes it: un ##aff ##able
"""

from ubjax.loaders.extras import import_extra
from ubjax.loaders.spm import SPACE
from ubjax.loaders.vocabulary import TokenKind, Vocabulary

GOES_ON = "##"


class WordPieceEncoder:
    """Text without special tokens -> ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        hf = import_extra("tokenizers", "a WordPiece tokenizer")
        pairs = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        ids = {_piece(token, kind): i for i, (token, kind) in enumerate(pairs)}
        unk = None if vocabulary.unk_id is None else vocabulary.tokens[vocabulary.unk_id]
        model = hf.models.WordPiece(vocab=ids, unk_token=unk or "[UNK]", continuing_subword_prefix=GOES_ON)
        self._encoder = hf.Tokenizer(model)
        self._encoder.normalizer = hf.normalizers.BertNormalizer()
        self._encoder.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        """Words, each cut from its beginning on; the tokens around a text are the caller's."""
        return self._encoder.encode(text, add_special_tokens=False).ids


def _piece(token: str, kind: TokenKind) -> str:
    """A token as Hugging Face writes it."""
    if kind is not TokenKind.NORMAL:
        return token
    return token.removeprefix(SPACE) if token.startswith(SPACE) else GOES_ON + token
