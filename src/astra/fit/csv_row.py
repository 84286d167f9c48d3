"""One row of a table of runs: its cells as numbers, words and flags."""

import math
import re
from collections.abc import Mapping

from astra.errors import InputError, shorten

MAX_COUNT = 10**9
MAX_CELL_CHARACTERS = 20_000  # notes are long; anything beyond this is no table of runs
_FLAG = re.compile(r"(?<![\w-])([a-z][a-z0-9]{1,20}(?:[-_][a-z0-9]{1,20}){1,8})=([^,;]{1,200})")


class CsvRow:
    """A row read by its column names. An empty cell, and a missing column, are not known."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row
        self.flags = flags_of(self.text("notes"))

    def text(self, name: str) -> str:
        return " ".join((self._row.get(name) or "").split())

    def lower_text(self, name: str) -> str:
        return self.text(name).lower()

    def count(self, name: str, least: int = 1, most: int = MAX_COUNT) -> int | None:
        """A count; `8.0` is 8."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value) or not least <= value <= most:
            raise InputError(f"{name} = {shorten(self.text(name))}: no count from {least:,} up")
        return int(value)

    def required_count(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise InputError(f"{name} is not known")
        return value

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if not text or text in ("(blank)", "-", "n/a", "N/A"):
            return None
        try:
            value = float(text.replace(",", "")) if len(text) <= 40 else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{name} = {shorten(text)}: not a number")
        return value

    def positive(self, name: str) -> float | None:
        """A measured quantity: above zero, or not known."""
        value = self.number(name)
        if value is not None and not 0 < value < 1e12:
            raise InputError(f"{name} = {shorten(self.text(name))}: must be above zero")
        return value

    def flag(self, name: str) -> bool | None:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        text = self.lower_text(name)
        if text and text not in words:
            raise InputError(f"{name} = {shorten(text)}: neither true nor false")
        return words.get(text)

    def year(self) -> int | None:
        """When the run was made: a date, or a release such as 25.02."""
        for name in ("source_date", "framework_version"):
            found = re.search(r"\b(20[1-4][0-9])\b", self.text(name))
            short = re.search(r"\b(2[0-9])\.[01][0-9]\b", self.text(name))
            if found:
                return int(found[1])
            if short:
                return 2000 + int(short[1])
        return None


def flags_of(notes: str) -> dict[str, str]:
    """Options that a note quotes, `moe-grouped-gemm=True, mtp-num-layers=1`; `_` reads as `-`."""
    found = _FLAG.findall(notes)
    return {name.replace("_", "-"): value.strip() for name, value in found}


def is_on(flags: Mapping[str, str], name: str) -> bool:
    return flags.get(name, "").lower() == "true"


def numbers_in(text: str) -> tuple[int, ...]:
    """The counts of a list such as `[0, 9, 15]`."""
    return tuple(int(word) for word in re.findall(r"[0-9]{1,6}", text))
