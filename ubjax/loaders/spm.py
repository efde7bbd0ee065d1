"""SentencePiece BPE by scores (tokenizer.ggml.model "llama": Llama 2, Gemma), as llama.cpp's SPM does it.

Spaces become "▁" (U+2581). Text begins as single characters; of all neighbours whose joined text is a token,
the pair with the highest score is joined first (the leftmost of equals), until none is left. A character that
is no token becomes its UTF-8 bytes. For example with scores  ab -1, bc -2, abc -3, cd -4:

    a b c d  ->  ab c d  (-1 beats -2 and -4)  ->  abc d  (-3 beats -4)  ->  no token "abcd": abc, d
"""

import functools
import heapq
import re

from ubjax.loaders.vocabulary import Vocabulary

SPACE = "▁"


class SentencePieceEncoder:
    """Text without special tokens -> ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._boundary = word_boundary(vocabulary.tokens)
        # Words come again and again, so each is merged once.
        self._word_ids = functools.lru_cache(maxsize=1 << 14)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Pairs joined by score; the space before the first word, BOS and the like are the caller's."""
        words = self._boundary.split(text.replace(" ", SPACE))
        return [token_id for word in words for token_id in self._word_ids(word)]

    def _merge(self, word: str) -> tuple[int, ...]:
        """Join pairs until none is left; symbol i has `lengths[i]` characters from i on, 0 once joined."""
        ids, scores = self._vocabulary.ids, self._vocabulary.scores
        lengths = [1] * len(word)
        before = list(range(-1, len(word) - 1))
        after = [*range(1, len(word)), -1][: len(word)]
        queue: list[tuple[float, int, int, int]] = []  # (-score, left, right, length of both)

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                length = lengths[left] + lengths[right]
                token_id = ids.get(word[left : left + length])
                if token_id is not None:
                    heapq.heappush(queue, (-scores[token_id], left, right, length))

        for right in range(1, len(word)):
            offer(right - 1, right)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            if not lengths[left] or not lengths[right] or lengths[left] + lengths[right] != length:
                continue  # one of the two has been joined to something else
            lengths[left], lengths[right] = length, 0
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        pieces = (word[start : start + length] for start, length in enumerate(lengths) if length)
        return tuple(token_id for piece in pieces for token_id in self._piece_ids(piece))

    def _piece_ids(self, piece: str) -> list[int]:
        """A token, or the byte tokens of a character that is none, else the unknown token."""
        ids, unk_id = self._vocabulary.ids, self._vocabulary.unk_id
        names = [piece] if piece in ids else [f"<0x{byte:02X}>" for byte in piece.encode()]
        if all(name in ids for name in names):
            return [ids[name] for name in names]
        return [] if unk_id is None else [unk_id]


def word_boundary(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Where a cut changes no tokens: before a "▁" that follows a character which no token joins to it.

    A pair is joined only when the joined text is a token, so nothing ever crosses such a place.
    """
    spaced = [token for token in tokens if SPACE in token]
    joined = {token[at - 1] for token in spaced for at in range(1, len(token)) if token[at] == SPACE}
    kept = "".join(re.escape(char) for char in sorted(joined))
    return re.compile(f"(?<=[^{kept}])(?={SPACE})" if kept else f"(?<=.)(?={SPACE})", re.DOTALL)
