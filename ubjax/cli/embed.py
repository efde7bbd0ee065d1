"""`ubjax embed MODEL FILE|-`: a vector of each text, one text a line."""

import argparse
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ubjax.analysis import count_compilations
from ubjax.cli.dtype_argument import add_dtype
from ubjax.cli.texts import Line, json_line, read_texts
from ubjax.cli.trace_argument import check_outputs
from ubjax.compilation_cache import use_compilation_cache
from ubjax.config import MAX_SEQ, EngineConfig
from ubjax.encoder_engine import EncoderEngine
from ubjax.engine import Engine
from ubjax.loaders import load_model
from ubjax.models.encoder import Encoder
from ubjax.pictures.wording import amount
from ubjax.pooling import KINDS
from ubjax.progress import Progress
from ubjax.saving.files import check_writable, write_whole

FORMATS = (".npy", ".jsonl", ".csv")


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("embed", help="turn texts into vectors with a model", description=__doc__)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a GGUF file, a Hugging Face folder, or an installed model package: minilm",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="texts: one a line, or JSONL of strings or {text: ...}, with an id or none; -: stdin",
    )
    parser.add_argument("--jsonl", action="store_true", help="the input is JSONL whatever its name")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="write the vectors to .npy, .jsonl or .csv (default: JSONL on stdout); where texts have an id, lines of "
        "JSONL are {id: ..., embedding: ...}",
    )
    parser.add_argument("--pooling", choices=KINDS[1:], help="default: as the model's files say")
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="to length 1 (default: as the model's files say)",
    )
    parser.add_argument(
        "--prompt-name", help="the prompt of a sentence-transformers folder to begin each text with"
    )
    parser.add_argument("--n-batch", type=int, help="tokens of a batch (default 16384, of a decoder 2048)")
    parser.add_argument("--n-ubatch", type=int, default=512, help="rows of a ubatch (default 512)")
    parser.add_argument("--n-seq-max", type=int, help="texts of a batch (default 256, of a decoder 8)")
    parser.add_argument(
        "-c", "--n-ctx", type=int, help="tokens that a decoder's cache holds (default: one batch)"
    )
    add_dtype(parser)
    parser.add_argument(
        "--compilation-cache",
        action="store_true",
        help="keep compiled programs in the user's cache folder for the next time",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Read, load, embed, write."""
    if args.output is not None and args.output.suffix not in FORMATS:
        raise ValueError(f"the output is {args.output}, a name that ends in {', '.join(FORMATS)} is needed")
    check_outputs({"--output": args.output})
    if args.output is not None:
        check_writable(args.output)
    lines = read_texts(args.file, "text", jsonl=args.jsonl, blank=True)
    if not lines:
        raise ValueError(f"{args.file} holds 0 texts, at least 1 is needed")
    if args.compilation_cache:
        print(f"compiled programs are kept in {use_compilation_cache()}", file=sys.stderr)
    engine = load_engine(args)
    start = time.perf_counter()
    with count_compilations() as compilations, Progress(len(lines), "embedding") as progress:
        vectors = engine.embed(
            [line.text for line in lines],
            pooling=args.pooling,
            normalize=args.normalize,
            prompt_name=args.prompt_name,
            on_progress=progress.update,
        )
    seconds = time.perf_counter() - start
    write(vectors, lines, args.output)
    texts = amount(len(lines), "text")
    print(f"{texts} in {seconds:.1f} s; {engine.usage}; {compilations}", file=sys.stderr)
    if args.json:
        summary = {
            "texts": len(lines),
            "width": vectors.shape[1],
            "pooling": args.pooling or engine.pooling.kind,
            "normalized": engine.pooling.normalize if args.normalize is None else args.normalize,
            "seconds": seconds,
            "texts_per_second": len(lines) / seconds,
            "tokens": engine.usage.tokens,
            "ubatches": engine.usage.ubatches,
            "buckets": dict(engine.usage.buckets),
            "padded_share": engine.usage.padded_share,
            "compilations": compilations.total,
        }
        print(json_line(summary))
    return 0


def load_engine(args: argparse.Namespace) -> Engine | EncoderEngine:
    """The engine of the options; sizes are refused before the model is loaded."""
    given = {name: getattr(args, name) for name in ("n_batch", "n_seq_max")}
    given = {name: value for name, value in given.items() if value is not None}
    encoder = EngineConfig(**{"n_batch": 16384, "n_seq_max": MAX_SEQ, **given}, n_ubatch=args.n_ubatch)
    sizes = {"n_batch": 2048, "n_seq_max": 8, **given}
    n_ctx = sizes["n_batch"] if args.n_ctx is None else args.n_ctx
    decoder = EngineConfig(**sizes, n_ubatch=args.n_ubatch, n_ctx=n_ctx, kv_unified=True)
    with Progress(None, f"loading {args.model}") as progress:
        model, tokenizer = load_model(args.model, dtype=args.dtype, on_tensor=progress.on_tensor)
    return Engine(model, tokenizer, encoder if isinstance(model, Encoder) else decoder)


def write(vectors: np.ndarray, lines: Sequence[Line], output: Path | None) -> None:
    """The vectors to a file by its ending, or as JSONL to stdout; there are ids in JSONL alone."""
    if output is None:
        print(_jsonl(vectors, lines), end="", flush=True)
        return
    if output.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, vectors)
        data = buffer.getvalue()
    else:
        text = (
            _jsonl(vectors, lines)
            if output.suffix == ".jsonl"
            else "".join(f"{row}\n" for row in _rows(vectors))
        )
        data = text.encode()
    write_whole(output, [memoryview(data)])


def _rows(vectors: np.ndarray) -> list[str]:
    return [",".join(map(str, row)) for row in vectors]


def _jsonl(vectors: np.ndarray, lines: Sequence[Line]) -> str:
    """A line for each vector: its numbers, or an object with the id of its text once one of them has an id."""
    rows = [f"[{row}]" for row in _rows(vectors)]
    if any(line.named for line in lines):
        objects = [json_line({**line.named, "embedding": []}) for line in lines]
        rows = [text.removesuffix("[]}") + row + "}" for text, row in zip(objects, rows, strict=True)]
    return "".join(f"{row}\n" for row in rows)
