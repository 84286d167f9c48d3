"""Whether the frameworks that a check needs are installed."""

import importlib.util
import os

import pytest


def needs(*modules: str) -> None:
    """Skip where a framework is not installed; under `make verify`, fail instead."""
    missing = [name for name in modules if not _found(name)]
    if missing and os.environ.get("ASTRA_VERIFY") == "1":
        pytest.fail(f"not installed: {', '.join(missing)}", pytrace=False)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent of it is not there
        return False
