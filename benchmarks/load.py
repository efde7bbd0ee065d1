"""How long does loading a model take, and how much memory?

    python benchmarks/load.py [--model FILE ...] [--rounds 3] [--dtype float32]

Default: SmolLM2-135M (Q4_1), and a file of random Q8_0 tensors in the sizes of Gemma 3 270M that is written first.
A file whose architecture the decoder doesn't have is read and dequantized, and all its tensors kept as float32
(`read`); the others become a decoder (`load`, with the tokenizer where the file has one).

Every round is a process of its own. Seconds: from open to all weights on the device, medians and range, imports
left out. Peak: the most memory that the process had resident (VmHWM), less what it had before opening the
file; the mapped pages of the file are part of it, so its size stands beside. Floor: bytes of the final weights.

The last line is JSON.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Of Gemma 3 270M.
GEMMA = {"blocks": 18, "embd": 640, "ff": 2048, "heads": 4, "kv_heads": 1, "width": 256, "vocab": 262_144}
MIB = 2**20


def write_synthetic(path: Path, sizes: dict[str, int]) -> Path:
    """A `llama` file with random Q8_0 matrices (tied embeddings, no tokenizer); axes are multiples of 32."""
    import gguf
    import numpy as np

    q8 = gguf.GGMLQuantizationType.Q8_0
    rng = np.random.default_rng(0)
    embd, heads, kv_rows = (
        sizes["embd"],
        sizes["heads"] * sizes["width"],
        sizes["kv_heads"] * sizes["width"],
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes["blocks"])
    writer.add_context_length(2048)
    writer.add_embedding_length(embd)
    writer.add_feed_forward_length(sizes["ff"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["kv_heads"])
    writer.add_key_length(sizes["width"])
    writer.add_value_length(sizes["width"])
    writer.add_rope_dimension_count(sizes["width"])
    writer.add_layer_norm_rms_eps(1e-5)

    def matrix(name: str, rows: int, columns: int) -> None:
        blocks = rng.integers(0, 256, (rows, columns // 32, 34), np.uint8)
        blocks[..., :2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)  # the scale of each 32 values
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=q8)

    matrix("token_embd.weight", sizes["vocab"], embd)
    writer.add_tensor("output_norm.weight", np.ones(embd, np.float32))
    for block in range(sizes["blocks"]):
        for role, rows, columns in (
            ("attn_q", heads, embd),
            ("attn_k", kv_rows, embd),
            ("attn_v", kv_rows, embd),
            ("attn_output", embd, heads),
            ("ffn_gate", sizes["ff"], embd),
            ("ffn_up", sizes["ff"], embd),
            ("ffn_down", embd, sizes["ff"]),
        ):
            matrix(f"blk.{block}.{role}.weight", rows, columns)
        for role in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{role}.weight", np.ones(embd, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def resident(field: str) -> int:
    """Bytes that this process has resident now (VmRSS) or had at most (VmHWM); Linux.

    ru_maxrss would do, but a child begins with the peak of whoever started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kibibytes) * 1024


def measure(path: str, dtype: str) -> dict[str, Any]:
    """Load one file in this process."""
    importlib.import_module("gguf")  # its import is no part of loading
    import jax

    from ubjax.loaders import Tokenizer, find_model, open_gguf
    from ubjax.loaders.hyperparameters import hyperparameters
    from ubjax.loaders.names import load_weights
    from ubjax.models.config import ARCHITECTURES, DecoderConfig
    from ubjax.models.decoder import Decoder

    jax.block_until_ready(jax.numpy.zeros(1))  # the backend is up
    before, start = resident("VmRSS"), time.perf_counter()
    file = open_gguf(find_model(path))
    opened = time.perf_counter()
    kept: Any
    if file.architecture in ARCHITECTURES:
        hyper = hyperparameters(file)
        tokenizer = Tokenizer.from_gguf(file) if "tokenizer.ggml.model" in file.metadata else None
        tokenized = time.perf_counter()
        config = DecoderConfig.from_hyperparameters(hyper)
        model = Decoder.from_weights(config, load_weights(file, hyper, stored=dtype == "stored"), dtype)
        kept, what = (tokenizer, model), "load"
        arrays = [x for x in jax.tree.leaves(jax.block_until_ready(model)) if isinstance(x, jax.Array)]
    else:
        tokenized = opened
        kept = arrays = [file.tensor(name) for name in file.tensors]
        what = "read"
    end = time.perf_counter()
    return {
        "file": file.path.name,
        "what": what,
        "tensors": len(file.tensors),
        "seconds": end - start,
        "open_s": opened - start,
        "tokenizer_s": tokenized - opened,
        "weights_s": end - tokenized,
        "file_bytes": file.nbytes,
        "floor_bytes": sum(x.nbytes for x in arrays),
        "peak_bytes": resident("VmHWM") - before,
        "imports_bytes": before,
        "kept": len(jax.tree.leaves(kept)),
    }


def in_child(path: str, dtype: str) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--child", "--model", path, "--dtype", dtype]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the seconds and the largest peak of several rounds, with the range of the seconds."""
    medians = {
        name: statistics.median(r[name] for r in rounds)
        for name in ("seconds", "open_s", "tokenizer_s", "weights_s")
    }
    seconds = [r["seconds"] for r in rounds]
    return {
        **rounds[0],
        **medians,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "peak_bytes": max(r["peak_bytes"] for r in rounds),
    }


def main() -> None:
    """Measure every file and print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", action="append", help="a GGUF file, smollm2 or gemma3; may be given several times"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.model[0], args.dtype)))
        return
    with tempfile.TemporaryDirectory() as folder:
        models = args.model
        if models is None:
            models = ["smollm2", str(write_synthetic(Path(folder) / "gemma-sized.gguf", GEMMA))]
        print(
            f"{'file':34}{'what':6}{'seconds':>9}{'range':>14}{'weights s':>11}{'file':>8}{'floor':>8}{'peak':>8} MiB"
        )
        rows = []
        for model in models:
            row = summary([in_child(model, args.dtype) for _ in range(args.rounds)])
            rows.append(row)
            span = f"{row['seconds_min']:.2f}-{row['seconds_max']:.2f}"
            sizes = "".join(f"{row[f'{name}_bytes'] / MIB:8.0f}" for name in ("file", "floor", "peak"))
            print(
                f"{row['file']:34}{row['what']:6}{row['seconds']:9.2f}{span:>14}{row['weights_s']:11.2f}{sizes}",
                flush=True,
            )
    versions = {name: metadata.version(name) for name in ("jax", "numpy", "gguf")}
    print(
        json.dumps(
            {"benchmark": "load", **versions, "dtype": args.dtype, "rounds": args.rounds, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
