"""Answers that several tests look at, each searched for once."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import astra

_found: dict[str, astra.Answer] = {}


def planned(model: str, **asked: Any) -> astra.Answer:
    """What `astra.plan` answers; the same question is not searched for again."""
    question = repr((model, sorted(asked.items())))
    if question not in _found:
        _found[question] = astra.plan(model, **asked)
    return _found[question]


def explained_without_what_ifs(source: astra.Answer | Path) -> astra.Explanation:
    """What `astra.explain` says, less what it searches for anew on other hardware."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("astra.explain.explain"), "searched", lambda _: [])
        return astra.explain(source)
