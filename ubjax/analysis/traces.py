"""Request traces: when each request arrived, how long its prompt and its output were. Read from files, or made up.

N  requests, by arrival
"""

import csv
import dataclasses
import datetime
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ubjax.pictures.wording import amount
from ubjax.typing import Array, Float, Int32, Number


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """N requests: arrival [seconds after the first], prompt and output [tokens]; a slice of a trace is a trace."""

    arrival: Float[Array, " N"]
    prompt: Int32[Array, " N"]
    output: Int32[Array, " N"]

    @classmethod
    def of(cls, arrival: Any, prompt: Any, output: Any) -> "Trace":
        """From three sequences of N numbers, in any order of arrival; the first arrival becomes 0."""
        arrival = np.asarray(arrival, np.float64)
        prompt, output = (np.asarray(lengths, np.int32) for lengths in (prompt, output))
        if not arrival.shape == prompt.shape == output.shape or arrival.ndim != 1:
            shapes = ", ".join(str(list(x.shape)) for x in (arrival, prompt, output))
            raise ValueError(f"arrival, prompt and output have shapes {shapes}: [N] of one N is needed")
        for name, values, least in (("prompt", prompt, 1), ("output", output, 0)):
            if len(values) and values.min() < least:
                at = int(np.argmin(values))
                raise ValueError(f"request {at} has {values[at]} {name} tokens, at least {least} is needed")
        if not np.all(np.isfinite(arrival)):
            at = int(np.argmin(np.isfinite(arrival)))
            raise ValueError(f"request {at} arrives at {arrival[at]}, a finite number of seconds is needed")
        order = np.argsort(arrival, kind="stable")
        start = arrival[order[0]] if len(order) else 0.0
        return cls(arrival[order] - start, prompt[order], output[order])

    def __len__(self) -> int:
        return len(self.prompt)

    def __getitem__(self, requests: slice) -> "Trace":
        return Trace.of(self.arrival[requests], self.prompt[requests], self.output[requests])

    def __str__(self) -> str:
        if not len(self):
            return "no requests"
        return (
            f"{amount(len(self), 'request')} in {self.arrival[-1]:.0f} s, "
            f"prompts of {self.prompt.min()} to {self.prompt.max()} (mean {self.prompt.mean():.0f}) "
            f"and outputs of {self.output.min()} to {self.output.max()} "
            f"(mean {self.output.mean():.0f}) tokens"
        )


@dataclasses.dataclass(frozen=True)
class _Columns:
    """A CSV format: the names of its three columns, and how a time is read."""

    arrival: str
    prompt: str
    output: str
    seconds: Callable[[str], float]


def _timestamp(text: str) -> float:
    time = datetime.datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


CSV_FORMATS = {
    "Azure LLM inference": _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _timestamp),
    "BurstGPT": _Columns("Timestamp", "Request tokens", "Response tokens", float),
    "plain": _Columns("arrival", "prompt", "output", float),
}


def read_trace(path: str | Path) -> Trace:
    """Read a trace file; what gzip has packed is unpacked on the way, whatever its name.

    CSV, known by its header: Azure LLM inference (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT (Timestamp,
    Model, Request tokens, Response tokens, ...), or one's own with the columns arrival [seconds], prompt, output
    [tokens]. JSONL (by the ending): one object with the keys arrival, prompt and output on each line.

    Raises ValueError that names the line for what can't be read, OSError for a file that isn't there.
    """
    path = Path(path)
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"  # nothing is read twice: the file may be a pipe
            unpacked = gzip.GzipFile(fileobj=file) if packed else file
            lines = io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="")
            requests = list(_json_requests(lines) if ending == ".jsonl" else _csv_requests(lines))
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError, csv.Error) as error:
        raise ValueError(f"{path.name} is no text file of requests: {error}") from error
    except OSError as error:
        raise type(error)(f"{path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path.name}, {error}") from error
    if not requests:
        raise ValueError(f"{path.name} holds no requests: at least one is needed")
    return Trace.of(*zip(*requests, strict=True))


def _csv_requests(lines: Iterable[str]) -> Iterator[tuple[float, int, int]]:
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    for columns in CSV_FORMATS.values():
        if {columns.arrival, columns.prompt, columns.output} <= set(header):
            break
    else:
        known = "; ".join(f"{c.arrival}, {c.prompt}, {c.output} ({name})" for name, c in CSV_FORMATS.items())
        raise ValueError(
            f"line 1: the header is {','.join(header)!r}, one with these columns is needed: {known}"
        )
    at = [header.index(name) for name in (columns.arrival, columns.prompt, columns.output)]
    for row in reader:
        if not row:
            continue
        if len(row) <= max(at):
            found = amount(len(row), "field")
            raise ValueError(f"line {reader.line_num}: {found}, {len(header)} are needed")
        arrival, prompt, output = (row[i].strip() for i in at)
        yield _request(
            reader.line_num,
            (columns.arrival, arrival, columns.seconds),
            (columns.prompt, prompt, int),
            (columns.output, output, int),
        )


def _json_requests(lines: Iterable[str]) -> Iterator[tuple[float, int, int]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: no JSON ({error.msg})") from error
        missing = [
            key for key in ("arrival", "prompt", "output") if not isinstance(entry, dict) or key not in entry
        ]
        if missing:
            raise ValueError(
                f"line {number}: {', '.join(missing)} missing, an object with arrival, prompt and output is needed"
            )
        yield _request(
            number,
            ("arrival", entry["arrival"], float),
            ("prompt", entry["prompt"], int),
            ("output", entry["output"], int),
        )


_NEEDED = {float: "a number of seconds", int: "a whole number of tokens", _timestamp: "a date and time"}


def _request(line: int, *fields: tuple[str, Any, Callable[[Any], float]]) -> tuple[float, int, int]:
    """One request, or the line and the field that is wrong."""
    values = []
    for (name, given, read), least in zip(fields, (None, 1, 0), strict=True):
        try:
            value = read(given)
            wrong = isinstance(given, bool) or (isinstance(given, float) and value != given)
        except (TypeError, ValueError, OverflowError):
            value, wrong = 0, True
        if wrong or (isinstance(value, float) and not np.isfinite(value)):
            raise ValueError(f"line {line}: {name} is {given!r}, {_NEEDED[read]} is needed")
        if least is not None and not least <= value < 2**31:
            raise ValueError(f"line {line}: {name} is {value}, {least} to {2**31 - 1} tokens are needed")
        values.append(value)
    return values[0], values[1], values[2]


def poisson_arrivals(n: int, rate: Number, *, seed: int, burst: int = 1) -> Float[np.ndarray, " {n}"]:
    """Arrivals [seconds] of n requests, `rate` a second on average: `burst` at once, the bursts a Poisson process."""
    if n < 1 or burst < 1 or not rate > 0:
        raise ValueError(f"{n} requests, {rate} a second in bursts of {burst}: positive numbers are needed")
    n_bursts = -(-n // burst)
    gaps = np.random.default_rng(seed).exponential(burst / rate, n_bursts)
    return np.repeat(np.cumsum(gaps) - gaps[0], burst)[:n]


def lognormal_lengths(
    n: int, median: Number, sigma: Number, *, longest: int, seed: int
) -> Int32[np.ndarray, " {n}"]:
    """Lengths [tokens] in [1, longest] whose logarithm is normal, around that of `median` with deviation `sigma`."""
    if not median > 0 or not sigma >= 0 or longest < 1:
        raise ValueError(f"median {median}, sigma {sigma}, longest {longest}: positive numbers are needed")
    lengths = np.random.default_rng(seed).lognormal(np.log(median), sigma, n)
    return np.clip(np.rint(lengths), 1, longest).astype(np.int32)


def synthetic_trace(
    n: int,
    *,
    rate: Number = 5,
    burst: int = 1,
    prompt: tuple[Number, Number, int] = (1000, 1.0, 8192),
    output: tuple[Number, Number, int] = (130, 0.7, 1024),
    seed: int = 0,
) -> Trace:
    """Made-up requests: Poisson bursts, lognormal lengths given as (median, sigma, longest) [tokens].

    The defaults resemble a conversation service: 5 requests a second, prompts of about 1,000, outputs of about 130
    tokens.
    """
    return Trace.of(
        poisson_arrivals(n, rate, seed=3 * seed, burst=burst),
        lognormal_lengths(n, *prompt[:2], longest=prompt[2], seed=3 * seed + 1),
        lognormal_lengths(n, *output[:2], longest=output[2], seed=3 * seed + 2),
    )
