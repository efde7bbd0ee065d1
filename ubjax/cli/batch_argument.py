"""The batch that a command is asked about: lengths such as 5,5,5,1, or JSON, in a file or as it stands.

n   tokens of the batch      P   positions of a token, 1, 3 or 4
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ubjax.batch import Batch
from ubjax.config import MAX_SEQ, BatchConfig
from ubjax.ladders import BucketLadder
from ubjax.pictures.wording import amount
from ubjax.status import Reason, sentence
from ubjax.validate import validate

MAX_TOKENS = 1_000_000
CAPACITY = BucketLadder.geometric(
    MAX_TOKENS, bottom=64, factor=4
)  # few programs, whatever the number of tokens
# id and embd may be given, as golden files do: what a row holds does not matter to how a batch is cut
COLUMNS = ("seq", "pos", "output", "id", "embd")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BatchArgument:
    """A batch, n_seq_max sequences that hold all of its own, and why a decode with an empty cache would refuse it.

    `refusal` is None when nothing is wrong, or when no positions were given to be wrong.
    """

    batch: Batch
    n_seq_max: int
    refusal: str | None = None


def read_batch(text: str, *, interleave: bool = False) -> BatchArgument:
    """The batch that a text describes.

    Lengths make one sequence each, one after the other; `interleave` deals their tokens round robin. JSON is columns,
    all but `seq` optional, or a list of tokens. Every fault of the text is a ValueError of one line.

        {"seq": [[0], [0, 1], 2], "pos": [0, 1, 0], "output": [false, true, true]}
        [{"seq": [0], "pos": 0, "output": false}, {"seq": [0, 1], "pos": 1, "output": true}]
    """
    text = text.strip()
    if re.fullmatch(r"[-0-9, ]+", text):
        return _of_lengths(text, interleave)
    if interleave:
        raise ValueError(
            "--interleave deals the tokens of lengths such as 5,5,5,1; a JSON batch has its order"
        )
    return _of_columns(_columns(_parsed(text if text[:1] in ("{", "[") else _contents(text))))


def _of_lengths(text: str, interleave: bool) -> BatchArgument:
    words = [word.strip() for word in text.split(",")]
    for at, word in enumerate(words):
        if not re.fullmatch("0*[1-9][0-9]*", word):
            raise ValueError(f"length {at} is {quoted(word)}, a number of tokens of at least 1 is needed")
        if len(word.lstrip("0")) > len(str(MAX_TOKENS)):
            raise _too_large(quoted(word))
    lengths = np.asarray([int(word) for word in words])
    if len(lengths) > MAX_SEQ:
        raise ValueError(f"there are {len(lengths)} lengths, at most {MAX_SEQ} sequences are possible")
    n = int(lengths.sum())
    if n > MAX_TOKENS:
        raise _too_large(n)
    seq = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    if interleave:
        pos = np.arange(n) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        seq = seq[np.argsort(pos, kind="stable")]
    config = BatchConfig(n_vocab=1, n_batch=MAX_TOKENS, n_seq_max=len(lengths))
    batch = Batch.from_arrays(np.zeros(n, np.int32), config=config, seq_id=seq, capacity=CAPACITY.pick(n))
    return BatchArgument(batch=batch, n_seq_max=config.n_seq_max)


def _too_large(found: int | str) -> ValueError:
    return ValueError(f"the batch holds {found} tokens, at most {MAX_TOKENS} are drawn")


def _contents(name: str) -> str:
    """The text of a file; its name comes from the user and may be no file name at all."""
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{quoted(name)} is no JSON batch: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{quoted(name)} is neither lengths such as 5,5,5,1, nor JSON, nor a file that can be read ({reason})"
        ) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"the JSON is broken at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except ValueError:
        raise ValueError("the JSON holds a number with too many digits") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply for a batch") from None


def _columns(value: Any) -> dict[str, list[Any]]:
    """JSON as columns, one entry a token; a list of tokens is turned around."""
    if isinstance(value, list):
        return _turned(value)
    if not isinstance(value, dict):
        raise ValueError(
            f'the JSON is {quoted(value)}, an object like {{"seq": [[0], [1]]}} or a list is needed'
        )
    _check_names(value, "the batch")
    for name, entries in value.items():
        if not isinstance(entries, list):
            raise ValueError(f"{name} is {quoted(entries)}, a list with one entry a token is needed")
        if len(entries) != len(value["seq"]):
            raise ValueError(
                f"{name} has {amount(len(entries), 'entry', 'entries')}, {len(value['seq'])} are needed, "
                "one for each of seq"
            )
    return value


def _turned(tokens: list[Any]) -> dict[str, list[Any]]:
    for at, token in enumerate(tokens):
        if not isinstance(token, dict):
            raise ValueError(
                f'token {at} is {quoted(token)}, an object like {{"seq": [0], "pos": 0}} is needed'
            )
        _check_names(token, f"token {at}")
        if ("pos" in token) != ("pos" in tokens[0]):
            raise ValueError(f"token {at} differs from token 0: give all tokens a position (pos), or none")
    columns = {
        "seq": [token["seq"] for token in tokens],
        "output": [token.get("output", False) for token in tokens],
    }
    if tokens and "pos" in tokens[0]:
        columns["pos"] = [token["pos"] for token in tokens]
    return columns


def _check_names(entry: dict[str, Any], owner: str) -> None:
    unknown = [name for name in entry if name not in COLUMNS]
    if unknown:
        raise ValueError(f"{owner} has an entry {quoted(unknown[0])}, known are {', '.join(COLUMNS)}")
    if "seq" not in entry:
        raise ValueError(f"{owner} has no entry seq, the sequences of its tokens are needed")


def _of_columns(columns: dict[str, list[Any]]) -> BatchArgument:
    n = len(columns["seq"])
    if not 1 <= n <= MAX_TOKENS:
        raise _too_large(n) if n else ValueError("the batch holds 0 tokens, at least 1 is needed")
    seq = _sequences(columns["seq"])
    pos = _positions(columns["pos"]) if "pos" in columns else None
    config = BatchConfig(
        n_vocab=1,
        n_batch=MAX_TOKENS,
        n_seq_max=1 + max(map(max, seq)),
        n_pos=1 if pos is None else len(pos),
    )
    batch = Batch.from_arrays(
        np.zeros(n, np.int32),
        config=config,
        seq_id=seq,
        pos=pos,
        output=_flags(columns["output"]) if "output" in columns else None,
        capacity=CAPACITY.pick(n),
    )
    refusal = None if pos is None else _refusal(batch, config)
    return BatchArgument(batch=batch, n_seq_max=config.n_seq_max, refusal=refusal)


def _refusal(batch: Batch, config: BatchConfig) -> str | None:
    absent = np.full(config.n_seq_max, -1, np.int32)
    status = validate(batch, absent, absent, config)
    return None if int(status.code) == Reason.OK else sentence(status)


def _sequences(entries: list[Any]) -> list[list[int]]:
    """The sequences of each token, at least one and all in [0, MAX_SEQ)."""
    seq = [_whole(entry, f"the sequence of token {at}") for at, entry in enumerate(entries)]
    for at, ids in enumerate(seq):
        if not ids:
            raise ValueError(f"token {at} belongs to no sequence, at least one is needed")
        wrong = [s for s in ids if not 0 <= s < MAX_SEQ]
        if wrong:
            raise ValueError(
                f"token {at} belongs to sequence {quoted(wrong[0])}, one in [0, {MAX_SEQ}) is needed"
            )
    return seq


def _whole(entry: Any, name: str) -> list[int]:
    """A whole number or a list of them, as a list."""
    numbers = entry if isinstance(entry, list) else [entry]
    for number in numbers:
        if type(number) is not int:  # JSON's true is an int to isinstance
            raise ValueError(f"{name} is {quoted(entry)}, a whole number or a list of them is needed")
    return numbers


def _positions(entries: list[Any]) -> np.ndarray:
    """Positions [P, n]; a token with one position has it in all sections."""
    rows = [_whole(entry, f"the position of token {at}") for at, entry in enumerate(entries)]
    n_pos = max(1, *map(len, rows))
    for at, row in enumerate(rows):
        if len(row) not in (1, n_pos):
            raise ValueError(
                f"token {at} has {len(row)} positions, {' or '.join(sorted({'1', str(n_pos)}))} is needed"
            )
        if not all(-(2**31) <= p < 2**31 for p in row):
            raise ValueError(
                f"the position of token {at} is {quoted(entries[at])}, a 32-bit integer is needed"
            )
    return np.asarray([row * (n_pos // len(row)) for row in rows], np.int32).T


def _flags(entries: list[Any]) -> np.ndarray:
    for at, entry in enumerate(entries):
        if type(entry) not in (bool, int) or entry not in (0, 1):
            raise ValueError(f"the output flag of token {at} is {quoted(entry)}, true or false is needed")
    return np.asarray(entries, bool)


def quoted(value: Any) -> str:
    """A value in ASCII on one line, cut short: whatever a user may have typed."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:36]}...{text[-1]}"
