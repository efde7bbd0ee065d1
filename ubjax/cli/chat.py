"""`ubjax chat MODEL`: a conversation, a line a turn; an empty line or the end of input ends it."""

import argparse
import sys
from typing import Any

from ubjax.cli.run import add_model, load_engine, sampling_of


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("chat", help="talk with a model", description=__doc__)
    add_model(parser)
    parser.add_argument("--system", help="the system message")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Read a line, answer it, until there is none. The whole conversation is the prompt of every turn."""
    sampling = sampling_of(args)
    engine, tokenizer = load_engine(args)
    engine.prefix_cache = True  # a turn starts from the cells of those before
    turns = [] if args.system is None else [{"role": "system", "content": args.system}]
    while line := _ask():
        turns.append({"role": "user", "content": line})
        result = engine.generate(
            tokenizer.encode_chat(turns),
            max_tokens=args.max_tokens,
            sampling=sampling,
            on_text=lambda text: print(text, end="", flush=True),
        )
        print(flush=True)
        turns.append({"role": "assistant", "content": result.text})
    return 0


def _ask() -> str:
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
