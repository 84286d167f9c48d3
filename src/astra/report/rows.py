"""A table that gives way where there is no room: words to a second line, never a figure cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

GAP = "  "
INDENT = "    "  # of a second line


@dataclass(frozen=True, slots=True)
class Column:
    """A name, and how its cells are shown."""

    name: str
    right: bool = True
    words: bool = False  # may go to a second line; such columns are the last ones
    lesser: bool = False  # may be left out where even the figures have no room, the last one first


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of cells, each on one line where all of them fit, else on two.

    Words leave the first line from the last column on; then lesser columns are left out. What is
    on the second line is wrapped between words.
    """

    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text(line, no_wrap=True, overflow="ignore")

    def lines(self, width: int) -> list[str]:
        first, second = self._split(width)
        table = [tuple(column.name for column in self.columns), *self.cells]
        wide = {place: max(len(row[place]) for row in table) for place in first}
        found = []
        for row in table:
            found.append(GAP.join(self._cell(row, place, wide[place]) for place in first).rstrip())
            words = GAP.join(row[place] for place in second if row[place])
            found += wrap(
                words,
                max(width, 2 * len(INDENT)),
                initial_indent=INDENT,
                subsequent_indent=INDENT,
                break_on_hyphens=False,
            )
        return found

    def _cell(self, row: Sequence[str], place: int, wide: int) -> str:
        return row[place].rjust(wide) if self.columns[place].right else row[place].ljust(wide)

    def _split(self, width: int) -> tuple[list[int], list[int]]:
        """Columns of the first line and of the second."""
        first = [
            place
            for place, column in enumerate(self.columns)
            if column.name or any(row[place] for row in self.cells)
        ]
        second: list[int] = []
        while self._wide(first) > width and self.columns[first[-1]].words:
            second.insert(0, first.pop())
        for place in reversed([place for place in first if self.columns[place].lesser]):
            if self._wide(first) > width:
                first.remove(place)
        return first, second

    def _wide(self, places: Sequence[int]) -> int:
        cells = [
            max(len(text) for text in (self.columns[place].name, *(r[place] for r in self.cells)))
            for place in places
        ]
        return sum(cells) + len(GAP) * (len(cells) - 1)
