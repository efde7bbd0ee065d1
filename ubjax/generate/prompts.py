"""Prompts to requests: one or many, text or ids; what is wrong with one prompt is that prompt's own affair."""

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypedDict, Unpack

from ubjax.config import as_integer
from ubjax.generate.decodes import Decodes
from ubjax.generate.request import Refused, Request, Sampling
from ubjax.generate.result import Generation, Piece
from ubjax.generate.steps import MAX_STEPS
from ubjax.generate.stream import Stream
from ubjax.pictures.wording import amount

Prompt: TypeAlias = str | Sequence[int]
GREEDY = Sampling()


class Options(TypedDict, total=False):
    """What `generate` and `stream` take beside prompts; all can be left out.

    max_tokens: of each output (128). sampling: a Sampling for all prompts, or one for each (greedy). stop: a string
    or several that end a text. stop_tokens: ids that end an output. n: outputs of each prompt (1).
    logprobs: the number of most likely tokens to report beside each token, None for none at all.
    context_shift: an output that has filled the context goes on: the older half of it is dropped, but for the first
    n_keep tokens (0), and the rest moved down (False: it ends, "context"; so it does where outputs share the cells or
    positions can't be moved). max_prompt_tokens_per_batch: so that long prompts don't hold up the outputs that run.
    steps_per_dispatch: steps that one program runs while no prompt joins, in [1, 32]; None: as many as take a tenth of
    a second, 32 where nobody listens (`generate` without on_text and on_piece). The tokens are the same. With
    batch_invariant always one.
    """

    max_tokens: int
    sampling: Sampling | Sequence[Sampling]
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    n: int
    logprobs: int | None
    context_shift: bool
    n_keep: int
    max_prompt_tokens_per_batch: int | None
    steps_per_dispatch: int | None


def is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is one prompt: a text, or ids. An empty list is no prompt at all, as it is no text to `embed`."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], numbers.Integral))


def stream(
    engine: Decodes,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_tokens: int = 128,
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    stop: str | Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    n: int = 1,
    logprobs: int | None = None,
    context_shift: bool = False,
    n_keep: int = 0,
    max_prompt_tokens_per_batch: int | None = None,
    steps_per_dispatch: int | None = None,
) -> Stream:
    """A Stream over the outputs of one or many prompts; see `Options` for the arguments.

    A list's prompts that are wrong in themselves (no tokens, more than the cache can hold, an id outside the
    vocabulary, text that can't be encoded) are refused alone; all else, and a single prompt, raises
    ValueError.
    """
    one = is_one(prompts)
    given: Sequence[Prompt] = [prompts] if one else prompts  # pyright: ignore[reportAssignmentType]
    each = [sampling] * len(given) if isinstance(sampling, Sampling) else list(sampling)
    if len(each) != len(given):
        found = amount(len(each), "entry", "entries")
        raise ValueError(f"sampling has {found}, one or {len(given)} (the prompts) are needed")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if stops and engine.tokenizer is None:
        raise ValueError("the engine has no tokenizer: stop_tokens can be given, stop strings can't")
    plain = Request(
        ids=(),
        max_tokens=max_tokens,
        stop=stops,
        stop_tokens=frozenset(stop_tokens),
        n=n,
        logprobs=logprobs,
        context_shift=context_shift,
        n_keep=n_keep,
    )
    requests: list[Request | Refused] = []
    for prompt, own in zip(given, each, strict=True):
        ids: tuple[int, ...] = ()
        try:
            ids = _encode(engine, prompt)
            _check_ids(engine, ids)
        except ValueError as error:
            if one:
                raise
            requests.append(Refused(ids=ids, error=str(error), n=n))
        else:
            requests.append(dataclasses.replace(plain, ids=ids, sampling=own))
    return Stream(
        engine,
        requests,
        max_prompt_tokens_per_batch=max_prompt_tokens_per_batch,
        steps_per_dispatch=steps_per_dispatch,
    )


def generate(
    engine: Decodes,
    prompts: Prompt | Sequence[Prompt],
    *,
    on_text: Callable[[str], None] | None = None,
    on_piece: Callable[[Piece], None] | None = None,
    **options: Unpack[Options],
) -> list[Generation]:
    """The generations of one or many prompts, in order. Arguments and errors as `stream`.

    on_text: called with the text of a single output as it comes. on_piece: called with every piece.
    """
    if on_text and not (is_one(prompts) and options.get("n", 1) == 1):
        raise ValueError("on_text takes the text of a single output: on_piece is needed for more")
    if not (on_text or on_piece) and options.get("steps_per_dispatch") is None:
        options["steps_per_dispatch"] = MAX_STEPS
    with stream(engine, prompts, **options) as pieces:
        for piece in pieces:
            if on_piece:
                on_piece(piece)
            if on_text and piece.text:
                on_text(piece.text)
        return pieces.results


def _encode(engine: Decodes, prompt: Prompt) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        return tuple(as_integer(token, f"token {i} of the prompt") for i, token in enumerate(prompt))
    if engine.tokenizer is None:
        raise ValueError("the engine has no tokenizer: token ids are needed as the prompt, text was found")
    return tuple(engine.tokenizer.encode(prompt))


def _check_ids(engine: Decodes, ids: tuple[int, ...]) -> None:
    n_cells, n_vocab = engine.memory.n_cells, engine.batch_config.n_vocab
    room = engine.n_free_cells() if engine.memory.unified else n_cells
    if not ids:
        raise ValueError("the prompt has 0 tokens, at least 1 is needed")
    if len(ids) > room:
        n = amount(len(ids), "token")
        divided = engine.memory.n_streams
        way_out = "; a larger n_ctx is needed"
        if len(ids) <= n_cells:
            way_out = f" ({n_cells - room} of {n_cells} cells are taken, rm frees them)"
        elif divided > 1:
            way_out += f" (it is divided among {divided} sequences, unless kv_unified)"
        raise ValueError(f"the prompt has {n}, the context holds {room} of one sequence{way_out}")
    for i, token in enumerate(ids):
        if not 0 <= token < n_vocab:
            raise ValueError(f"token {i} has id {token}, an id in [0, {n_vocab}) is needed")
