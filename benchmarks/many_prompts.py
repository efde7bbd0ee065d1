"""Do many prompts through one small cache give what each gives alone, and do other prompts compile anything?

    python benchmarks/many_prompts.py [--model smollm2] [--prompts 64] [--longest 600] [--n-ubatch 32 256]

Random prompts of 1 to `--longest` tokens, greedily continued, in 8 sequences and a cache of 1,024 cells (unified), or
of 1,024 cells for each sequence (streams). Every output is compared with the lone run of its prompt on another engine,
by the margin rule: token by token up to the first place where the lone run's two best logits differ by 1e-3 or less;
what is clear to the end has to end for the same reason.

    equal       outputs that equal the lone run           tokens   compared, of all that the lone runs chose
    difference  the largest one of the log-probabilities of compared tokens
    compiled    programs, in the first run and in the second one, of as many other prompts
    prompt/s, new/s, padding, preempted     of the second run, which waits for no compiler (unless it says so)

Progress goes to stderr. The exit status is 1 when an output differs. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from ubjax import Engine, EngineConfig
from ubjax.generate import Generation
from ubjax.loaders import load_decoder
from ubjax.models.decoder import Decoder

MARGIN = 1e-3


def random_prompts(n: int, longest: int, n_vocab: int, seed: int) -> list[list[int]]:
    """Prompts of 1 to `longest` random tokens, of any in the upper three fourths of the vocabulary."""
    rng = np.random.default_rng(seed)
    return [rng.integers(n_vocab // 4, n_vocab, k).tolist() for k in rng.integers(1, longest + 1, n)]


def n_clear(alone: Generation) -> int:
    """How many tokens of a lone run, from the first, beat the second best by more than the margin."""
    for i, chosen in enumerate(alone.logprobs or ()):
        (_, first), (_, second) = chosen.top
        if first - second <= MARGIN:
            return i
    return len(alone.tokens)


def compare(found: Sequence[Generation], alone: Sequence[Generation]) -> dict[str, Any]:
    """Outputs against lone runs: how many are equal, and on how many tokens that rests."""
    equal, differences, compared = [], [0.0], 0
    for ours, lone in zip(found, alone, strict=True):
        n = n_clear(lone)
        compared += n
        same = ours.tokens[:n] == lone.tokens[:n]
        if n == len(lone.tokens):
            same &= (len(ours.tokens), ours.finish_reason) == (n, lone.finish_reason)
        equal.append(same)
        pairs = zip((ours.logprobs or [])[:n], (lone.logprobs or [])[:n], strict=False)
        differences += [abs(a.logprob - b.logprob) for a, b in pairs]
    return {
        "equal": sum(equal),
        "prompts": len(equal),
        "compared_tokens": compared,
        "lone_tokens": sum(len(lone.tokens) for lone in alone),
        "difference": max(differences),
        "differ": [k for k, same in enumerate(equal) if not same],
    }


def generate(
    engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int, what: str
) -> list[Generation]:
    """The outputs of all prompts, with a line of progress whenever an eighth of them is done."""
    done, start = 0, time.perf_counter()
    with engine.stream(list(prompts), max_tokens=max_tokens, logprobs=2) as stream:
        for piece in stream:
            if piece.finish_reason:
                done += 1
                if done % max(len(prompts) // 8, 1) == 0:
                    seconds = time.perf_counter() - start
                    print(f"{what}: {done} of {len(prompts)}, {seconds:.0f} s", file=sys.stderr, flush=True)
        return stream.results


def costs(results: Sequence[Generation]) -> dict[str, Any]:
    """What a run has cost, as plain numbers."""
    report = results[0].report
    return {
        "compilations": report.compilations.total,
        "seconds": report.prompt_seconds + report.decode_seconds,
        "prompt_tokens": report.n_prompt,
        "prompt_rate": report.prompt_rate,
        "decode_rate": report.decode_rate,
        "preempted": report.n_preempted,
        "decodes": report.usage.decodes,
        "ubatches": report.usage.ubatches,
        "buckets": dict(report.usage.buckets),
        "padded_share": report.usage.padded_share,
    }


class Bench:
    """A model with its prompts and their lone runs."""

    def __init__(self, model: Decoder, args: argparse.Namespace):
        self.model, self.args = model, args
        n_vocab = model.config.n_vocab
        self.first, self.second = (random_prompts(args.prompts, args.longest, n_vocab, s) for s in (0, 1))
        # One sequence, one size of K/V: an engine with nothing in common with those that are measured but the model.
        engine = Engine(model, None, EngineConfig(n_ctx=args.n_ctx, kv_pad=args.n_ctx, n_ubatch=256))
        self.alone = []
        for k, prompt in enumerate(self.first):
            self.alone.append(engine.generate(prompt, max_tokens=args.max_tokens, logprobs=2))
            if (k + 1) % max(args.prompts // 8, 1) == 0:
                print(f"alone: {k + 1} of {args.prompts}", file=sys.stderr, flush=True)

    def row(self, unified: bool, n_ubatch: int) -> dict[str, Any]:
        """Both runs on a fresh engine."""
        n_seqs, n_ctx = self.args.sequences, self.args.n_ctx
        sizes = EngineConfig(
            n_ctx=n_ctx if unified else n_ctx * n_seqs,
            n_seq_max=n_seqs,
            n_ubatch=n_ubatch,
            kv_unified=unified,
        )
        engine = Engine(self.model, None, sizes)
        name = "unified" if unified else "streams"
        first, second = (
            generate(engine, prompts, self.args.max_tokens, f"{name}, n_ubatch {n_ubatch}, {which} run")
            for prompts, which in ((self.first, "first"), (self.second, "second"))
        )
        return {
            "cache": name,
            "n_ubatch": n_ubatch,
            **compare(first, self.alone),
            "first": costs(first),
            "second": costs(second),
        }


def table(row: dict[str, Any]) -> str:
    """One line of the table."""
    second = row["second"]
    tokens = f"{row['compared_tokens']}/{row['lone_tokens']}"
    compiled = f"{row['first']['compilations']}, {second['compilations']}"
    return (
        f"{row['cache']:9}{row['n_ubatch']:>9}{row['equal']:>7}/{row['prompts']:<5}{tokens:>11}"
        f"{row['difference']:>12.1e}{compiled:>10}{second['prompt_rate']:>10.1f}{second['decode_rate']:>8.1f}"
        f"{second['padded_share']:>9.1%}{second['preempted']:>11}"
    )


def main() -> None:
    """Run every setting and print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="an installed model package or a GGUF file")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=600, help="tokens of a prompt at most (default 600)")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--n-ctx", type=int, default=1024, help="cells, with streams for each sequence")
    parser.add_argument("--n-ubatch", type=int, nargs="+", default=[32, 256])
    args = parser.parse_args()
    model = load_decoder(args.model)[0]
    bench = Bench(model, args)
    print(
        f"{'cache':9}{'n_ubatch':>9}{'equal':>13}{'tokens':>11}{'difference':>12}{'compiled':>10}{'prompt/s':>10}"
        f"{'new/s':>8}{'padding':>9}{'preempted':>11}"
    )
    rows = []
    for unified in (True, False):
        for n_ubatch in args.n_ubatch:
            rows.append(bench.row(unified, n_ubatch))
            print(table(rows[-1]), flush=True)
    versions = {package: metadata.version(package) for package in ("jax", "flax", "numpy")}
    print(json.dumps({"benchmark": "many_prompts", **versions, **vars(args), "rows": rows}))
    sys.exit(any(row["differ"] for row in rows))


if __name__ == "__main__":
    main()
