"""The command line: `ubjax run`, `ubjax split`, `ubjax verify`. Errors are one line on stderr and exit status 2."""

import argparse
import sys
from collections.abc import Sequence

from ubjax.cli import run, split, verify


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status (0 fine, 1 a comparison failed, 2 bad input)."""
    parser = argparse.ArgumentParser(
        prog="ubjax", description="Ragged language-model traffic in fixed shapes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (run, split, verify):
        command.add_parser(commands)
    args = parser.parse_args(argv)
    try:
        return args.execute(args)
    except (ValueError, OSError) as error:
        print(f"ubjax {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
