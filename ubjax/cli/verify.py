"""`ubjax verify [FILE ...]`: replay golden answers on the present device; exit status 0 only if all are equal."""

import argparse
from pathlib import Path
from typing import Any

import jax

from ubjax.verify import replay_file

PACKAGE = Path(__file__).parents[1]
GOLDEN = (
    "split.jsonl.gz",
    "split_large.jsonl.gz",
    "kv.jsonl.gz",
    "e2e_smollm2.json.gz",
    "e2e_gemma3.json.gz",
)


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("verify", help="replay golden answers on this device", description=__doc__)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="golden files (default: those in tests/golden of the checkout)",
    )
    parser.add_argument(
        "--model", help="the model of end-to-end files (default: the installed package of each)"
    )
    parser.add_argument("--n-ubatch", type=int, help="instead of that of the end-to-end scenarios")
    parser.add_argument("--swa-full", action="store_true", help="window caches as large as full ones")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Replay each file and print its report."""
    files = args.files or _default_files()
    device = jax.devices()[0]
    print(f"on {device.platform} ({device.device_kind}), jax {jax.__version__}")
    sizes = {"swa_full": True} if args.swa_full else {}
    sizes |= {} if args.n_ubatch is None else {"n_ubatch": args.n_ubatch}
    reports = []
    for path in files:
        report = replay_file(path, model=args.model, **sizes)
        print(report, flush=True)
        reports.append(report)
    return 0 if all(report.equal for report in reports) else 1


def _default_files() -> list[Path]:
    """Those of the checkout that this package lies in; of an installed one, of the checkout that is the folder here."""
    for checkout in (PACKAGE.parent, Path()):
        files = [checkout / "tests" / "golden" / name for name in GOLDEN]
        if all(path.is_file() for path in files):
            return files
    raise ValueError(
        "there are no golden files (tests/golden) here, as they come with a checkout alone: run this in one, or name "
        "the files"
    )
