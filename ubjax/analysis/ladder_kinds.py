"""Ladders by name, as the command line and a sweep take them: the same words build the sizes for every n_ubatch."""

import dataclasses
import re

from ubjax.analysis.ladder import optimize_ladder
from ubjax.analysis.rectangle_ladder import RectangleHistogram, optimize_rectangles
from ubjax.ladders import BucketLadder, RectangleLadder

_FORMS = (
    "pow2, pow2+gap, pow2+gap:GAP, linear:N, opt, opt:K, sizes such as 1,8,64, or shapes such as 1x64,4x16"
)
_DEFAULT_GAP = 64


@dataclasses.dataclass(frozen=True)
class LadderKind:
    """What `parse_ladder` read: its text, and the gap or N or K in it."""

    text: str
    name: str
    number: int | None = None

    @property
    def needs_traffic(self) -> bool:
        """Whether the ladder is made for a histogram of shapes."""
        return self.name == "opt"

    def build(
        self, n_ubatch: int, n_seqs: int = 1, histogram: RectangleHistogram | None = None
    ) -> RectangleLadder:
        """The ladder for ubatches of up to `n_seqs` sets and `n_ubatch` rows.

        pow2, pow2+gap and linear: the grid of the ladder to n_seqs by the one to n_ubatch. Sizes and shapes: see
        `RectangleLadder.of`. opt: fitted to `histogram`; without K as many shapes as pow2 uses for it.
        """
        if self.name == "opt":
            if histogram is None:
                raise ValueError(
                    f"the ladder {self.text} is fitted to traffic: a histogram of shapes is needed"
                )
            return self._fitted(n_ubatch, n_seqs, histogram)
        if self.name == "given":
            return RectangleLadder.of(self.text, n_ubatch, n_seqs)
        return RectangleLadder.grid(self.sizes(n_seqs), self.sizes(n_ubatch))

    def sizes(self, top: int) -> BucketLadder:
        """The one-dimensional ladder up to `top`, for the kinds that have one without traffic."""
        if self.name == "pow2":
            return BucketLadder.geometric(top)
        if self.name == "pow2+gap":
            return BucketLadder.gapped(top, _DEFAULT_GAP if self.number is None else self.number)
        if self.name == "linear" and self.number is not None:
            return BucketLadder.linear(top, self.number)
        if self.name == "given":
            return BucketLadder.of(self.text, top)
        raise ValueError(f"the ladder {self.text} has no sizes without traffic")

    def _fitted(self, n_ubatch: int, n_seqs: int, histogram: RectangleHistogram) -> RectangleLadder:
        k = self.number
        if k is None:
            pow2 = RectangleLadder.grid(BucketLadder.geometric(n_seqs), BucketLadder.geometric(n_ubatch))
            k = len({pow2.pick(*shape) for shape in histogram})
        if n_seqs > 1:
            return optimize_rectangles(histogram, k, n_ubatch=n_ubatch, n_seqs=n_seqs)
        if any(shape[0] != 1 for shape in histogram):
            raise ValueError(
                "the histogram has ubatches of several sets, n_seqs is 1: the number of sets is needed"
            )
        rows = {n_rows: count for (_, n_rows), count in histogram.items()}
        ladder = optimize_ladder(rows, k, top=n_ubatch)
        return RectangleLadder(n_ubatch, 1, tuple((1, size) for size in ladder.sizes))


def parse_ladder(text: str) -> LadderKind:
    """A ladder from its name.

    pow2: powers of two. pow2+gap:64: powers of two to 64, then steps of 64 (the default gap). linear:8: 8 equal
    steps. opt:8: the best 8 for the traffic; opt: as many as pow2 uses. 1,8,64: these sizes and n_ubatch. 1x64,4x16:
    shapes n_seqs x n_seq_tokens, and what full ubatches need besides.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if {_form(word) for word in text.split(",")} in ({"size"}, {"shape"}):
        RectangleLadder.of(text, 1)  # refuses sizes that can't be
        return LadderKind(text, "given")
    found = re.fullmatch(r"(pow2|pow2\+gap|linear|opt)(?::([0-9]+))?", text)
    if found is None or (found[1] == "pow2" and found[2]) or (found[1] == "linear" and not found[2]):
        raise ValueError(f"{text!r} is no ladder: {_FORMS} is needed")
    number = int(found[2]) if found[2] else None
    if number == 0:
        raise ValueError(f"the ladder {text} has the number 0, at least 1 is needed")
    return LadderKind(text, found[1], number)


def ladder_text(ladder: RectangleLadder) -> str:
    """The ladder as `parse_ladder` reads it: sizes where ubatches have one block, else shapes."""
    shapes = ladder.shapes()
    if ladder.n_seqs == 1:
        return ",".join(str(size) for _, size in shapes)
    return ",".join(f"{n_blocks}x{size}" for n_blocks, size in shapes)


def parse_ladders(text: str) -> list[LadderKind]:
    """Several ladders with commas between them; sizes or shapes that follow each other are one ladder."""
    kinds: list[list[str]] = []
    for word in text.split(","):
        form = _form(word)
        if form != "name" and kinds and _form(kinds[-1][0]) == form:
            kinds[-1].append(word)
        else:
            kinds.append([word])
    return [parse_ladder(",".join(words)) for words in kinds]


def _form(word: str) -> str:
    """What a word between commas can be: a size, a shape, or a name."""
    if word.strip().isdecimal():
        return "size"
    return "shape" if re.fullmatch(r"\s*[0-9]+x[0-9]+\s*", word) else "name"
