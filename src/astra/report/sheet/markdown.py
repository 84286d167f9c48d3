"""A report as Markdown, for a pull request: the same figures, with tables in place of pictures."""

from astra.report.sheet.blocks import (
    Cell,
    CommandLines,
    Grid,
    Items,
    PageBlock,
    Picture,
    Sheet,
    Tiles,
    Words,
)

SPECIAL = "\\`*_{}[]<>#|~"


def markdown(sheet: Sheet) -> str:
    """One document."""
    parts = [f"# {escaped(sheet.title)}", escaped(sheet.about)]
    parts += [_block(block) for block in sheet.head]
    for section in sheet.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """Words that Markdown and the HTML in it read as nothing else.

    >>> escaped("<b> a_b | c")
    '\\\\<b\\\\> a\\\\_b \\\\| c'
    """
    return "".join(
        f"\\{letter}" if letter in SPECIAL else letter for letter in " ".join(text.split())
    )


def _block(block: PageBlock) -> str:
    match block:
        case Words(text, kind):
            return f"**{escaped(text)}**" if kind == "lead" else escaped(text)
        case Grid():
            return _grid(block)
        case Picture(_, grid, title):
            table = _grid(grid) if grid else ""
            return f"**{escaped(title)}**\n\n{table}" if title and table else table
        case Tiles(tiles):
            rows = tuple((tile.name, tile.value, tile.below) for tile in tiles)
            return _grid(Grid(("figure", "value", ""), rows, frozenset({1})))
        case Items(texts):
            return "\n".join(f"- {escaped(text)}" for text in texts)
        case CommandLines(lines):
            return "\n".join(["```sh", *lines, "```"])


def _grid(grid: Grid) -> str:
    ends = ["---:" if column in grid.numbers else "---" for column in range(len(grid.header))]
    rows = [
        _row(tuple(map(_words, row)), row_at == grid.strong) for row_at, row in enumerate(grid.rows)
    ]
    return "\n".join([_row(grid.header), f"| {' | '.join(ends)} |", *rows])


def _row(cells: tuple[str, ...], strong: bool = False) -> str:
    said = [f"**{escaped(cell)}**" if strong and cell else escaped(cell) for cell in cells]
    return f"| {' | '.join(said)} |"


def _words(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.words
