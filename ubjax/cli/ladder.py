"""`ubjax ladder TRACE -k 8`: the best bucket ladder for a trace of requests, as the flags that use it."""

import argparse
from pathlib import Path
from typing import Any

import jax

from ubjax.analysis.driver import drive, pack_prompts
from ubjax.analysis.ladder import optimize_ladder, waste_curve
from ubjax.analysis.ladder_kinds import ladder_text, parse_ladder
from ubjax.analysis.shapes import STRATEGIES, ShapeCounts, count_shapes
from ubjax.analysis.sweep import measure
from ubjax.analysis.traces import read_trace
from ubjax.cli.trace_argument import add_trace_arguments, check_outputs, say_written
from ubjax.ladders import RectangleLadder
from ubjax.pictures.wording import amount
from ubjax.progress import Progress


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "ladder", help="find the best bucket ladder for a trace of requests", description=__doc__
    )
    add_trace_arguments(parser)
    number = parser.add_mutually_exclusive_group(required=True)
    number.add_argument("-k", metavar="K", type=int, help="buckets, each a program to compile")
    number.add_argument(
        "--compile-price",
        metavar="ROWS",
        type=float,
        help="choose the number: a bucket is worth it if it saves this many padded rows (not for equal)",
    )
    parser.add_argument(
        "--n-ubatch", metavar="N", type=int, default=512, help="rows of a ubatch at most (default 512)"
    )
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="simple",
        help="simple (one cache for all, the default), equal (a stream each: shapes n_seqs x n_seq_tokens), seq (whole "
        "prompts, for embeddings)",
    )
    parser.add_argument(
        "--png",
        metavar="FILE",
        type=Path,
        help="plot the padding of the best 1 to 32 buckets (not for equal)",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Count the trace's shapes, fit the ladder, print what it saves; the last line has the flags."""
    check_outputs({"--png": args.png})
    if args.strategy == "equal" and (args.png or args.compile_price is not None):
        option = "--png" if args.png else "--compile-price"
        raise ValueError(f"{option} is for ladders of one dimension: the strategy simple or seq is needed")
    if args.k is not None:
        parse_ladder(f"opt:{args.k}")  # refuses numbers that can't be
    trace = read_trace(args.trace)
    print(trace, flush=True)
    form = pack_prompts if args.strategy == "seq" else drive
    with jax.default_device(jax.devices("cpu")[0]), Progress(None, "serving the trace"):
        traffic = form(trace, slots=args.slots, n_batch=args.n_batch)
        counts = count_shapes(traffic, [args.n_ubatch], args.strategy)[args.n_ubatch]
    n_seqs = args.slots if args.strategy == "equal" else 1
    ladder = _fitted(counts, args, n_seqs)
    for name, built in (("pow2", parse_ladder("pow2").build(args.n_ubatch, n_seqs)), ("this ladder", ladder)):
        print(f"{name}: {_account(counts, built)}")
    if args.png:
        waste_curve(_rows(counts), 32, top=args.n_ubatch).plot().figure.savefig(args.png)
        say_written(args.png)
    print(_flags(ladder, args))
    return 0


def _account(counts: ShapeCounts, ladder: RectangleLadder) -> str:
    """Its shapes, those among them that the trace needs, and the padding."""
    found, n_shapes = measure(counts, ladder), len(ladder.shapes())
    needed = found["compilations"]
    others = (
        f" ({needed} for this trace, {n_shapes - needed} for what else can occur)"
        if needed < n_shapes
        else ""
    )
    return f"{amount(n_shapes, 'shape')}{others}, {100 * found['padded_share']:.2f}% padding"


def _flags(ladder: RectangleLadder, args: argparse.Namespace) -> str:
    """The flags of `ubjax run` for this ladder and the sizes that it was made for."""
    flags = f"--ladder {ladder_text(ladder)} --n-ubatch {args.n_ubatch} --n-seq-max {args.slots}"
    return flags if args.strategy == "equal" or args.slots == 1 else f"{flags} --kv-unified"


def _fitted(counts: ShapeCounts, args: argparse.Namespace, n_seqs: int) -> RectangleLadder:
    if args.compile_price is None:
        return parse_ladder(f"opt:{args.k}").build(args.n_ubatch, n_seqs, counts)
    sizes = optimize_ladder(_rows(counts), top=args.n_ubatch, compile_price=args.compile_price).sizes
    return RectangleLadder(args.n_ubatch, 1, tuple((1, size) for size in sizes))


def _rows(counts: ShapeCounts) -> dict[int, int]:
    """Ubatches by rows, where they have one block."""
    return {rows: count for (_, rows), count in counts.items()}
