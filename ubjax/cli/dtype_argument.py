"""The flag that says what a model's weights are stored as."""

import argparse

from ubjax.config import WEIGHT_DTYPES


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add --dtype."""
    parser.add_argument(
        "--dtype",
        choices=WEIGHT_DTYPES,
        default="float32",
        help="of the weights: float32 (default), bfloat16 or float16; int8: 8 bits with a scale for each row; q8_0: 8 "
        "bits as ggml rounds them; stored: blocks as a GGUF file holds them, in 8 bits, unchanged. float16, q8_0 "
        "and stored are smaller at rest alone: while they run they need more memory than float32",
    )
