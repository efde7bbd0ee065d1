"""The command line: run, chat, embed, split, verify, sweep, ladder. Errors are one line on stderr and exit status 2."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from ubjax import __version__
from ubjax.cli import chat, embed, ladder, run, split, sweep, verify


class _Parser(argparse.ArgumentParser):
    """A parser, of a command too, that takes no part of a flag for the flag."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    0 fine, 1 a comparison failed, 2 bad input, 130 interrupted, 141 whoever reads the output has gone.
    """
    parser = _Parser(prog="ubjax", description="llama.cpp's batch -> ubatch -> KV pipeline as a JAX program.")
    parser.add_argument("--version", action="version", version=f"ubjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (run, chat, embed, split, verify, sweep, ladder):
        command.add_parser(commands)
    args, more = parser.parse_known_args(argv)
    # argparse gives up on a list of texts at the first option between them; those behind it belong to it too
    unknown = [text for text in more if text.startswith("-") or args.command != "run"]
    if unknown:
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    if more:
        args.prompt = [*args.prompt, *more]
    try:
        status = args.execute(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        return 141
    except (ValueError, OSError, ImportError) as error:
        print(f"ubjax {args.command}: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"ubjax {args.command}: interrupted", file=sys.stderr)
        return 130


def _sentence(error: Exception) -> str:
    """The error in words; the system's own say which file and why."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)} can't be opened: {error.strerror}"
    return str(error)
