"""`ubjax run MODEL PROMPT`: stream a greedy continuation, then what it cost."""

import argparse
import sys
from typing import Any

from ubjax.analysis import count_compilations
from ubjax.config import KV_DTYPES, EngineConfig
from ubjax.engine import Engine
from ubjax.loaders import load_model


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("run", help="continue a prompt with a model", description=__doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a GGUF file, or the name of an installed model package: smollm2"
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    parser.add_argument(
        "-n", "--max-tokens", type=int, default=64, help="tokens to generate at most (default 64)"
    )
    parser.add_argument("-c", "--n-ctx", type=int, default=2048, help="tokens the cache holds (default 2048)")
    parser.add_argument("--n-batch", type=int, default=2048, help="tokens of one decode (default 2048)")
    parser.add_argument("--n-ubatch", type=int, default=512, help="rows of one ubatch (default 512)")
    parser.add_argument(
        "--dtype", choices=KV_DTYPES, default="float32", help="of the weights (default float32)"
    )
    parser.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default="float32", help="of the cache (default float32)"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    config = EngineConfig(
        n_ctx=args.n_ctx, n_batch=args.n_batch, n_ubatch=args.n_ubatch, kv_dtype=args.kv_dtype
    )
    print(f"loading {args.model} ...", file=sys.stderr, flush=True)
    model, tokenizer = load_model(args.model, dtype=args.dtype)
    engine = Engine(model, tokenizer, config)
    print("compiling; the first words take a while ...", file=sys.stderr, flush=True)
    print(args.prompt, end="", flush=True)
    with count_compilations() as compiled:
        result = engine.generate(args.prompt, max_tokens=args.max_tokens, on_text=_show)
    print(
        f"\n\n{len(result.prompt_tokens)} prompt tokens, {result.prompt_rate:.1f} tokens/s; "
        f"{len(result.tokens)} generated, {result.decode_rate:.1f} tokens/s ({result.finish_reason})\n"
        f"{result.report.usage}\n{compiled}",
        file=sys.stderr,
    )
    return 0


def _show(piece: str) -> None:
    print(piece, end="", flush=True)
