"""Decodes and prompts beside llama.cpp (llama-cpp-python), on the same weights, by turns.

    python benchmarks/against_llama_cpp.py [--model smollm2|FILE] [--rounds 5] [--threads 2]

The GGUF file is dequantized to F32 once, into a temporary file, for both sides; llama.cpp runs in a process of its
own, with as many threads and K/V in F32. Its decodes are `llama_decode` and numpy's argmax of each row, ours the
decode loop (`Engine.decode_steps`). `shipped` is llama.cpp with the file as it is (K/V in F16, its own default),
`stored` ubjax with the blocks of that file (K/V in F32). See benchmarks/peers.py for the rows of the table. Ratios are
each side's time over that of `ubjax`: above 1 `ubjax` is the faster.

llama-cpp-python has to be installed beside ubjax; it is no dependency. Set the threads of jax by the environment, as
`taskset -c 0,1` does. The last line is JSON.
"""

import ctypes
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Ours, Work, arguments, gguf_file, report
from ubjax.loaders import load_decoder


def dequantized(source: Path, target: Path) -> None:
    """The same GGUF file with every tensor in F32."""
    import gguf

    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp on one file, a context for each work; lives in the other process."""

    def __init__(self, path: str, threads: int, kv: str):
        import llama_cpp  # pyright: ignore[reportMissingImports]

        self.api: Any = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # has to stay alive
        self.api.llama_log_set(self.quiet, ctypes.c_void_p())
        self.api.llama_backend_init()
        self.model = self.api.llama_model_load_from_file(path.encode(), self.api.llama_model_default_params())
        self.n_vocab = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))
        self.threads, self.kv = threads, kv
        self.contexts: dict[Work, Any] = {}

    def context(self, work: Work) -> Any:
        """One with as many cells as the work attends."""
        if work not in self.contexts:
            params = self.api.llama_context_default_params()
            params.n_ctx, params.n_batch, params.n_ubatch = max(work.n_cells, 256), 512, work.n_ubatch
            params.n_seq_max, params.kv_unified = max(work.rows, 1), not work.streams
            params.n_threads = params.n_threads_batch = self.threads
            kind = {"f32": 0, "f16": 1}[self.kv]
            params.type_k = params.type_v = kind
            self.contexts[work] = self.api.llama_init_from_model(self.model, params)
            for s, ids in enumerate(work.ids() if work.rows else ()):
                pos = np.arange(work.cached)
                self.decode(self.contexts[work], ids, pos, np.full(work.cached, s), [])
        return self.contexts[work]

    def decode(self, context: Any, ids: Any, pos: Any, seqs: Any, outputs: Any) -> np.ndarray:
        """One call of llama_decode; the logits of the outputs [n, V]."""
        batch = self.api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, (token, p, s) in enumerate(zip(ids, pos, seqs, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), int(p), 1
            batch.seq_id[i][0], batch.logits[i] = int(s), i in outputs
        code = self.api.llama_decode(context, batch)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")
        self.api.llama_synchronize(context)
        rows = [self.api.llama_get_logits_ith(context, i) for i in outputs]
        logits = [np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows]
        self.api.llama_batch_free(batch)
        return np.asarray(logits)

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """As `Side.run`."""
        context = self.context(work)
        memory = self.api.llama_get_memory(context)
        if not work.rows:
            (ids,) = work.ids()
            self.api.llama_memory_clear(memory, False)
            start = time.perf_counter()
            (logits,) = self.decode(context, ids, np.arange(len(ids)), np.zeros(len(ids)), [len(ids) - 1])
            return time.perf_counter() - start, logits
        seqs, token, tokens = np.arange(work.rows), np.ones(work.rows, np.int32), []
        start = time.perf_counter()
        for i in range(work.steps):
            logits = self.decode(context, token, np.full(work.rows, work.cached + i), seqs, range(work.rows))
            token = logits.argmax(axis=1)
            tokens.append(token)
        seconds = time.perf_counter() - start
        for s in range(work.rows):
            self.api.llama_memory_seq_rm(memory, s, work.cached, -1)
        return seconds / work.steps, np.asarray(tokens).T


def serve(pipe: Any, path: str, threads: int, kv: str) -> None:
    """Answer works until None comes."""
    side = LlamaCpp(path, threads, kv)
    while (work := pipe.recv()) is not None:
        pipe.send(side.run(work))


class Other:
    """`LlamaCpp` in a process of its own, so that its threads and jax's don't meet."""

    def __init__(self, path: Path, threads: int, kv: str):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, end = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(end, str(path), threads, kv), daemon=True)
        self.process.start()

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """As `Side.run`."""
        self.pipe.send(work)
        return self.pipe.recv()


def main() -> None:
    """Print the table and the JSON line."""
    args = arguments(__doc__)
    source = gguf_file(args.model)
    with tempfile.TemporaryDirectory() as folder:
        f32 = Path(folder) / "f32.gguf"
        dequantized(source, f32)
        others = {
            "llama.cpp": Other(f32, args.threads, "f32"),
            "shipped": Other(source, args.threads, "f16"),
        }
        stored = Ours(load_decoder(source, dtype="stored")[0])
        sides = {"ubjax": Ours(load_decoder(f32)[0]), **others, "stored": stored}
        report("against_llama_cpp", args, sides, ["llama-cpp-python"])
        for other in others.values():
            other.pipe.send(None)


if __name__ == "__main__":
    main()
