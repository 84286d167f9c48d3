"""Pages for notebooks: the parts that a terminal gets, as plain HTML tables and paragraphs."""

from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING

from astra.report.svg.priced import Document

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from astra.report.text_table import TextTable

CHART_PX = 720.0  # width of a chart in a notebook


def page_html(parts: "Iterable[RenderableType]", say: Callable[[str], str] = str) -> str:
    """Sentences, tables and drawings; `say` puts sentences into the reader's words."""
    return "\n".join(html for part in parts if (html := _part_html(part, say)))


def charts_html(document: Document) -> str:
    """The charts of an answer, each below its title."""
    from astra.report.plot import shown_charts
    from astra.report.svg.charts import CHARTS, draw

    return "".join(
        f"\n<p>{escape(CHARTS[name].title(document, 1))}</p>\n{draw(name, document, CHART_PX)}"
        for name in shown_charts(document)
    )


def _part_html(part: "RenderableType", say: Callable[[str], str]) -> str:
    from rich.table import Table

    from astra.report.text_table import TextTable

    if isinstance(part, str):
        return f"<p>{escape(say(part.strip()))}</p>" if part.strip() else ""
    if isinstance(part, Table):
        return _rich_table(part, say)
    if isinstance(part, TextTable):
        return _text_table(part)
    return f"<pre>{escape(_drawn(part))}</pre>"


def html_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells as they are, escaped; without a header where none has a name."""
    names = list(header)
    head = f"<thead>{_row(names, 'th')}</thead>" if any(names) else ""
    body = "".join(_row(row, "td") for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _rich_table(table: "Table", say: Callable[[str], str]) -> str:
    header = [_text(column.header) for column in table.columns] if table.show_header else []
    columns = [[say(_text(cell)) for cell in column.cells] for column in table.columns]
    return html_table(header, zip(*columns, strict=True))


def _text_table(table: "TextTable") -> str:
    return html_table([column.name for column in table.columns], table.cells)


def _text(cell: object) -> str:
    """Of a cell that is text, with marks or without."""
    return " ".join(str(cell).split())


def _drawn(part: "RenderableType") -> str:
    from rich.console import Console

    console = Console(width=100, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(part)
    return captured.get().rstrip()
