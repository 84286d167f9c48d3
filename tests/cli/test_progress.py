"""On a terminal a search says what it does, before the first candidate is counted."""

import io
import sys
import time
from typing import Any

import pytest

from astra.cli import progress as progress_module
from astra.cli.main import run
from astra.cli.progress import CLEAR_LINE, ProgressLine
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


def test_it_says_what_is_done_before_anything_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "SILENT_S", 0.01)
    monkeypatch.setattr(progress_module, "UPDATE_INTERVAL_S", 0.01)
    stream = io.StringIO()
    with ProgressLine(stream, "pricing layers") as progress:
        until(lambda: "astra: pricing layers ... 0 s" in stream.getvalue())
        progress(Progress(12_345, None, None))
        until(lambda: "astra: 12,345 candidates ... 0 s" in stream.getvalue())
    assert stream.getvalue().endswith(CLEAR_LINE)  # the answer begins on an empty line
    before = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == before


def test_nothing_is_said_of_what_is_soon_done() -> None:
    stream = io.StringIO()
    with ProgressLine(stream, "pricing layers") as progress:
        progress(Progress(5, None, None))
    assert stream.getvalue() == ""
    assert progress_module.SILENT_S <= 1


def test_an_error_stops_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "SILENT_S", 0.01)
    stream = io.StringIO()
    with pytest.raises(InputError), ProgressLine(stream, "pricing layers") as progress:
        until(lambda: stream.getvalue())
        raise InputError("no")
    assert not progress.thread.is_alive() and stream.getvalue().endswith(CLEAR_LINE)


@pytest.mark.parametrize(("words", "told"), [((), True), (("--json",), False)])
def test_a_search_shows_its_progress_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: bool,
) -> None:
    monkeypatch.setattr(progress_module, "SILENT_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run([*PLAN, *words]) == 0
    assert ("astra: pricing the layers of llama-3-8b ... 0 s" in terminal.getvalue()) == told
    assert "llama-3-8b" in capsys.readouterr().out
