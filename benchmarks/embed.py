"""How fast are texts embedded, against sentence-transformers on torch with as many threads?

    python benchmarks/embed.py [--model minilm] [--texts 1000] [--rounds 5] [--threads 2]

Texts of random words, few of them long (log-normal lengths, 3 to 200 words, the median 30). Both sides tokenize and
embed them all, by turns; each round has texts of its own, and the round before the first one (compilations and other
warm-up) does not count. Without the package sentence-transformers the other side is its computation by transformers:
batches of 32, the longest texts first, padded to the longest of a batch, mean of the rows, normalized.

    texts/s     median, least and most over the rounds
    ratio       ours over theirs, of each round
    processor   the same of processor time, which other work on the machine disturbs less
    padding     the share of computed rows that hold no token, on each side
    compiled    programs in the round before the first and in all that count

The last line is JSON. Set the number of threads of jax by the environment, as `taskset -c 0,1` does.
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from ubjax import count_compilations, load_model
from ubjax.encoder_engine import EncoderEngine
from ubjax.loaders import Tokenizer, find_model
from ubjax.models.encoder import Encoder

BATCH = 32
LONGEST = 256  # tokens; sentence-transformers cuts there, so no text is longer

Embed = Callable[[Sequence[str]], np.ndarray]


def random_texts(n: int, words: Sequence[str], seed: int) -> list[str]:
    """Texts of 3 to 200 words, the median 30."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(30), 0.8, n), 3, 200).astype(int)
    return [" ".join(rng.choice(words, k)) for k in lengths]


def plain_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token each, so that lengths are what they seem."""
    texts = (tokenizer.token_bytes(i).decode(errors="replace") for i in range(tokenizer.n_vocab))
    return [
        text.strip()
        for text in texts
        if text.startswith(" ") and text.strip().isascii() and text.strip().isalpha()
    ]


def torch_side(folder: str, threads: int) -> tuple[str, Embed]:
    """What it is, and the embedding of texts by it."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    try:
        package = importlib.import_module("sentence_transformers")
    except ImportError:
        return f"transformers {metadata.version('transformers')}", by_transformers(folder)
    model = package.SentenceTransformer(folder, device="cpu")

    def embed(texts: Sequence[str]) -> np.ndarray:
        return np.asarray(model.encode(list(texts), batch_size=BATCH, normalize_embeddings=True))

    return f"sentence-transformers {metadata.version('sentence-transformers')}", embed


def by_transformers(folder: str) -> Embed:
    """sentence-transformers' computation without the package."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()

    def embed(texts: Sequence[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.zeros((len(texts), model.config.hidden_size), np.float32)
        for start in range(0, len(order), BATCH):
            group = order[start : start + BATCH]
            with torch.inference_mode():
                inputs = tokenizer(
                    [texts[i] for i in group],
                    padding=True,
                    truncation=True,
                    max_length=LONGEST,
                    return_tensors="pt",
                )
                rows, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
                mean = (rows * mask).sum(1) / mask.sum(1)
                out[group] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return out

    return embed


def torch_padding(texts: Sequence[str], lengths: Sequence[int]) -> float:
    """The padded share of batches of 32, the longest texts first."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    groups = [[lengths[i] for i in order[start : start + BATCH]] for start in range(0, len(order), BATCH)]
    return 1 - sum(lengths) / sum(len(group) * max(group) for group in groups)


def timed(embed: Embed, texts: Sequence[str]) -> tuple[tuple[float, float], np.ndarray]:
    """Texts a second of time and of processor time, and the vectors."""
    start, processor = time.perf_counter(), time.process_time()
    vectors = embed(texts)
    seconds = time.perf_counter() - start, time.process_time() - processor
    return (len(texts) / seconds[0], len(texts) / seconds[1]), vectors


def spread(rates: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(rates):8.2f} ({min(rates):.2f} to {max(rates):.2f})"


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """All rounds; the result as plain numbers."""
    model, tokenizer = load_model(args.model)
    if not isinstance(model, Encoder):
        raise SystemExit(f"{args.model} is a decoder, an encoder is needed")
    engine, words = EncoderEngine(model, tokenizer), plain_words(tokenizer)
    other, theirs = torch_side(str(find_model(args.model)), args.threads)
    sides: dict[str, Embed] = {"ubjax": lambda texts: engine.embed(texts, normalize=True), other: theirs}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    compiled, difference, padding = [], 0.0, 0.0
    for k in range(args.rounds + 1):
        texts, vectors = random_texts(args.texts, words, k), {}
        names = list(sides) if k % 2 else list(sides)[::-1]
        before = engine.usage.copy()
        with count_compilations() as count:
            for name in names:
                rate, vectors[name] = timed(sides[name], texts)
                rates[name] += [rate] if k else []
        compiled.append(count.total)
        padding = engine.usage.since(before).padded_share
        difference = max(difference, float(np.abs(vectors["ubjax"] - vectors[other]).max()))
        print(
            f"round {k}: " + ", ".join(f"{name} {rates[name][-1][0]:.1f}" for name in sides if k), flush=True
        )
    lengths = [len(tokenizer.encode(text)) for text in texts]
    wall, processor = (
        [ours[kind] / their[kind] for ours, their in zip(rates["ubjax"], rates[other], strict=True)]
        for kind in (0, 1)
    )
    return {
        "other": other,
        "rates": {"ubjax": [rate for rate, _ in rates["ubjax"]], "other": [rate for rate, _ in rates[other]]},
        "ratios": wall,
        "processor_ratios": processor,
        "tokens_per_text": sum(lengths) / len(lengths),
        "padding": {"ubjax": padding, "other": torch_padding(texts, lengths)},
        "compiled_before": compiled[0],
        "compiled": sum(compiled[1:]),
        "difference": difference,
        "buckets": dict(engine.usage.buckets),
    }


def main() -> None:
    """Run all rounds, print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="minilm", help="an installed model package or a folder")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    args = parser.parse_args()
    row = compare(args)
    print(f"{'':24}texts/s")
    print(f"{'ubjax':24}{spread(row['rates']['ubjax'])}, {row['padding']['ubjax']:.1%} padding")
    print(f"{row['other']:24}{spread(row['rates']['other'])}, {row['padding']['other']:.1%} padding")
    print(f"{'ratio':24}{spread(row['ratios'])}")
    print(f"{'ratio, processor':24}{spread(row['processor_ratios'])}")
    print(f"{row['compiled_before']} programs before the first round, {row['compiled']} in the rounds")
    packages = ("jax", "flax", "numpy", "torch", "transformers")
    versions = {package: metadata.version(package) for package in packages}
    print(json.dumps({"benchmark": "embed", **versions, **vars(args), **row}))


if __name__ == "__main__":
    main()
