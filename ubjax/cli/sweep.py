"""`ubjax sweep TRACE`: what n_ubatch, split strategy and bucket ladder cost for a trace of requests."""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from ubjax.analysis.ladder_kinds import parse_ladders
from ubjax.analysis.padding import ModelSizes
from ubjax.analysis.shapes import check_strategy
from ubjax.analysis.step_cost import StepCost
from ubjax.analysis.sweep import KV_PAD, sweep
from ubjax.analysis.sweep_result import COLUMNS, SweepResult
from ubjax.analysis.traces import read_trace
from ubjax.calibrate import calibrate, shapes_to_time
from ubjax.cli.trace_argument import add_trace_arguments, check_outputs, read_sizes, say_written
from ubjax.loaders import load_decoder
from ubjax.models.decoder import Decoder
from ubjax.progress import Progress


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "sweep",
        help="count compilations and padding for a trace of requests",
        description=__doc__,
        epilog=_legend(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser)
    parser.add_argument(
        "--n-ubatch",
        metavar="SIZES",
        default="32,64,128,256,512",
        help="rows of a ubatch at most (default 32,64,128,256,512)",
    )
    parser.add_argument(
        "--strategy",
        metavar="NAMES",
        default="simple,equal,seq",
        help="among simple (one cache for all), equal (a stream each), seq (whole prompts: embeddings); default all",
    )
    parser.add_argument(
        "--ladder",
        metavar="NAMES",
        action="append",
        help="pow2, pow2+gap:64, linear:8 (equal steps), opt:8 (the best 8 for the trace), opt (as many as pow2 uses), "
        "sizes such as 8,64 or shapes such as 1x64,8x1 (with what whole ubatches need besides); may be given again "
        "(default pow2,opt)",
    )
    parser.add_argument(
        "--fit-share",
        metavar="SHARE",
        type=float,
        help="fit the ladders to this first share of the requests, such as 0.5, and count the others",
    )
    parser.add_argument(
        "--model",
        help="a GGUF file, or an installed model package: adds the programs of an engine, and the padded share of the "
        "model's FLOPs, of matrices and of attention apart",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time this model on this machine at a few shapes (minutes), and add the seconds of all steps",
    )
    for ending, what in (("csv", "the table"), ("html", "the table as a page"), ("png", "the plot")):
        parser.add_argument(f"--{ending}", metavar="FILE", type=Path, help=f"write {what}")
    parser.add_argument(
        "--json",
        action="store_true",
        help="end with one line of JSON on a terminal too; elsewhere it is always there",
    )
    parser.set_defaults(execute=execute)


def _legend() -> str:
    """What the columns are, below the options."""
    lines = (
        textwrap.fill(f"  {name:<18}{words}", 100, subsequent_indent=" " * 20)
        for name, words in COLUMNS.items()
    )
    return "\n".join(("columns:", *lines))


def execute(args: argparse.Namespace) -> int:
    """Sweep, print the table, write the files; the last line is the table as JSON, unless a terminal shows it."""
    check_outputs({"--csv": args.csv, "--html": args.html, "--png": args.png})
    n_ubatch = read_sizes("--n-ubatch", args.n_ubatch)
    ladders = [kind for text in args.ladder or ["pow2,opt"] for kind in parse_ladders(text)]
    strategies = list(dict.fromkeys(name.strip() for name in args.strategy.split(",")))
    for name in strategies:
        check_strategy(name)
    if args.measure and args.model is None:
        raise ValueError("--measure needs the model that is to be timed: --model smollm2 for example")
    trace = read_trace(args.trace)
    print(trace, flush=True)
    model = _load(args.model) if args.model else None
    cost = _measured(model, n_ubatch, "equal" in strategies) if model is not None and args.measure else None
    with (
        jax.default_device(jax.devices("cpu")[0]),
        Progress(len(strategies) * len(n_ubatch) * len(ladders), "serving the trace") as progress,
    ):
        result = sweep(
            trace,
            n_ubatch,
            strategies,
            ladders,
            slots=args.slots,
            n_batch=args.n_batch,
            fit_share=args.fit_share,
            cost=cost,
            sizes=None if model is None else ModelSizes.of(model.config),
            on_row=progress.update,
        )
    print(result)
    if cost is not None:
        print("".join(f"{line}\n" for line in _too_close(result, cost.mean_error)), end="")
    _write(result, args)
    if args.json or not sys.stdout.isatty():
        judged = {} if cost is None else {"errors": {str(shape): error for shape, error in cost.errors}}
        print(json.dumps({"rows": result.rows} | judged))
    return 0


def _write(result: SweepResult, args: argparse.Namespace) -> None:
    if args.csv:
        result.to_csv(args.csv)
        say_written(args.csv)
    if args.html:
        result.to_html(args.html, f"ubjax sweep {args.trace.name}")
        say_written(args.html)
    if args.png:
        result.plot().savefig(args.png)
        say_written(args.png)


def _too_close(result: SweepResult, error: float) -> list[str]:
    """A sentence for each kind of work whose least seconds are no less than others', by the error of their cost."""
    lines = []
    for tokens in dict.fromkeys(row["tokens"] for row in result.rows):
        same = result.select(tokens=tokens)
        least = same.best("seconds")["seconds"]
        close = sum(row["seconds"] <= least * (1 + error) for row in same.rows)
        if close > 1:
            names = ", ".join(dict.fromkeys(row["strategy"] for row in same.rows))
            lines.append(
                f"{names}: {close} of {len(same)} rows are within {100 * error:.0f}% of the least seconds, which is "
                "how far off the seconds are: their order says nothing"
            )
    return lines


def _load(name: str) -> Decoder:
    with Progress(None, f"loading {name}") as progress:
        return load_decoder(name, on_tensor=progress.on_tensor)[0]


def _measured(model: Decoder, n_ubatch: Sequence[int], streams: bool) -> StepCost:
    """The cost of a step on this machine, and how far it is off at shapes that it was not fitted to."""
    top = max(*n_ubatch, 2)
    n_kv = (KV_PAD, 2 * max(top, KV_PAD), 8 * max(top, KV_PAD))
    n_seqs = min(top, 8) if streams else 1
    n_shapes = sum(map(len, shapes_to_time(top, n_seqs, n_kv)))
    with Progress(n_shapes, f"compiling and timing {n_shapes} shapes") as progress:
        cost = calibrate(
            model,
            n_ubatch=top,
            n_seqs=n_seqs,
            n_kv=n_kv,
            on_shape=lambda _, i, n: progress.update(i, n),
        )
    print(cost, flush=True)
    return cost
