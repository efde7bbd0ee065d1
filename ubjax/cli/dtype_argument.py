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
        "bits as ggml rounds them; stored: unchanged what a GGUF file holds as Q4_0 or Q4_1 (4 bits), Q5_0, Q5_1 or "
        "Q8_0 (8 bits), and float32 what it holds as something else",
    )
