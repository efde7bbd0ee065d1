"""`ubjax run MODEL [PROMPT ...]`: answer or continue prompts, then what it cost."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from ubjax.analysis.ladder_kinds import parse_ladder
from ubjax.cli.dtype_argument import add_dtype
from ubjax.cli.prompt_cache import PromptCache
from ubjax.cli.result_file import ResultFile
from ubjax.cli.texts import Line, json_line, read_texts
from ubjax.cli.trace_argument import check_outputs
from ubjax.compilation_cache import use_compilation_cache
from ubjax.config import KV_DTYPES, EngineConfig
from ubjax.engine import Engine
from ubjax.generate import Generation, Sampling
from ubjax.generate.request import Request
from ubjax.ladders import RectangleLadder
from ubjax.loaders import Tokenizer, load_decoder
from ubjax.progress import Progress

SAMPLING = {
    "temperature": (float, "0: the most likely token"),
    "top-k": (int, "keep the k most likely tokens, 0: all"),
    "top-p": (float, "keep the most likely tokens that make up this share"),
    "min-p": (float, "keep tokens of at least this share of the most likely one's probability"),
    "typical-p": (float, "keep the most typical tokens that make up this share"),
    "repeat-penalty": (float, "divide the logits of the last 64 tokens by this, 1: off"),
    "presence-penalty": (float, "subtract this from the logits of tokens among the last 64"),
    "frequency-penalty": (float, "subtract this once for each time among the last 64"),
    "seed": (int, "of the draws; output i of a prompt takes seed + i"),
}


def add_parser(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("run", help="answer or continue prompts with a model", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="*", help="texts to answer, or to continue with --raw"
    )
    parser.add_argument(
        "-f",
        "--file",
        type=Path,
        help="more prompts, one a line; in .jsonl a string, or an object with the prompt and, if its results are to "
        "carry one, an id",
    )
    parser.add_argument(
        "--raw", action="store_true", help="continue the text as it is, without the chat template"
    )
    parser.add_argument("--system", help="the system message of the chat template")
    parser.add_argument("--n", type=int, default=1, help="outputs of each prompt (default 1)")
    parser.add_argument(
        "--stop", action="append", default=[], help="a text that ends an output (may be repeated)"
    )
    parser.add_argument(
        "--prompt-cache",
        type=Path,
        metavar="FILE",
        help="skip what the prompt shares with the last one, whose state is in this file; then keep this one's there",
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="write the results to this file as JSONL, each as it comes"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    parser.set_defaults(execute=execute)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, the engine's sizes and how tokens are chosen."""
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or an installed model package: smollm2")
    parser.add_argument(
        "-n", "--max-tokens", type=int, default=64, help="tokens of an output at most (default 64)"
    )
    parser.add_argument("-c", "--n-ctx", type=int, default=2048, help="tokens the cache holds (default 2048)")
    parser.add_argument("--n-batch", type=int, default=2048, help="tokens of one decode (default 2048)")
    parser.add_argument("--n-ubatch", type=int, default=512, help="rows of one ubatch (default 512)")
    parser.add_argument("--n-seq-max", type=int, default=1, help="sequences at a time (default 1)")
    parser.add_argument(
        "--kv-unified", action="store_true", help="let the sequences share one stream of cells"
    )
    add_dtype(parser)
    parser.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default="float32", help="of the cache (default float32)"
    )
    programs = parser.add_argument_group("compiled programs")
    programs.add_argument(
        "--ladder",
        help="rows that ubatches are padded to, as `ubjax ladder` prints them: 1,8,64 or 1x64,4x16",
    )
    programs.add_argument(
        "--warmup", action="store_true", help="compile everything that can be needed before the first prompt"
    )
    programs.add_argument(
        "--compilation-cache",
        action="store_true",
        help="keep compiled programs in the user's cache folder for the next time",
    )
    group = parser.add_argument_group("how tokens are chosen (default: always the most likely one)")
    defaults = {f.name: f.default for f in dataclasses.fields(Sampling)}
    for name, (kind, words) in SAMPLING.items():
        group.add_argument(f"--{name}", type=kind, default=defaults[name.replace("-", "_")], help=words)


def sampling_of(args: argparse.Namespace) -> Sampling:
    """The checked sampling parameters."""
    return Sampling(**{name: getattr(args, name) for name in (n.replace("-", "_") for n in SAMPLING)})


def load_engine(args: argparse.Namespace) -> tuple[Engine, Tokenizer]:
    """The engine of the options; sizes are refused before the model is loaded."""
    names = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "kv_dtype")
    config = EngineConfig(**{name: getattr(args, name) for name in names})
    rows = _rows(args.ladder, config, args.n_ctx) if args.ladder else None
    if args.compilation_cache:
        print(f"compiled programs are kept in {use_compilation_cache()}", file=sys.stderr)
    with Progress(None, f"loading {args.model}") as progress:
        model, tokenizer = load_decoder(args.model, dtype=args.dtype, on_tensor=progress.on_tensor)
    engine = Engine(model, tokenizer, config, rows=rows)
    if args.warmup:
        with Progress(None, "compiling") as progress:
            report = engine.warmup(lambda _, i, n: progress.update(i, n))
        print(report.summary, file=sys.stderr, flush=True)
    else:
        print("compiling as shapes come up; the first words take a while ...", file=sys.stderr, flush=True)
    return engine, tokenizer


def _rows(text: str, config: EngineConfig, n_ctx: int) -> RectangleLadder:
    """The ladder of the option, for the sizes of the engine."""
    memory = config.caches(n_ctx)[0]
    _, n_ubatch = config.batch_sizes(memory)
    return parse_ladder(text).build(n_ubatch, memory.n_streams)


def execute(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    options: dict[str, Any] = {
        "max_tokens": args.max_tokens,
        "sampling": sampling_of(args),
        "stop": args.stop,
        "n": args.n,
    }
    # What is wrong with these is said before any work.
    Request(ids=(), max_tokens=args.max_tokens, n=args.n, stop=tuple(args.stop))
    check_outputs({"--output": args.output, "--prompt-cache": args.prompt_cache})
    prompts = [*map(Line, args.prompt), *(read_texts(args.file, "prompt") if args.file else [])]
    if not prompts:
        raise ValueError("there are 0 prompts, at least 1 (an argument, or a line of --file) is needed")
    alone = len(prompts) == 1 and args.n == 1
    if args.prompt_cache and not alone:
        raise ValueError(
            f"--prompt-cache takes one prompt and one output of it, found {len(prompts)} and {args.n}"
        )
    with ResultFile(args.output) as file:
        results = _generate(args, prompts, options, file)
    _report(args, prompts, results)
    return 0


def _generate(
    args: argparse.Namespace, prompts: list[Line], options: dict[str, Any], file: ResultFile
) -> list[Generation]:
    engine, tokenizer = load_engine(args)
    chat = tokenizer.chat_template is not None and not args.raw
    if args.system is not None and not chat:
        raise ValueError("--system needs the chat template: the file has none, or --raw was given")
    texts = [prompt.text for prompt in prompts]
    ids = [_chat_ids(tokenizer, text, args.system) if chat else tokenizer.encode(text) for text in texts]
    if len(prompts) > 1 or args.n > 1:
        results = _many(engine, ids, prompts, options, file)
    else:
        if not chat:
            print(texts[0], end="", flush=True)
        results = _alone(engine, ids[0], args.prompt_cache, options)
    file.finish(_rows_of(prompts, results))
    return results


def _alone(engine: Engine, ids: list[int], path: Path | None, options: dict[str, Any]) -> list[Generation]:
    """The one output there is, its text as it comes."""
    if not ids:
        raise ValueError("the prompt has 0 tokens, at least 1 is needed")
    cache = None if path is None else PromptCache(engine, path, ids)
    result = engine.generate(
        ids,
        on_text=lambda text: print(text, end="", flush=True),
        on_piece=cache and cache.on_piece,
        **options,
    )
    print(flush=True)
    if cache:
        cache.report(result.report.n_prompt)
    return [result]


def _chat_ids(tokenizer: Tokenizer, prompt: str, system: str | None) -> list[int]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return tokenizer.encode_chat([*before, {"role": "user", "content": prompt}])


def _many(
    engine: Engine, ids: list[list[int]], prompts: list[Line], options: dict[str, Any], file: ResultFile
) -> list[Generation]:
    """All prompts together, a line on stderr and one in the file as each output ends; then their texts."""
    total, done = len(ids) * options["n"], 0
    with engine.stream(ids, **options) as pieces:
        for piece in pieces:
            if piece.finish_reason:
                done += 1
                file.add(_row(prompts[piece.index], pieces.generation(piece.index, piece.output)))
                end = "\r" if sys.stderr.isatty() and done < total else "\n"
                print(f"{done} of {total} outputs", end=end, file=sys.stderr, flush=True)
        results = pieces.results
    for prompt, result in zip(prompts, results, strict=True):
        for output in (result, *result.others):
            print(f"--- {prompt.text}\n{output.text if output.error is None else '(' + output.error + ')'}")
    return results


def _rows_of(prompts: list[Line], results: list[Generation]) -> list[dict[str, Any]]:
    """A row for every output, in the order of the prompts."""
    pairs = zip(prompts, results, strict=True)
    return [_row(prompt, output) for prompt, result in pairs for output in (result, *result.others)]


def _report(args: argparse.Namespace, prompts: list[Line], results: list[Generation]) -> None:
    print(f"\n{results[0].report}", file=sys.stderr)
    if args.json:
        report = results[0].report
        summary = {
            "prompts": len(prompts),
            "outputs": _rows_of(prompts, results),
            "ubatches": report.usage.ubatches,
            "buckets": dict(report.usage.buckets),
            "padded_share": report.usage.padded_share,
            "compilations": report.compilations.total,
            "prompt_tokens_per_second": report.prompt_rate,
            "generated_tokens_per_second": report.decode_rate,
        }
        print(json_line(summary))


def _row(prompt: Line, output: Generation) -> dict[str, Any]:
    names = ("output", "text", "tokens", "finish_reason", "error", "first_token_seconds", "decode_seconds")
    return {**prompt.named, "prompt": prompt.text, **{name: getattr(output, name) for name in names}}
