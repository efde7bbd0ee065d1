"""Sheet and Picture: SVG markup with its extent, for a notebook or a file.

Notebook pages differ in what they let through (GitHub drops style and id attributes), and their dark themes need not
follow the system's. So the markup has presentation attributes alone, no ids, and draws lines and text in currentColor,
the page's own text colour; filled boxes carry dark text.
"""

import dataclasses
import html
import unicodedata
from pathlib import Path
from typing import TypeAlias

from ubjax.typing import Number

Point: TypeAlias = tuple[Number, Number]
DARK = "#1b1f24"  # text and marks on filled boxes
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"
TEXT_SIZE = 12
BOLD = ' font-weight="600"'
FAINT = ' fill-opacity=".75"'
_STYLE = (
    "svg{color:#1f2328}.paper{fill:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6edf3}.paper{fill:#0d1117}}"
)
_MARGIN = 12


def escape(text: str, longest: int = 80) -> str:
    """Text for element content and attributes: what XML forbids becomes U+FFFD, what is too long is cut."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return html.escape("".join(c if _is_xml(c) else "\N{REPLACEMENT CHARACTER}" for c in text))


def _is_xml(char: str) -> bool:
    """Whether XML 1.0 allows a character; line breaks and tabs count as not, as they would be folded anyway."""
    code = ord(char)
    return (
        code >= 0x20 and not 0x7F <= code <= 0x9F and not 0xD800 <= code <= 0xDFFF and code & 0xFFFE != 0xFFFE
    )


def text_width(text: str, size: Number = TEXT_SIZE) -> Number:
    """About how wide a text is [px], rather too much than too little."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return size * (0.58 * (len(text) - wide) + 1.05 * wide)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A finished drawing: Jupyter shows it inline, `to_svg` writes it as a file. `label` says what is seen."""

    body: str = dataclasses.field(repr=False)
    width: int
    height: int
    label: str

    def _repr_html_(self) -> str:
        return self._svg(0, "")

    def to_svg(self, path: str | Path | None = None) -> str:
        """A file of its own, on paper that follows the reader's light or dark setting; written to `path` if given."""
        width, height = self.width + 2 * _MARGIN, self.height + 2 * _MARGIN
        paper = (
            f'<rect class="paper" x="{-_MARGIN}" y="{-_MARGIN}" width="{width}" height="{height}" rx="8"/>'
        )
        text = self._svg(_MARGIN, f"<style>{_STYLE}</style>{paper}") + "\n"
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _svg(self, margin: int, head: str) -> str:
        width, height = self.width + 2 * margin, self.height + 2 * margin
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{-margin} {-margin} {width} {height}" role="img" aria-label="{escape(self.label, 400)}" '
            f'fill="currentColor" font-family="{FONT}" font-size="{TEXT_SIZE}">{head}{self.body}</svg>'
        )


class Sheet:
    """A drawing under way: markup in order, and the extent [px] it needs."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.width: Number = 0
        self.height: Number = 0

    def add(self, markup: str, right: Number, bottom: Number) -> None:
        """Markup that reaches to `right` and `bottom`."""
        self._parts.append(markup)
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def text(self, x: Number, y: Number, text: str, *, size: int = TEXT_SIZE, look: str = "") -> None:
        """A line of text whose base line begins at (x, y); `look`: further attributes, such as FAINT."""
        look += f' font-size="{size}"' if size != TEXT_SIZE else ""
        width = text_width(text, size) * (1.07 if look else 1)
        self.add(f'<text x="{x:g}" y="{y:g}"{look}>{escape(text, 400)}</text>', x + width, y + 4)

    def place(self, other: "Sheet", x: Number, y: Number) -> None:
        """Another sheet with its corner at (x, y)."""
        if other._parts:
            inner = "".join(other._parts)
            self.add(f'<g transform="translate({x:g} {y:g})">{inner}</g>', x + other.width, y + other.height)

    def below(self, other: "Sheet", gap: Number = 8) -> None:
        """Another sheet under what is there."""
        self.place(other, 0, self.height + (gap if self.height else 0))

    def flow(self, others: list["Sheet"], room: Number, gap: Number = 28) -> None:
        """Sheets side by side under what is there, in lines of at most `room` px."""
        x, y, bottom = 0.0, self.height, self.height
        for other in others:
            if x and x + other.width > room:
                x, y = 0.0, bottom + gap / 2
            self.place(other, x, y)
            x, bottom = x + other.width + gap, max(bottom, y + other.height)

    def picture(self, label: str) -> Picture:
        """The drawing as it is now."""
        return Picture(
            body="".join(self._parts),
            width=round(self.width + 0.5),
            height=round(self.height + 0.5),
            label=label,
        )
