"""`ubjax run --prompt-cache FILE`: the shared prefix is skipped, the text is the same."""

import json

import pytest

from tests.cli.tiny_model import write_tiny_model
from ubjax.cli import main

COMMON = ["--raw", "-c", "256", "--n-ubatch", "1", "--json", "-n"]


@pytest.fixture
def run(tmp_path, capfd):
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))

    def call(prompt, *options, n="4"):
        code = main(["run", model, prompt, *COMMON, n, *options])
        out, err = capfd.readouterr()
        if code:
            return err.splitlines()[-1]
        return json.loads(out.splitlines()[-1])["outputs"][0]["tokens"], err

    return call


def test_a_prompt_starts_from_what_the_file_holds(run, tmp_path):
    path = tmp_path / "prompt.cache"
    option = ("--prompt-cache", str(path))
    alone = {prompt: run(prompt)[0] for prompt in ("cabbage", "cabinet", "xyz")}
    for prompt, shared, n in (
        ("cabbage", "0 of 6", 6),  # "ab" is one token
        ("cabbage", "5 of 6", 1),  # the last token gives the logits
        ("cabinet", "2 of 6", 4),
        ("cabbage", "2 of 6", 4),  # the file is the last prompt's
        ("xyz", "0 of 3", 3),
    ):
        tokens, err = run(prompt, *option)
        assert tokens == alone[prompt]
        assert f"{shared} prompt tokens were in {path}" in err
        assert f"\n{n} prompt token{'s' * (n > 1)}, " in err
    assert run("xyz", *option, n="1")[0] == alone["xyz"][:1]


def test_the_file_is_written_even_if_the_first_token_is_the_last(run, tmp_path):
    option = ("--prompt-cache", str(tmp_path / "prompt.cache"))
    first, _ = run("cabbage", *option, n="1")
    tokens, err = run("cabbage", *option)
    assert tokens[:1] == first and "5 of 6 prompt tokens were in" in err


def test_files_that_can_not_be_used_are_named_and_left(run, tmp_path):
    path = tmp_path / "prompt.cache"
    path.write_bytes(b"Some text that somebody wrote.")
    option = ("--prompt-cache", str(path))
    assert f"ubjax run: {path} can't be loaded: its header claims" in run("cab", *option)
    assert path.read_bytes() == b"Some text that somebody wrote."
    path.unlink()
    run("cab", *option)
    other = str(write_tiny_model(tmp_path / "other.gguf", seed=1))
    data = path.read_bytes()
    assert main(["run", other, "cab", *COMMON, "1", *option]) == 2
    assert path.read_bytes() == data
    assert "takes one prompt and one output of it, found 2 and 1" in run("cab", "bac", *option)
    assert "takes one prompt and one output of it, found 1 and 3" in run("cab", "--n", "3", *option)
    assert "there is no folder" in run("cab", "--prompt-cache", str(tmp_path / "none" / "file"))
