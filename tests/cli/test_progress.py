"""On a terminal a search says what it does, before the first candidate is counted."""

import io
import re
import sys
import time
from typing import Any

import pytest

from astra.cli import progress as progress_module
from astra.cli.main import run
from astra.cli.progress import ProgressLine
from astra.errors import InputError
from astra.search.result import Progress

PLAN = ("plan", "llama-3-8b", "--gpus", "h100:8", "--global-batch", "64", "--seq-len", "4096")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def until(found: Any) -> None:
    """Waits for what a thread does, not long."""
    end = time.monotonic() + 10
    while not found() and time.monotonic() < end:
        time.sleep(0.005)
    assert found()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """One that a progress line is shown on at once."""
    monkeypatch.setattr(progress_module, "SILENT_S", 0.0)
    monkeypatch.setattr(progress_module, "UPDATES_PER_S", 100)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_it_says_what_is_done_before_anything_is_counted(terminal: Terminal) -> None:
    with ProgressLine(terminal, "pricing layers") as progress:
        until(lambda: "astra: pricing layers ... 0 s" in terminal.getvalue())
        progress(Progress(12_345, 7.7, 0.042))
        words = "astra: 12,345 candidates, best step 7.7 s, at most 4.2% from the optimum ... 0 s"
        until(lambda: words in terminal.getvalue())
    assert is_cleared(terminal)  # the answer begins on an empty line
    before = terminal.getvalue()
    time.sleep(0.05)
    assert terminal.getvalue() == before


def is_cleared(terminal: Terminal) -> bool:
    """Its line is erased and nothing written behind that, and the cursor is shown again."""
    _, _, behind = terminal.getvalue().rpartition("\x1b[2K")
    return not behind.strip() and terminal.getvalue().rfind("\x1b[?25h") > 0


def test_nothing_is_said_of_what_is_soon_done() -> None:
    terminal = Terminal()
    with ProgressLine(terminal, "pricing layers") as progress:
        progress(Progress(5, None, None))
    assert terminal.getvalue() == ""
    assert progress_module.SILENT_S <= 1


def test_an_error_stops_it_too(terminal: Terminal) -> None:
    with pytest.raises(InputError), ProgressLine(terminal, "pricing layers") as progress:
        until(lambda: "pricing" in terminal.getvalue())
        raise InputError("no")
    assert not progress.live.is_started and is_cleared(terminal)


def test_it_has_no_colours(terminal: Terminal) -> None:
    with ProgressLine(terminal, "pricing layers"):
        until(lambda: "pricing" in terminal.getvalue())
    assert not re.search(r"\x1b\[[\d;]*m", terminal.getvalue())


@pytest.mark.parametrize(("words", "told"), [((), True), (("--json",), False)])
def test_a_search_shows_its_progress_on_a_terminal_alone(
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: bool,
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run([*PLAN, *words]) == 0
    assert ("astra: pricing the layers of llama-3-8b ... 0 s" in terminal.getvalue()) == told
    assert "llama-3-8b" in capsys.readouterr().out
