r"""How byte-level BPE vocabularies cut text into words before merging, by `tokenizer.ggml.pre`.

The expressions are those the models were trained with (their tokenizer.json; llama.cpp keys them by the same
names). They are applied one after the other, each inside the pieces of the one before; what lies between two
matches is a piece too. `\p{N}` then splits digits before the words are found, for example under "smollm":

    "in 1984!"  ->  "in" | " " | "1" | "9" | "8" | "4" | "!"
"""

import dataclasses

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class PreTokenizer:
    """Expressions (Oniguruma), whether words that are tokens skip the merges, whether BOS is the default."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


LLAMA3 = PreTokenizer((WORDS % "{1,3}",), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((GPT2,)),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": PreTokenizer((WORDS % "",)),
    "smollm": PreTokenizer((r"\p{N}", GPT2)),
}
