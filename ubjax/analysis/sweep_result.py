"""SweepResult: the table of a sweep, in a terminal, a notebook, a file, a picture."""

import csv
import dataclasses
import html
import importlib.util
import io
from pathlib import Path
from typing import Any

from ubjax.ladders import RectangleLadder

Row = dict[str, Any]
COLUMNS = {
    "strategy": "how a batch is cut: simple, equal, or seq, which takes whole prompts only (embeddings, no outputs) "
    "and so has other decodes and tokens",
    "n_ubatch": "rows of a ubatch at most",
    "ladder": "the sizes that ubatches are padded to",
    "decodes": "batches that the trace becomes",
    "ubatches": "pieces that they are cut into, each a step of the model",
    "tokens": "rows of all ubatches, without padding",
    "shapes": "different sizes among the ubatches: what is compiled without a ladder",
    "compilations": "different sizes that they are padded to: what is compiled with the ladder",
    "padded_share": "share of the computed rows that is padding",
    "fill": "tokens as a share of n_ubatch rows for each ubatch",
    "rows_mean": "rows of a ubatch with its padding, on average",
    "rows_p95": "and the number that 95% of the ubatches do not exceed",
    "programs": "what an engine compiles: one for each size with each size of K/V and of outputs",
    "matmul_padded": "share of the FLOPs of matrices that is padding",
    "attention_padded": "share of the FLOPs of attention that is padding",
    "seconds": "of all steps, as the cost of one says",
}
_OF_EVERY_LADDER = {"decodes", "ubatches", "tokens", "shapes", "fill"}
_PERCENT = {"padded_share", "fill", "matmul_padded", "attention_padded"}


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """One row per strategy, n_ubatch and ladder (columns as in COLUMNS); `ladders` by those three.

    `trace`: the requests in words; `where`: what the rows were selected by.
    """

    rows: list[Row]
    ladders: dict[tuple[str, int, str], RectangleLadder]
    trace: str = ""
    where: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.rows[0]) if self.rows else []

    def select(self, **where: Any) -> "SweepResult":
        """The rows with these values in columns such as strategy and n_ubatch."""
        unknown = [name for name in where if self.rows and name not in self.columns]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]!r}, one of {', '.join(self.columns)} is needed")
        rows = [row for row in self.rows if all(row[name] == value for name, value in where.items())]
        return SweepResult(rows, self.ladders, self.trace, self.where | where)

    def best(self, by: str | None = None, **where: Any) -> Row:
        """The row with the least `by` among those with these values; by default seconds, else padded_share."""
        rows, where = self.select(**where).rows, self.where | where
        if not rows:
            found = f"no row has {where}" if where else "there are no rows"
            raise ValueError(f"{found}: at least one is needed")
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

    def to_html(self, path: str | Path, heading: str = "ubjax sweep") -> None:
        """The table as a page of its own: what the columns mean, and the plot where matplotlib is installed."""
        style = (
            ":root { color-scheme: light dark } body { font: 14px/1.5 system-ui, sans-serif; margin: 2em } "
            "table { border-collapse: collapse } "
            "td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #8884 } "
            "svg { max-width: 100%; height: auto } dt { float: left; width: 10em } dd { margin-left: 10em }"
        )
        title = html.escape(heading)
        legend = "".join(f"<dt>{name}</dt><dd>{html.escape(COLUMNS[name])}</dd>" for name in self.columns)
        page = (
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{style}</style>"
            f"<h1>{title}</h1><p>{html.escape(self.trace)}</p>{self._repr_html_()}{self._svg()}<dl>{legend}</dl></html>\n"
        )
        Path(path).write_text(page, encoding="utf-8")

    def _svg(self) -> str:
        """The plot as markup; empty without matplotlib or rows."""
        if importlib.util.find_spec("matplotlib") is None or not self.rows:
            return ""
        out = io.StringIO()
        figure = self.plot()
        figure.savefig(out, format="svg")
        _close(figure)
        return out.getvalue()[out.getvalue().index("<svg") :]

    def plot(self, *columns: str) -> Any:
        """Draw columns against n_ubatch with matplotlib, a line per strategy and ladder; returns the figure.

        By default shapes, compilations, padded_share, and seconds where they are known. What is the same for every
        ladder, as shapes are, has a line per strategy.
        """
        import matplotlib.pyplot as plt

        seconds = ("seconds",) if "seconds" in self.columns else ()
        columns = columns or ("shapes", "compilations", "padded_share", *seconds)
        if unknown := [name for name in columns if name not in self.columns]:
            raise ValueError(f"there is no column {unknown[0]!r}, one of {', '.join(self.columns)} is needed")
        figure = plt.figure(figsize=(5 * len(columns), 4), layout="constrained")
        figure.suptitle(self.trace, fontsize="medium")
        legends = set()
        for ax, column in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
            self._plot_column(ax, column)
            if (column in _OF_EVERY_LADDER) not in legends:
                ax.legend(fontsize="small")
                legends.add(column in _OF_EVERY_LADDER)
        return figure

    def _plot_column(self, ax: Any, column: str) -> None:
        lines = list(dict.fromkeys((row["strategy"], row["ladder"]) for row in self.rows))
        strategies, ladders = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
        if column in _OF_EVERY_LADDER:
            lines = [(strategy, ladders[0]) for strategy in strategies]
        for strategy, ladder in lines:
            rows = sorted(self.select(strategy=strategy, ladder=ladder).rows, key=lambda row: row["n_ubatch"])
            look = ladders.index(ladder)
            ax.plot(
                [row["n_ubatch"] for row in rows],
                [row[column] * (100 if column in _PERCENT else 1) for row in rows],
                color=f"C{strategies.index(strategy)}",
                linestyle=("-", "--", ":", "-.")[look % 4],
                marker="osD^vPX*"[look % 8],
                markerfacecolor="none",  # what lies below stays visible
                markersize=5 + 2 * (look % 3),
                label=strategy if column in _OF_EVERY_LADDER else f"{strategy}, {ladder}",
            )
        ax.set_xscale("log", base=2)
        sizes = sorted({row["n_ubatch"] for row in self.rows})
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.set(xlabel="n_ubatch", ylabel=f"{column}{', %' if column in _PERCENT else ''}", ylim=(0, None))
        if column not in _PERCENT and column != "seconds":
            ax.yaxis.get_major_locator().set_params(integer=True)
        ax.grid(alpha=0.3)

    def __str__(self) -> str:
        cells = [self.columns, *([_shown(name, row[name]) for name in self.columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        lines = (
            "".join(f"<td>{html.escape(_shown(name, row[name]))}</td>" for name in self.columns)
            for row in self.rows
        )
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _close(figure: Any) -> None:
    """Forget a figure that nobody will look at."""
    import matplotlib.pyplot as plt

    plt.close(figure)


def _shown(column: str, value: Any) -> str:
    """A value as people read it."""
    if column in _PERCENT:
        return f"{100 * value:.2f}%"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and column != "n_ubatch" else str(value)
