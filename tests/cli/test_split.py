"""`ubjax split` as it is typed: what it prints, its JSON against the golden splits, and one line for bad input."""

import json

import pytest

from tests.helpers import golden
from ubjax.cli import main


@pytest.fixture
def ubjax_split(capsys, monkeypatch):
    """Run the command on 80 columns; returns its exit status, output lines and error lines."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*argv):
        status = main(["split", *argv])
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    return run


@pytest.fixture
def cuts(ubjax_split):
    """Run the command with --json; returns the object, its splits by strategy."""

    def run(*argv):
        status, out, err = ubjax_split(*argv, "--json")
        assert (status, err) == (0, [])
        found = json.loads(out[-1])
        return found | {"splits": {split["strategy"]: split for split in found["splits"]}}

    return run


def shapes(split):
    return [(ubatch["n_seqs"], ubatch["n_seq_tokens"]) for ubatch in split["ubatches"]]


def rows(split):
    return [ubatch["batch_idxs"] for ubatch in split["ubatches"]]


def test_the_worked_example_on_screen(ubjax_split):
    status, out, err = ubjax_split("5,5,5,1", "--strategy", "equal")
    assert (status, err) == (0, [])
    assert [line.replace("░", ".") for line in out] == [
        "16 tokens of 4 sequences, n_ubatch 8",
        "a cell is a token's sequence, . is padding of the bucket",
        "batch 0000011111222223",
        "",
        "equal: 3 ubatches, 2 shapes, 2 buckets; padding 4 of 20 rows, fill 80.0%",
        "  ubatch  tokens  seqs x len  padded  out  sequences  batch rows",
        "       0       4       4 x 1   4 x 1    1  0-3        0 5 10 15",
        "       1       6       3 x 2   4 x 2    0  0-2        1-2 6-7 11-12",
        "       2       6       3 x 2   4 x 2    0  0-2        3-4 8-9 13-14",
        "       0  0|1|2|3",
        "       1  00|11|22|..",
        "       2  00|11|22|..",
    ]


def test_all_strategies_of_the_worked_example(ubjax_split, cuts):
    splits = cuts("5,5,5,1")["splits"]
    assert list(splits) == ["simple", "equal", "equal-any", "seq"]
    assert shapes(splits["simple"]) == [(8, 1), (8, 1)]
    assert shapes(splits["equal"]) == shapes(splits["equal-any"]) == [(4, 1), (3, 2), (3, 2)]
    assert shapes(splits["seq"]) == [(1, 5), (1, 5), (1, 5), (1, 1)]
    totals = ("n_ubatches", "n_shapes", "n_buckets", "n_rows", "n_padded")
    assert [splits["seq"][name] for name in totals] == [4, 2, 2, 25, 9]
    assert splits["seq"]["fill"] == pytest.approx(0.64)
    _, out, _ = ubjax_split("5,5,5,1")
    assert [line.split(":")[0] for line in out if ": " in line] == ["simple", "equal", "equal-any", "seq"]
    assert "equal-any: cuts this batch as equal does" in out


def test_interleaved_rows_come_out_by_sequence(cuts):
    splits = cuts("3,3,3", "--interleave", "--n-ubatch", "9")["splits"]
    assert rows(splits["equal"]) == [[0, 3, 6, 1, 4, 7, 2, 5, 8]]
    assert rows(splits["simple"]) == [list(range(9))]
    assert [
        u["seq_id_unq"]
        for u in cuts("1,3", "--interleave", "--n-ubatch", "2")["splits"]["simple"]["ubatches"]
    ] == [
        [0, 1],
        [1],
    ]


def test_keep_tail_holds_tokens_back(cuts):
    found = cuts("5", "--keep-tail", "2", "--n-ubatch", "4", "--strategy", "equal-any")
    assert (found["n_ubatch"], found["n_keep_tail"]) == (4, 2)
    assert rows(found["splits"]["equal-any"]) == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("number", range(0, 1056, 44))
def test_golden_batches_are_cut_as_by_the_original(cuts, number):
    batch = [batch for batch in GOLDEN if batch["init"]][number]
    tokens = [{name: entry for name, entry in token.items() if name != "pos"} for token in batch["tokens"]]
    names = {
        ("simple", False): "simple",
        ("equal", True): "equal",
        ("equal", False): "equal-any",
        ("seq", False): "seq",
    }
    expected = [split for split in batch["splits"] if not split["exceeds_n_ubatch"]]
    assert expected
    for split in expected:
        name = names[split["algo"], split["sequential"]]
        options = ["--n-ubatch", str(split["n_ubatch"]), "--keep-tail", str(split["n_keep_tail"])]
        found = cuts(json.dumps(tokens), "--strategy", name, *options)["splits"][name]
        for key in ("n_tokens", "n_seqs", "n_seq_tokens", "seq_id_unq", "batch_idxs"):
            assert [u[key] for u in found["ubatches"]] == [u[key] for u in split["ubatches"]]
        outputs = [sum(tokens[i]["output"] for i in u["batch_idxs"]) for u in split["ubatches"]]
        assert [u["n_outputs"] for u in found["ubatches"]] == outputs
        if split["n_used"] < len(tokens):
            assert found["failure"].startswith(f"the split took {split['n_used']} of {len(tokens)} tokens")


GOLDEN = golden("split.jsonl.gz")


def test_json_batches_of_every_form_are_one_batch(ubjax_split, tmp_path):
    columns = {"seq": [[0], [0, 1], 2], "pos": [0, 1, 0], "output": [False, True, 1]}
    tokens = [
        {"id": 5, "seq": [0], "pos": 0},
        {"id": -1, "seq": [1, 0], "pos": [1], "output": True, "embd": True},
        {"seq": 2, "pos": 0, "output": True},
    ]
    path = tmp_path / "bätch.json"
    path.write_text(json.dumps(columns), encoding="utf-8-sig")
    typed = ubjax_split(json.dumps(columns))
    assert typed[0] == 0
    assert typed[1][0] == "3 tokens of 3 sequences, n_ubatch 8"
    assert typed[1][2] == "batch   0 0+  2"
    assert ubjax_split(json.dumps(tokens)) == typed
    assert ubjax_split(str(path)) == typed


def test_a_failed_split_is_said_in_words(ubjax_split, cuts):
    batch = '{"seq": [[2], [0, 1], [0]]}'
    status, out, _ = ubjax_split(batch, "--strategy", "equal")
    assert status == 0
    assert out[4] == "equal: no ubatch"
    assert " ".join(line.strip() for line in out[5:]) == (
        "failed: the split took 0 of 3 tokens: the sequence sets of this batch can't be cut this way (token 0 was "
        "left over); with sequential ids no token may be in several sequences, token 1 is in sequences 0-1"
    )
    splits = cuts(batch)["splits"]
    assert splits["equal"]["failure"].endswith("token 1 is in sequences 0-1")
    assert splits["equal-any"]["failure"] is None
    assert rows(splits["equal-any"]) == [[0, 1], [2]]


def test_a_plan_out_of_order_is_said_in_words(ubjax_split):
    _, out, _ = ubjax_split(
        '{"seq": [[1, 2, 3], 1, 1, [0, 3], 0]}', "--n-ubatch", "2", "--strategy", "equal-any"
    )
    assert out[5:7] == [
        "  failed: a cache would refuse it, token 4 of sequence 0 comes before its token",
        "    3",
    ]


def test_a_batch_that_no_decode_would_take_is_cut_with_a_note(ubjax_split, cuts):
    batch = '{"seq": [0, 0, 0], "pos": [0, 1, 3]}'
    note = "token 2 jumps to position 3, position 2 of its sequence is needed first"
    _, out, _ = ubjax_split(batch)
    assert (
        " ".join(line.strip() for line in out[3:5])
        == f"a decode with an empty cache would refuse this batch: {note}"
    )
    assert cuts(batch)["refusal"] == note
    assert cuts('{"seq": [0, 0, 0], "pos": [7, 8, 9]}')["refusal"] is None
    # with several positions a token (M-RoPE) they may jump
    assert cuts('{"seq": [0, 0, 0], "pos": [0, [1, 1, 1], [3, 3, 3]]}')["refusal"] is None


@pytest.mark.parametrize(
    ("what", "strategy"), [("2000", "equal"), (",".join("1" * 40), "equal"), ("1000000", "simple")]
)
def test_lines_stay_within_the_terminal(ubjax_split, what, strategy):
    status, out, _ = ubjax_split(what, "--strategy", strategy)
    assert status == 0
    assert max(map(len, out)) <= 80
    assert 15 <= len(out) <= 25


NEITHER = "is neither lengths such as 5,5,5,1, nor JSON, nor a file that can be read"
BAD = [
    ("5,-5", "length 1 is '-5', a number of tokens of at least 1 is needed"),
    ("0", "length 0 is '0', a number of tokens of at least 1 is needed"),
    ("5,,5", "length 1 is '', a number of tokens of at least 1 is needed"),
    ("5 5", "length 0 is '5 5', a number of tokens of at least 1 is needed"),
    ("1000001", "the batch holds 1000001 tokens, at most 1000000 are drawn"),
    ("600000,600000", "the batch holds 1200000 tokens, at most 1000000 are drawn"),
    ("9" * 5000, f"the batch holds '{'9' * 35}...' tokens, at most 1000000 are drawn"),
    (",".join("1" * 257), "there are 257 lengths, at most 256 sequences are possible"),
    ("", f"'' {NEITHER} (Is a directory)"),
    ("5a,3", f"'5a,3' {NEITHER} (No such file or directory)"),
    ("５,５", f"'\\uff15,\\uff15' {NEITHER} (No such file or directory)"),
    ("a\nb", f"'a\\nb' {NEITHER} (No such file or directory)"),
    ("\udcff", f"'\\udcff' {NEITHER} (No such file or directory)"),
    ("\0", f"'\\x00' {NEITHER} (embedded null byte)"),
    ("{", "the JSON is broken at line 1, column 2: Expecting property name enclosed in double quotes"),
    ("[" * 100_000, "the JSON is nested too deeply for a batch"),
    ("[" + "9" * 5000 + "]", "the JSON holds a number with too many digits"),
    ("[]", "the batch holds 0 tokens, at least 1 is needed"),
    ('{"seq": []}', "the batch holds 0 tokens, at least 1 is needed"),
    ("{}", "the batch has no entry seq, the sequences of its tokens are needed"),
    ('{"sequence": [0]}', "the batch has an entry 'sequence', known are seq, pos, output, id, embd"),
    ('{"seq": 5}', "seq is 5, a list with one entry a token is needed"),
    ('{"seq": [0, []]}', "token 1 belongs to no sequence, at least one is needed"),
    ('{"seq": [true]}', "the sequence of token 0 is True, a whole number or a list of them is needed"),
    ('{"seq": [0, 1.5]}', "the sequence of token 1 is 1.5, a whole number or a list of them is needed"),
    ('{"seq": [255, 256]}', "token 1 belongs to sequence 256, one in [0, 256) is needed"),
    ('{"seq": [[0, -1]]}', "token 0 belongs to sequence -1, one in [0, 256) is needed"),
    ('{"seq": [0, 1], "pos": [0]}', "pos has 1 entry, 2 are needed, one for each of seq"),
    ('{"seq": [0], "pos": ["0"]}', "the position of token 0 is '0', a whole number or a list of them is needed"),
    ('{"seq": [0], "pos": [[]]}', "token 0 has 0 positions, 1 is needed"),
    ('{"seq": [0, 0], "pos": [[1, 1, 1], [1, 1]]}', "token 1 has 2 positions, 1 or 3 is needed"),
    ('{"seq": [0], "pos": [[0, 1]]}', "n_pos is 2, 1 (text), 3 or 4 (M-RoPE) is needed"),
    ('{"seq": [0], "pos": [2147483648]}', "the position of token 0 is 2147483648, a 32-bit integer is needed"),
    ('{"seq": [0], "output": [2]}', "the output flag of token 0 is 2, true or false is needed"),
    ("[5, 5]", 'token 0 is 5, an object like {"seq": [0], "pos": 0} is needed'),
    ('[{"seq": 0}, {"pos": 0}]', "token 1 has no entry seq, the sequences of its tokens are needed"),
    ('[{"seq": 0}, {"seq": 0, "pos": 1}]', "token 1 differs from token 0: give all tokens a position (pos), or none"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "sentence"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_one_line(ubjax_split, what, sentence):
    assert ubjax_split(what) == (2, [], [f"ubjax split: {sentence}"])


def test_a_file_that_is_no_text_is_one_line(ubjax_split, tmp_path):
    path = tmp_path / "b"
    path.write_bytes(b"\xff\xfe{")
    status, out, err = ubjax_split(str(path))
    assert (status, out, len(err)) == (2, [], 1)
    assert err[0].endswith("is no JSON batch: it is not UTF-8 text")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--n-ubatch", "0"], "n_ubatch is 0, a size in [1, 2147483647] is needed"),
        (["--n-ubatch", "9999999999"], "n_ubatch is 9999999999, a size in [1, 2147483647] is needed"),
        (["--keep-tail", "8"], "n_keep_tail is 8, less than n_ubatch = 8 is needed"),
        (["--keep-tail", "-1"], "n_keep_tail is -1, a size in [0, 2147483647] is needed"),
        (
            ["--strategy", "equal,ü"],
            "the strategy is '\\xfc', one of simple, equal, equal-any, seq is needed",
        ),
        (["--strategy", ""], "the strategy is '', one of simple, equal, equal-any, seq is needed"),
        (
            ["--strategy", "simple,seq", "--keep-tail", "1"],
            "--keep-tail 1 has no meaning for simple, seq: equal or equal-any is needed",
        ),
    ],
)
def test_bad_options_are_one_line(ubjax_split, options, sentence):
    assert ubjax_split("5,5,5,1", *options) == (2, [], [f"ubjax split: {sentence}"])


def test_only_lengths_can_be_interleaved(ubjax_split):
    status, _, err = ubjax_split('{"seq": [0]}', "--interleave")
    assert status == 2
    assert err == [
        "ubjax split: --interleave deals the tokens of lengths such as 5,5,5,1; a JSON batch has its order"
    ]
