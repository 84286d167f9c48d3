"""A table for terminals of any width: words go to a second line, figures are never cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

COLUMN_GAP = "  "
SECOND_LINE_INDENT = "    "  # of a second line


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A name, and how its cells are shown."""

    name: str
    right: bool = True
    words: bool = False  # may go to a second line; such columns are the last ones
    lesser: bool = False  # may be left out where even the figures have no room, the last one first


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of cells, each on one line where all of them fit, else on two.

    Words leave the first line from the last column on; then lesser columns are left out. What is
    on the second line is wrapped between words.
    """

    columns: tuple[TableColumn, ...]
    cells: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text(line, no_wrap=True, overflow="ignore")

    def lines(self, width: int) -> list[str]:
        first, second = self._split(width)
        table = [tuple(column.name for column in self.columns), *self.cells]
        widths = {place: max(len(row[place]) for row in table) for place in first}
        lines = []
        for row in table:
            lines.append(
                COLUMN_GAP.join(self._cell(row, place, widths[place]) for place in first).rstrip()
            )
            words = COLUMN_GAP.join(row[place] for place in second if row[place])
            lines += wrap(
                words,
                max(width, 2 * len(SECOND_LINE_INDENT)),
                initial_indent=SECOND_LINE_INDENT,
                subsequent_indent=SECOND_LINE_INDENT,
                break_on_hyphens=False,
            )
        return lines

    def _cell(self, row: Sequence[str], place: int, width: int) -> str:
        return row[place].rjust(width) if self.columns[place].right else row[place].ljust(width)

    def _split(self, width: int) -> tuple[list[int], list[int]]:
        """Columns of the first line and of the second."""
        first = [
            place
            for place, column in enumerate(self.columns)
            if column.name or any(row[place] for row in self.cells)
        ]
        second: list[int] = []
        while self._width_of(first) > width and self.columns[first[-1]].words:
            second.insert(0, first.pop())
        for place in reversed([place for place in first if self.columns[place].lesser]):
            if self._width_of(first) > width:
                first.remove(place)
        return first, second

    def _width_of(self, places: Sequence[int]) -> int:
        widths = [
            max(len(text) for text in (self.columns[place].name, *(r[place] for r in self.cells)))
            for place in places
        ]
        return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)
