"""How commands write: tables for people, JSON for programs, always on standard output."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FOLDED_WORD_COLUMNS = 20  # columns that a cell of words may be folded into


def print_parts(*parts: object) -> None:
    """Text and rich tables, without trailing blanks; plain where nobody looks.

    Words are folded into the terminal; a table that would lose figures is printed wider, for the
    terminal to wrap.
    """
    from rich.table import Table

    from astra.report.console import new_console

    console = new_console(markup=False)
    for part in parts:
        least = least_width(part, console) if isinstance(part, Table) else 0
        with console.capture() as captured:
            console.print(part) if least <= console.width else _print_wide(part, console, least)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _print_wide(part: object, console: "Console", width: int) -> None:
    before, console.width = console.width, width
    console.print(part, soft_wrap=False)
    console.width = before


def least_width(table: "Table", console: "Console") -> int:
    """Columns that a table takes with no figure cut: words may fold, bars may end early."""
    from rich.measure import Measurement

    options = console.options.update(width=10_000)
    total = 0
    for column in table.columns:
        if column.overflow == "crop":
            continue
        sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
        whole = max((size.maximum for size in sizes), default=0)
        word = max((size.minimum for size in sizes), default=0)
        folded = min(word, FOLDED_WORD_COLUMNS) if column.overflow == "fold" else word
        total += whole if column.no_wrap else folded
    _, right, _, left = table.padding
    edges = 0 if table.pad_edge else 1
    between = 0 if table.box is None else len(table.columns) + 1
    return total + (left + right) * (len(table.columns) - edges) + between


def write_json(answer: object) -> None:
    """The result alone."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")


def print_note(text: str) -> None:
    """What a person should know, apart from the result."""
    sys.stderr.write(f"astra: {text}\n")
