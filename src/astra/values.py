"""Numbers and words as people give them: as Python values, or as text of a command line.

`where` is the option as the command line calls it, `--seq-len`; from Python an error says it in
Python's words (`api/words.py`).
"""

from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from astra.errors import InputError, did_you_mean, shorten

Value = TypeVar("Value")
TOKEN_UNITS = {"k": 1024, "m": 1024**2}


def whole_number(said: object, where: str, least: int = 1, most: int = 10**7) -> int:
    """A whole number, NumPy's too; `4_096` and `4,096` are meant well but refused."""
    value = _parsed(said) if isinstance(said, str) else _index(said)
    if value is None:
        raise InputError(f"{where} {shorten(said)}: not a whole number.")
    if not least <= value <= most:
        raise InputError(f"{where} {shorten(said)}: must lie between {least} and {most:,}.")
    return value


def _parsed(text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    return int(text) if len(text) <= 20 else 10**20


def _index(said: object) -> int | None:
    if isinstance(said, bool):
        return None
    try:
        return index(said)  # type: ignore[arg-type]
    except TypeError:
        return None


def token_count(said: object, where: str, most: int = 10**7) -> int:
    """`8k` tokens are 8,192, and `1M` are 1,048,576.

    >>> token_count("8k", "--seq-len"), token_count(4096, "--seq-len")
    (8192, 4096)
    """
    if isinstance(said, str):
        number, unit = said[:-1], said[-1:].lower()
        if unit in TOKEN_UNITS and number.isdecimal() and len(number) < 7:
            return whole_number(int(number) * TOKEN_UNITS[unit], where, most=most)
        if _parsed(said) is None:
            raise InputError(f"{where} {shorten(said)}: not a whole number of tokens. Try 8k.")
    return whole_number(said, where, most=most)


def number(said: object, where: str, least: float, most: float) -> float:
    """A number between two others."""
    try:
        value = float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where} {shorten(said)}: not a number.") from None
    if not least <= value <= most:
        raise InputError(f"{where} {shorten(said)}: must lie between {least:g} and {most:g}.")
    return value


def word(said: object, where: str, words: Sequence[str]) -> str:
    """One of these words."""
    if isinstance(said, str) and said in words:
        return said
    hint = did_you_mean(str(said)[:60], words, f"Use one of {', '.join(words)}.")
    raise InputError(f"{where} {shorten(said)}: not known. {hint}")


def of_kind(said: Value, name: str, kind: Any, needed: str) -> Value:
    """A value of Python's that is what it must be: `stack = 7: text is needed.`"""
    if not isinstance(said, kind):
        raise InputError(f"{name} = {shorten(said)}: {needed} is needed.")
    return said


def file_path(said: str | Path, name: str = "file") -> Path:
    """The path of a file or folder that may be there."""
    path = Path(of_kind(said, name, (str, Path), "a path"))
    try:
        path.exists()
    except OSError as error:  # a name that is too long
        raise InputError(f"{shorten(str(path))}: cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InputError(f"{shorten(str(path))}: not the name of a file.") from None
    return path
