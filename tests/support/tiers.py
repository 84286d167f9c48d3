"""Which of many alike cases `make check` runs, which `make test`, which `make soak`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(quick: int, cases: Iterable[Any]) -> list[Any]:
    """The first so many are quick tests, all others slow ones."""
    return [
        case if row < quick else pytest.param(case, marks=pytest.mark.slow)
        for row, case in enumerate(cases)
    ]


def soak_but_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """The first of each so many is a slow test; the others are left to the soak."""
    return [
        pytest.param(case, marks=pytest.mark.soak if row % step else pytest.mark.slow)
        for row, case in enumerate(cases)
    ]
