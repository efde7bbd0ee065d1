"""Generates: `generate` and `stream` as methods of what decodes batches."""

from collections.abc import Callable, Sequence
from typing import Unpack, overload

from ubjax.generate.decodes import Decodes
from ubjax.generate.prompts import Options, Prompt, generate, is_one, stream
from ubjax.generate.result import Generation, Piece
from ubjax.generate.stream import Stream


class Generates:
    """Prompts to text, for a class that is a `Decodes`."""

    @overload
    def generate(
        self: Decodes,
        prompts: Prompt,
        *,
        on_text: Callable[[str], None] | None = None,
        on_piece: Callable[[Piece], None] | None = None,
        **options: Unpack[Options],
    ) -> Generation: ...

    @overload
    def generate(
        self: Decodes,
        prompts: Sequence[Prompt],
        *,
        on_text: None = None,
        on_piece: Callable[[Piece], None] | None = None,
        **options: Unpack[Options],
    ) -> list[Generation]: ...

    def generate(
        self: Decodes,
        prompts: Prompt | Sequence[Prompt],
        *,
        on_text: Callable[[str], None] | None = None,
        on_piece: Callable[[Piece], None] | None = None,
        **options: Unpack[Options],
    ) -> Generation | list[Generation]:
        """Continue one prompt (text or ids) or a list of them, which share batches and the cache.

        Greedily, 128 tokens at most, unless the options say otherwise: see `ubjax.generate.Options` for them,
        `ubjax.generate.stream` for the errors. One prompt gives its Generation, a list gives theirs in order, an
        empty list none.
        """
        done = generate(self, prompts, on_text=on_text, on_piece=on_piece, **options)
        return done[0] if is_one(prompts) else done

    def stream(self: Decodes, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Stream:
        """`generate` as an iterator of pieces, with `cancel`, `close` and `results`: see `Stream`, `Options`."""
        return stream(self, prompts, **options)
