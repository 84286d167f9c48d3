"""Checks against the frameworks' own code. `make verify` installs what they need."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "strategy")]


def needs(*modules: str) -> None:
    """Skip where a framework is not installed; under `make verify`, fail instead."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("ASTRA_VERIFY") == "1":
        pytest.fail(f"not installed: {', '.join(missing)}", pytrace=False)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
