"""Answers that several tests look at, each searched for once."""

from typing import Any

import astra

_found: dict[str, astra.Answer] = {}


def planned(model: str, **asked: Any) -> astra.Answer:
    """What `astra.plan` answers; the same question is not searched for again."""
    question = repr((model, sorted(asked.items())))
    if question not in _found:
        _found[question] = astra.plan(model, **asked)
    return _found[question]
