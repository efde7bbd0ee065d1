"""`ubjax split WHAT`: how each strategy cuts a batch into ubatches, as a table and as coloured rows."""

import argparse
import json
import os
import shutil
import sys
import textwrap
from typing import Any

import jax

from ubjax.buckets import Buckets
from ubjax.cli.batch_argument import quoted, read_batch
from ubjax.pictures.wording import count
from ubjax.viz.plan_view import BatchView, PlanView
from ubjax.viz.strategies import STRATEGIES, why_refused
from ubjax.viz.terminal import Canvas, Ink

MIN_WIDTH = 80  # columns; a narrower terminal wraps the lines itself


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("split", help="show how a batch is cut into ubatches", description=__doc__)
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="lengths such as 5,5,5,1 (a sequence each), or a JSON batch, a file or as it stands: "
        '\'{"seq": [[0], [0, 1], 1], "pos": [0, 1, 2], "output": [false, false, true]}\' '
        '(seq alone is enough) or \'[{"seq": [0], "pos": 0}, ...]\'',
    )
    parser.add_argument(
        "--n-ubatch", metavar="N", type=int, default=8, help="tokens of a ubatch at most (default 8)"
    )
    parser.add_argument(
        "--strategy",
        metavar="NAMES",
        help="among simple, equal (consecutive sequence ids), equal-any (any ids), seq; "
        "default: all, equal-any only where it differs from equal",
    )
    parser.add_argument("--interleave", action="store_true", help="deal the tokens of lengths round robin")
    parser.add_argument(
        "--keep-tail", metavar="K", type=int, default=0,
        help="equal, equal-any: a sequence ends a ubatch used up or with K tokens left at least (default 0)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Read the batch, cut it, show it."""
    names = _strategies(args.strategy, args.keep_tail)
    with jax.default_device(jax.devices("cpu")[0]):
        given = read_batch(args.what, interleave=args.interleave)
        plans = {name: STRATEGIES[name](given.batch, args.n_ubatch, args.keep_tail) for name in names}
        host = BatchView.of(given.batch)
    buckets = Buckets.default(
        n_batch=given.batch.capacity,
        n_ubatch=args.n_ubatch,
        n_streams=given.n_seq_max,
        n_cells=(1,),
        kv_pad=1,
    )
    views = {name: PlanView(host, plan, buckets) for name, plan in plans.items()}
    ink = Ink.of(terminal=sys.stdout.isatty(), encoding=sys.stdout.encoding or "ascii", environ=os.environ)
    canvas = Canvas(host, ink, max(MIN_WIDTH, shutil.get_terminal_size().columns))
    print(*_introduction(host, ink, args.n_ubatch, args.keep_tail), sep="\n")
    print(canvas.rows_of_batch())
    if given.refusal:
        print(
            _wrapped(f"a decode with an empty cache would refuse this batch: {given.refusal}", canvas.width)
        )
    for name, view in views.items():
        if name == "equal-any" and args.strategy is None and view.same_cut(views["equal"]):
            print(f"\n{ink.heading(name)}: cuts this batch as equal does")
        else:
            totals = _wrapped(f"{name}: {_totals(view)}", canvas.width)
            print(f"\n{ink.heading(name)}{totals.removeprefix(name)}")
            failure = why_refused(name, view)
            if failure:
                print(_wrapped(f"  failed: {failure}", canvas.width))
            for line in canvas.plan(view):
                print(line)
    if args.json:
        sizes = {"n_ubatch": args.n_ubatch, "n_keep_tail": args.keep_tail}
        print(json.dumps({**sizes, "refusal": given.refusal, **_as_json(host, views)}))
    return 0


def _strategies(text: str | None, keep_tail: int) -> list[str]:
    """The names asked for, each once."""
    names = list(STRATEGIES if text is None else dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in STRATEGIES:
            raise ValueError(f"the strategy is {quoted(name)}, one of {', '.join(STRATEGIES)} is needed")
    if keep_tail and not {"equal", "equal-any"} & set(names):
        raise ValueError(
            f"--keep-tail {keep_tail} has no meaning for {', '.join(names)}: equal or equal-any is needed"
        )
    return names


def _introduction(batch: BatchView, ink: Ink, n_ubatch: int, keep_tail: int) -> tuple[str, str]:
    tail = f", n_keep_tail {keep_tail}" if keep_tail else ""
    shared = " (+: in others too)" if (batch.n_seqs > 1).any() else ""
    tokens, sequences = count(batch.n_tokens, "token"), count(len(batch.sequences()), "sequence")
    return (
        f"{tokens} of {sequences}, n_ubatch {n_ubatch}{tail}",
        f"a cell is a token's sequence{shared}, {ink.hatch} is padding of the bucket",
    )


def _totals(view: PlanView) -> str:
    if not len(view):
        return "no ubatch"
    return (
        f"{count(len(view), 'ubatch', 'ubatches')}, {count(view.n_shapes, 'shape')}, "
        f"{count(view.n_buckets, 'bucket')}; padding {view.n_padded} of {view.n_rows} rows, fill {view.fill:.1%}"
    )


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, subsequent_indent="    "))


def _as_json(batch: BatchView, views: dict[str, PlanView]) -> dict[str, Any]:
    """Every ubatch of every plan, with the names of llama.cpp; a bucket is [Sb, Lb]."""
    splits = [
        {
            "strategy": name,
            "failure": why_refused(name, view),
            "equal_seqs": view.equal_seqs,
            "n_ubatches": len(view),
            "n_shapes": view.n_shapes,
            "n_buckets": view.n_buckets,
            "n_rows": view.n_rows,
            "n_padded": view.n_padded,
            "fill": view.fill,
            "ubatches": [
                {
                    "n_tokens": ubatch.n_tokens,
                    "n_seqs": ubatch.n_seqs,
                    "n_seq_tokens": ubatch.n_seq_tokens,
                    "n_outputs": ubatch.n_outputs,
                    "bucket": [ubatch.bucket.n_blocks, ubatch.bucket.n_block_rows],
                    "seq_id_unq": ubatch.seq_id_unq.tolist(),
                    "batch_idxs": ubatch.batch_idxs.tolist(),
                }
                for ubatch in view
            ],
        }
        for name, view in views.items()
    ]
    return {"n_tokens": batch.n_tokens, "n_seqs": len(batch.sequences()), "splits": splits}
