"""Byte-level BPE (tokenizer.ggml.model "gpt2") through the `tokenizers` package, and its byte alphabet.

The alphabet (GPT-2's) gives each byte a printable character: printable Latin-1 stands for itself, the other
68 bytes are U+0100 upwards in order, so that a space is "Ġ" and a newline "Ċ".
"""

from ubjax.loaders.extras import import_extra
from ubjax.loaders.metadata import Metadata, short
from ubjax.loaders.pre_tokenizers import PRE_TOKENIZERS
from ubjax.loaders.vocabulary import Vocabulary


def byte_alphabet() -> dict[str, int]:
    """Character -> byte.

    >>> alphabet = byte_alphabet()
    >>> alphabet["A"], alphabet["Ġ"], alphabet["Ċ"], len(alphabet)
    (65, 32, 10, 256)
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = byte_alphabet()


def token_text_bytes(text: str) -> bytes:
    """The bytes a byte-level token stands for; characters outside the alphabet stand for their own UTF-8."""
    return b"".join(bytes([BYTE_OF[char]]) if char in BYTE_OF else char.encode() for char in text)


class BytePairEncoder:
    """Text without special tokens -> ids."""

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata) -> None:
        merges = read_merges(vocabulary, metadata)
        hf = import_extra("tokenizers", "a byte-level BPE tokenizer")
        pre = PRE_TOKENIZERS[vocabulary.pre]
        model = hf.models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=pre.ignore_merges)
        split = [hf.pre_tokenizers.Split(hf.Regex(pattern), behavior="isolated") for pattern in pre.patterns]
        to_bytes = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._encoder = hf.Tokenizer(model)
        self._encoder.pre_tokenizer = hf.pre_tokenizers.Sequence([*split, to_bytes])

    def encode(self, text: str) -> list[int]:
        """Words by the pre-tokenizer, each merged by rank; BOS and the like are the caller's."""
        return self._encoder.encode(text, add_special_tokens=False).ids


def read_merges(vocabulary: Vocabulary, metadata: Metadata) -> list[tuple[str, str]]:
    """The pairs of tokenizer.ggml.merges by rank, each once; every part and every result must be a token."""
    merges: dict[tuple[str, str], None] = {}
    for index, merge in enumerate(metadata.require("tokenizer.ggml.merges", tuple)):
        space = merge.find(" ", 1) if isinstance(merge, str) else -1
        if space < 0:
            raise metadata.error(
                f"tokenizer.ggml.merges: element {index} is {short(str(merge))}, two tokens with a "
                "space between them are needed"
            )
        left, right = merge[:space], merge[space + 1 :]
        for part in (left, right, left + right):
            if part not in vocabulary.ids:
                raise metadata.error(
                    f"tokenizer.ggml.merges: element {index} needs the token {short(part)}, which is "
                    "not in the vocabulary"
                )
        merges.setdefault((left, right))
    return list(merges)
