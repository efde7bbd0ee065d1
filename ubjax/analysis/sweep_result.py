"""SweepResult: the table of a sweep, in a terminal, a notebook, a file, a picture."""

import csv
import dataclasses
import html
import io
from pathlib import Path
from typing import Any

from ubjax.ladders import RectangleLadder

Row = dict[str, Any]
_PERCENT = {"padded_share", "fill", "matmul_padded", "attention_padded"}


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """One row per strategy, n_ubatch and ladder (columns as in `measure`); `ladders` by those three."""

    rows: list[Row]
    ladders: dict[tuple[str, int, str], RectangleLadder]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.rows[0]) if self.rows else []

    def select(self, **where: Any) -> "SweepResult":
        """The rows with these values in columns such as strategy and n_ubatch."""
        unknown = [name for name in where if name not in self.columns]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]!r}, one of {', '.join(self.columns)} is needed")
        rows = [row for row in self.rows if all(row[name] == value for name, value in where.items())]
        return SweepResult(rows, self.ladders)

    def best(self, by: str | None = None, **where: Any) -> Row:
        """The row with the least `by` among those with these values; by default seconds, else padded_share."""
        rows = self.select(**where).rows
        if not rows:
            raise ValueError(f"no row has {where}: at least one is needed")
        by = by or ("seconds" if "seconds" in self.columns else "padded_share")
        if by not in self.columns:
            raise ValueError(f"there is no column {by!r}, one of {', '.join(self.columns)} is needed")
        return min(rows, key=lambda row: row[by])

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame (pandas has to be installed)."""
        import pandas

        return pandas.DataFrame(self.rows)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV, written to `path` when one is given."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        if path is not None:
            Path(path).write_text(out.getvalue(), encoding="utf-8")
        return out.getvalue()

    def to_html(self, path: str | Path) -> None:
        """The table as a page of its own."""
        style = (
            ":root { color-scheme: light dark } body { font: 14px/1.5 system-ui, sans-serif; margin: 2em } "
            "table { border-collapse: collapse } "
            "td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #8884 }"
        )
        page = (
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>ubjax sweep</title><style>{style}</style>"
            f"{self._repr_html_()}</html>\n"
        )
        Path(path).write_text(page, encoding="utf-8")

    def plot(self, *columns: str) -> Any:
        """Draw columns against n_ubatch with matplotlib, a line per strategy and ladder; returns the figure.

        By default compilations and padded_share.
        """
        import matplotlib.pyplot as plt

        columns = columns or ("compilations", "padded_share")
        if unknown := [name for name in columns if name not in self.columns]:
            raise ValueError(f"there is no column {unknown[0]!r}, one of {', '.join(self.columns)} is needed")
        figure = plt.figure(figsize=(5 * len(columns), 4), layout="constrained")
        lines = list(dict.fromkeys((row["strategy"], row["ladder"]) for row in self.rows))
        strategies, ladders = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
        for ax, column in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
            for strategy, ladder in lines:
                rows = sorted(
                    self.select(strategy=strategy, ladder=ladder).rows, key=lambda row: row["n_ubatch"]
                )
                ax.plot(
                    [row["n_ubatch"] for row in rows],
                    [row[column] * (100 if column in _PERCENT else 1) for row in rows],
                    color=f"C{strategies.index(strategy)}",
                    linestyle=("-", "--", ":", "-.")[ladders.index(ladder) % 4],
                    marker="o",
                    label=f"{strategy}, {ladder}",
                )
            ax.set_xscale("log", base=2)
            sizes = sorted({row["n_ubatch"] for row in self.rows})
            ax.set_xticks(sizes, [str(size) for size in sizes])
            ax.set(xlabel="n_ubatch", ylabel=f"{column}{', %' if column in _PERCENT else ''}", ylim=(0, None))
            if column not in _PERCENT:
                ax.yaxis.get_major_locator().set_params(integer=True)
            ax.grid(alpha=0.3)
        figure.axes[0].legend(fontsize="small")
        return figure

    def __str__(self) -> str:
        cells = [self.columns, *([_shown(name, row[name]) for name in self.columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        lines = (
            "".join(f"<td>{html.escape(_shown(name, row[name]))}</td>" for name in self.columns)
            for row in self.rows
        )
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(column: str, value: Any) -> str:
    """A value as people read it."""
    if column in _PERCENT:
        return f"{100 * value:.2f}%"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and column != "n_ubatch" else str(value)
