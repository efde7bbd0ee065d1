"""Every format is read to the same trace; what is wrong is named with its line; made-up traces repeat by seed."""

import gzip

import numpy as np
import pytest

from ubjax.analysis.traces import Trace, lognormal_lengths, poisson_arrivals, read_trace, synthetic_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.1805900,396,109
2023-11-16 18:16:46.6805900,91,16"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,374,44,418,Conversation log
8.5,GPT-4,396,109,505,API log
65,ChatGPT,91,16,107,Conversation log
"""
PLAIN = "prompt,output,arrival\n374,44,0\n396,109,3.5\n\n91,16,60\n"
LINES = """{"arrival": 100, "prompt": 374, "output": 44}
{"arrival": 103.5, "prompt": 396, "output": 109, "user": "x"}

{"output": 16, "prompt": 91, "arrival": 160}
"""


def write(path, text):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure.csv", AZURE),
        ("azure.csv.gz", AZURE),
        ("azure2024.csv", AZURE.replace("5900,", "+00:00,")),
        ("burst.csv", BURST),
        ("bom.csv", "\ufeff" + BURST),
        ("own.csv", PLAIN),
        ("own.jsonl", LINES),
        ("own.jsonl.gz", LINES),
    ],
)
def test_every_format_is_read(tmp_path, name, text):
    trace = read_trace(write(tmp_path / name, text))
    assert trace.arrival == pytest.approx([0, 3.5, 60])
    assert trace.prompt.tolist() == [374, 396, 91] and trace.output.tolist() == [44, 109, 16]
    assert str(trace) == (
        "3 requests in 60 s, prompts of 91 to 396 (mean 287) and outputs of 16 to 109 (mean 56) tokens"
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "a.csv",
            "time,tokens\n1,2\n",
            "a.csv, line 1: the header is 'time,tokens', one with these columns is needed",
        ),
        ("a.csv", "", "line 1: the header is ''"),
        ("a.csv", PLAIN + "7\n", "line 6: 1 field, 3 are needed"),
        ("a.csv", PLAIN + "x,1,2\n", "line 6: prompt is 'x', a whole number of tokens is needed"),
        ("a.csv", PLAIN + "1.5,1,2\n", "line 6: prompt is '1.5', a whole number"),
        ("a.csv", PLAIN + "0,1,2\n", "line 6: prompt is 0, 1 to 2147483647 tokens are needed"),
        ("a.csv", PLAIN + "1,-1,2\n", "line 6: output is -1, 0 to 2147483647 tokens are needed"),
        ("a.csv", PLAIN + "1,1,nan\n", "line 6: arrival is 'nan', a number of seconds is needed"),
        ("a.csv", AZURE + "\nnoon,1,1\n", "line 5: TIMESTAMP is 'noon', a date and time is needed"),
        ("a.csv", BURST + "9,GPT-4,,0,0,API log\n", "line 5: Request tokens is ''"),
        ("a.csv", "arrival,prompt,output\n", "a.csv holds no requests: at least one is needed"),
        ("a.csv", "arrival,prompt,output\n1,2,99999999999\n", "line 2: output is 99999999999, 0 to"),
        (
            "a.csv",
            "arrival,prompt,output\n0,99999999999999999999,3\n",
            "line 2: prompt is 99999999999999999999, 1 to 2147483647 tokens are needed",
        ),
        ("a.jsonl", f'{{"arrival": 1, "prompt": 1, "output": {2**80}}}', f"line 1: output is {2**80}, 0 to"),
        ("a.csv.gz", "", "a.csv.gz is no text file of requests"),
        ("a.jsonl", LINES + "{", "line 5: no JSON"),
        ("a.jsonl", "[1, 2, 3]", "line 1: arrival, prompt, output missing"),
        ("a.jsonl", '{"arrival": 1, "prompt": 3}', "line 1: output missing"),
        ("a.jsonl", '{"arrival": 1, "prompt": 2.5, "output": 1}', "line 1: prompt is 2.5, a whole number"),
        ("a.jsonl", '{"arrival": 1, "prompt": true, "output": 1}', "line 1: prompt is True, a whole number"),
        ("a.jsonl", '{"arrival": [], "prompt": 1, "output": 1}', r"line 1: arrival is \[\], a number"),
        ("a.jsonl", '{"arrival": 1e999, "prompt": 1, "output": 1}', "line 1: arrival is inf"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, text, sentence):
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(b"\x1f\x8bnot really")
    else:
        write(path, text)
    with pytest.raises(ValueError, match=sentence):
        read_trace(path)


def test_bytes_are_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.csv is no text file of requests"):
        read_trace(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match=r"b\.csv can't be read: No such file"):
        read_trace(tmp_path / "b.csv")


def test_what_is_packed_is_known_by_its_first_bytes(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"arrival,prompt,output\n0,3,4\n"))
    assert read_trace(tmp_path / "a.csv").prompt.tolist() == [3]
    (tmp_path / "b.csv.gz").write_text("arrival,prompt,output\n0,5,4\n")
    assert read_trace(tmp_path / "b.csv.gz").prompt.tolist() == [5]


def test_requests_are_sorted_and_sliced():
    trace = Trace.of([9, 5, 7], [1, 2, 3], [4, 5, 6])
    assert trace.arrival.tolist() == [0, 2, 4] and trace.prompt.tolist() == [2, 3, 1]
    rest = trace[1:]
    assert len(rest) == 2 and rest.arrival.tolist() == [0, 2] and rest.output.tolist() == [6, 4]
    assert len(trace[3:]) == 0 and str(trace[3:]) == "no requests"


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (([0, 1], [1], [1]), r"shapes \[2\], \[1\], \[1\]"),
        (([0], [0], [1]), "request 0 has 0 prompt tokens, at least 1 is needed"),
        (([0, 1], [1, 1], [1, -2]), "request 1 has -2 output tokens, at least 0 is needed"),
        (([np.inf], [1], [1]), "request 0 arrives at inf"),
    ],
)
def test_columns_are_checked(columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trace.of(*columns)


def test_made_up_traces_repeat_by_seed_and_have_their_moments():
    one, same, other = (synthetic_trace(400, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.prompt, same.prompt) and np.array_equal(one.arrival, same.arrival)
    assert not np.array_equal(one.prompt, other.prompt) and not np.array_equal(one.output, other.output)
    arrivals = poisson_arrivals(20_000, 4.0, seed=1)
    assert arrivals[0] == 0 and arrivals[-1] == pytest.approx(5000, rel=0.03)
    gaps = np.diff(arrivals)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # as of an exponential distribution
    bursts = poisson_arrivals(12, 4.0, seed=1, burst=5)
    assert len(bursts) == 12 and np.count_nonzero(np.diff(bursts)) == 2
    lengths = lognormal_lengths(20_000, 100, 0.5, longest=1000, seed=2)
    assert np.median(lengths) == pytest.approx(100, rel=0.02)
    assert (
        np.log(lengths).std() == pytest.approx(0.5, rel=0.02) and lengths.max() <= 1000 and lengths.min() >= 1
    )


def test_impossible_made_up_traces_are_refused():
    with pytest.raises(ValueError, match="positive numbers are needed"):
        poisson_arrivals(5, 0, seed=0)
    with pytest.raises(ValueError, match="positive numbers are needed"):
        lognormal_lengths(5, 10, -1, longest=5, seed=0)
