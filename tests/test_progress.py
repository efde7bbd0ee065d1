"""The progress line: redrawn in place on a terminal, one plain line elsewhere."""

import io

import pytest

from tests.cli.tiny_model import write_tiny_model
from ubjax import load_model
from ubjax import progress as module
from ubjax.progress import LateProgress, Progress

ERASE = "\x1b[K"  # what the line before was longer


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(terminal: Terminal) -> str:
    """What stands on the terminal's last line after all redrawing."""
    return terminal.getvalue().rstrip("\n").split("\r")[-1].removesuffix(ERASE)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still until it is turned."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_line_is_redrawn_in_place(clock):
    terminal = Terminal()
    with Progress(272, "loading smollm2", terminal) as progress:
        assert shown(terminal) == "loading smollm2 [                    ] 0/272"
        clock[0] += 1
        progress.update(120)
        assert shown(terminal) == "loading smollm2 [########            ] 120/272"
        assert "\n" not in terminal.getvalue()
        progress.update(272)
        assert shown(terminal) == "loading smollm2 [####################] 272/272"
    assert terminal.getvalue().count("\n") == 1 and terminal.getvalue().endswith("\n")
    assert terminal.getvalue().count("\r") == terminal.getvalue().count(ERASE) == 4


def test_it_draws_no_oftener_than_anybody_reads(clock):
    terminal = Terminal()
    with Progress(1000, "busy", terminal) as progress:
        for i in range(1, 1001):
            progress.update(i)
    assert terminal.getvalue().count("\r") == 3  # the start, the last, the end
    assert shown(terminal).endswith("1000/1000")


def test_elsewhere_only_the_first_line_comes(clock):
    stream = io.StringIO()
    with Progress(3, "loading smollm2", stream) as progress:
        for i in range(3):
            clock[0] += 1
            progress.update(i + 1)
    assert stream.getvalue() == "loading smollm2 ...\n"


def test_an_error_ends_the_line_where_it_is(clock):
    terminal = Terminal()
    with pytest.raises(ValueError, match="broken"), Progress(4, "loading", terminal) as progress:
        progress.update(1)
        raise ValueError("broken")
    assert shown(terminal) == "loading [#####               ] 1/4"
    assert terminal.getvalue().endswith(f"{ERASE}\n")


def test_a_total_may_come_later_or_be_zero(clock):
    terminal = Terminal()
    with Progress(None, "loading", terminal) as progress:
        assert shown(terminal) == "loading ..."
        progress.on_tensor("blk.0.attn_q.weight", 2, 2)
        assert shown(terminal) == "loading [####################] 2/2"
    empty = Terminal()
    with Progress(0, "nothing", empty):
        pass
    assert shown(empty) == "nothing [                    ] 0/0"


def test_stderr_is_the_default(capsys):
    with Progress(1, "loading"):
        pass
    assert capsys.readouterr() == ("", "loading ...\n")


@pytest.mark.parametrize("seconds", [1, 3])
def test_what_is_soon_done_shows_nothing(clock, monkeypatch, seconds):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = LateProgress("embedding")
    for done in (1, 2):
        clock[0] += seconds
        progress.update(done, 2)
    progress.close()
    assert shown(terminal) == ("embedding [####################] 2/2" if seconds == 3 else "")
    silent = io.StringIO()
    monkeypatch.setattr("sys.stderr", silent)
    progress = LateProgress("embedding")
    clock[0] += 9
    progress.update(1, 2)
    progress.close()
    assert silent.getvalue() == ""


def test_a_model_tells_of_each_tensor(tmp_path, clock):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    told, terminal = [], Terminal()
    load_model(path, on_tensor=lambda name, i, n: told.append((name, i, n)))
    assert [i for _, i, _ in told] == list(range(1, 21)) and {n for *_, n in told} == {20}
    assert told[0][0] == "token_embd.weight" and len({name for name, *_ in told}) == 20
    with Progress(None, "loading tiny", terminal) as progress:
        load_model(path, on_tensor=progress.on_tensor)
    assert shown(terminal) == "loading tiny [####################] 20/20"
