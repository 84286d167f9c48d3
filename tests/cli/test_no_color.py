"""NO_COLOR (no-color.org) leaves plain text: no colours, and no bold either."""

import io
import sys

import pytest

from astra.cli.main import run

JOB = ("llama-3-8b", "--gpus", "h100:8", "--global-batch", "64", "--seq-len", "4096")
COMMANDS = (
    ("models",),
    ("models", "mixtral-8x7b"),
    ("gpus",),
    ("gpus", "h100"),
    ("prices", "h100"),
    ("rules",),
    ("rules", "tp-divides-heads"),
    ("stacks",),
    ("stacks", "megatron"),
    ("predict", *JOB),
    ("plan", *JOB),
    ("validate", "examples/own-runs.csv"),
)
STYLED = COMMANDS[1]  # bold titles


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    """Standard output and error, both terminals."""
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(list(command)) == 0
    return terminal.getvalue()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_color_leaves_no_style(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("astra.cli.progress.SILENT_S", 60.0)
    text = printed(command, monkeypatch)
    assert len(text) > 100 and "\x1b" not in text


def test_without_it_there_is_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in printed(STYLED, monkeypatch)
