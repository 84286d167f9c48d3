"""`astra profile` without torch: the list, and errors that say what to try."""

import builtins
import json
from collections.abc import Callable
from typing import Any

import pytest

from astra.cli.main import run
from astra.errors import InputError


def test_the_list_is_shown_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--list", "--only", "grouped", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["measurements"]
    assert rows and all(row["key"].startswith("grouped/") for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--out is missing"),
        (("--out", "p.json", "--only", "gem"), "there is no family 'gem'"),
        (("--out", "p.json", "--minutes", "0"), "--minutes"),
        (("--out", "p.json", "--minutes", "nan"), "--minutes"),
        (("--out", "p.json", "--only", "collective"), "torchrun"),
    ],
)
def test_bad_options_are_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(["profile", *words])


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[..., Any] = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] == "torch":
            raise ImportError(name)
        return plain(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"torch is not installed.*pip install"):
        run(["profile", "--out", "p.json"])
