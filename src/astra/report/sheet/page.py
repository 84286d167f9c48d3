"""A report as one HTML file: no script, nothing loaded, prints on A4, always light."""

from html import escape
from pathlib import Path

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

STYLE = Path(__file__).with_name("page.css")
# A page that is mailed around loads nothing, whatever stands in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(sheet: Sheet) -> str:
    """The whole file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light">'
        f"<title>{escape(sheet.title)}</title>\n<style>{STYLE.read_text(encoding='utf-8')}</style>"
        f"</head><body>\n{body(sheet)}\n</body></html>\n"
    )


def body(sheet: Sheet) -> str:
    """What stands inside of it."""
    parts = [
        f'<header><p class="about"><strong>astra report</strong> {escape(sheet.about)}</p>',
        *(_block(block, lead="h1") for block in sheet.head),
        "</header>",
    ]
    for section in sheet.sections:
        blocks = "".join(_block(block) for block in section.blocks)
        parts.append(f"<section><h2>{escape(section.title)}</h2>{blocks}</section>")
    return "\n".join(parts)


def _block(block: PageBlock, lead: str = "p") -> str:
    match block:
        case Words(text, "lead"):
            return f'<{lead} class="lead">{escape(text)}</{lead}>'
        case Words(text, kind):
            return f"<p{_class(kind)}>{escape(text)}</p>"
        case Grid():
            return f'<div class="wide">{grid_html(block)}</div>'
        case Picture(svg, grid, title):
            head = f"<figcaption>{escape(title)}</figcaption>" if title else ""
            return f"<figure>{head}{svg}{_figures(grid)}</figure>"
        case Tiles(tiles):
            drawn = "".join(
                f"<div><dt>{escape(each.name)}</dt><dd><strong>{escape(each.value)}</strong>"
                f"<span>{escape(each.below)}</span></dd></div>"
                for each in tiles
            )
            return f"<dl>{drawn}</dl>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
        case CommandLines(lines):
            return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _figures(grid: Grid | None) -> str:
    """The table of a picture, opened where it is wanted."""
    if grid is None:
        return ""
    return f'<details><summary>Figures</summary><div class="wide">{grid_html(grid)}</div></details>'


def grid_html(grid: Grid) -> str:
    """A table; every cell escaped."""
    head = "".join(_cell(name, "th", row in grid.numbers) for row, name in enumerate(grid.header))
    named = f"<thead><tr>{head}</tr></thead>" if any(grid.header) else ""
    rows = []
    for place, row in enumerate(grid.rows):
        cells = "".join(_cell(cell, "td", at in grid.numbers) for at, cell in enumerate(row))
        rows.append(f"<tr{_class('strong' if place == grid.strong else '')}>{cells}</tr>")
    return f"<table>{named}<tbody>{''.join(rows)}</tbody></table>"


def _cell(cell: Cell, tag: str, is_number: bool) -> str:
    inside = escape(cell) if isinstance(cell, str) else cell.svg
    return f"<{tag}{_class('number' if is_number else '')}>{inside}</{tag}>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
