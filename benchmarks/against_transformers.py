"""Decodes and prompts beside transformers on torch, on the same weights, by turns.

    python benchmarks/against_transformers.py [--model smollm2|FILE] [--rounds 5] [--threads 2]

transformers' Llama gets the weights of the GGUF file in F32. Its decodes are a call of the model for each token of
all sequences, with its own cache and torch's argmax; ours the decode loop (`Engine.decode_steps`). A prompt it takes
whole, whatever n_ubatch is. See benchmarks/peers.py for the rows of the table. Ratios are theirs over ours: above 1
ours is the faster.

Needs the extra `peers`. Set the threads of jax by the environment, as `taskset -c 0,1` does. The last line is JSON.
"""

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Ours, Work, arguments, gguf_file, report
from ubjax.loaders import load_decoder
from ubjax.loaders.gguf import open_gguf
from ubjax.loaders.hf_names import llama_cpp_name
from ubjax.loaders.hyperparameters import hyperparameters
from ubjax.loaders.names import load_weights
from ubjax.models.config import DecoderConfig


def llama(path: Path) -> Any:
    """Transformers' model with the weights of a GGUF file of the architecture `llama`."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    file = open_gguf(path)
    hyper = hyperparameters(file)
    c = DecoderConfig.from_hyperparameters(hyper)
    settings = transformers.LlamaConfig(
        vocab_size=c.n_vocab,
        hidden_size=c.n_embd,
        intermediate_size=c.n_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        max_position_embeddings=c.n_ctx_train,
        tie_word_embeddings=c.tie_embeddings,
    )
    model = transformers.LlamaForCausalLM(settings).eval()
    weights = dict(load_weights(file, hyper))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(weights[llama_cpp_name(name, "llama")])))
    return model


class Transformers:
    """A causal model of transformers, its cache copied for each decode."""

    def __init__(self, path: Path, threads: int):
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(threads)
        self.torch: Any = torch
        self.model = llama(path)
        self.caches: dict[Work, Any] = {}

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """As `Side.run`."""
        torch, model = self.torch, self.model
        with torch.inference_mode():
            ids = torch.from_numpy(work.ids().astype(np.int64))
            if not work.rows:
                start = time.perf_counter()
                logits = model(ids, use_cache=True, logits_to_keep=1).logits[0, -1]
                return time.perf_counter() - start, logits.numpy()
            if work not in self.caches:
                self.caches[work] = model(ids, use_cache=True).past_key_values
            cache, token, tokens = (
                copy.deepcopy(self.caches[work]),
                torch.ones((work.rows, 1), dtype=torch.long),
                [],
            )
            start = time.perf_counter()
            for _ in range(work.steps):
                token = (
                    model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
                )
                tokens.append(token[:, 0].numpy())
            return (time.perf_counter() - start) / work.steps, np.asarray(tokens).T


def main() -> None:
    """Print the table and the JSON line."""
    args = arguments(__doc__)
    source = gguf_file(args.model)
    sides = {"ubjax": Ours(load_decoder(source)[0]), "transformers": Transformers(source, args.threads)}
    report("against_transformers", args, sides, ["torch", "transformers"])


if __name__ == "__main__":
    main()
