"""Charts of an answer in one file: below one another as SVG or PNG, with their tables as HTML."""

import re
from pathlib import Path
from typing import Any

from astra.errors import InputError, shorten
from astra.report.svg.axis import picture, text
from astra.report.svg.charts import CHARTS, charts_of, draw
from astra.report.svg.priced import Document, priced_plan

WIDTH, MARGIN = 860.0, 16.0
TITLE_PX, GAP_PX = 30.0, 26.0
PICTURE_FORMATS = ("svg", "png", "html")
SHOWN = ("frontier", "plans", "scaling", "pool", "mixing", "parts", "memory", "changes")


def shown_charts(document: Document) -> list[str]:
    """What says most of an answer; its timeline is drawn by `astra trace`."""
    fitting = set(charts_of(document))
    if "pool" in fitting and len(priced_plan(document)["gpus"]) == 1:
        fitting.remove("pool")
    return [name for name in SHOWN if name in fitting]


def picture_format(path: str) -> str:
    """What a file's name asks for."""
    file_format = Path(path).suffix.lower().removeprefix(".")
    if file_format not in PICTURE_FORMATS:
        raise InputError(f"--plot {shorten(path)}: the name ends in .svg, .png or .html.")
    if file_format == "png":
        _png_renderer()
    return file_format


def _png_renderer() -> Any:
    """CairoSVG, where it and the cairo library that it loads are installed."""
    try:
        import cairosvg
    except (ImportError, OSError) as error:
        missing = "CairoSVG" if isinstance(error, ImportError) else "CairoSVG's cairo library"
        raise InputError(
            f"--plot: a .png needs {missing}, which is not installed. Try a name that ends in .svg "
            "or .html, which need nothing, or pip install 'astra-planner[png]' (and cairo itself: "
            "libcairo2 on Debian and Ubuntu, cairo elsewhere)."
        ) from None
    return cairosvg


def plot(document: Document, file_format: str) -> str | bytes:
    """The charts in this format."""
    if file_format == "html":
        from astra.report.sheet.build import picture_sheet
        from astra.report.sheet.page import page

        return page(picture_sheet(document))
    svg = stacked(document)
    if file_format == "png":
        found: bytes = _png_renderer().svg2png(bytestring=with_colours(svg).encode(), scale=2)
        return found
    return svg


def stacked(document: Document) -> str:
    """Every chart under its title, in one picture."""
    names = shown_charts(document)
    parts, y, titles = [], MARGIN, []
    for name in names:
        title = CHARTS[name].title(document, 1)
        chart = draw(name, document, WIDTH - 2 * MARGIN)
        head = text(MARGIN, y + 14, title, size=15, colour="ink", weight=600)
        place = f'<svg x="{MARGIN:g}" y="{y + TITLE_PX:g}" '
        parts += [head, chart.replace("<svg ", place, 1).rstrip()]
        titles.append(title)
        y += TITLE_PX + chart_height(chart) + GAP_PX
    return picture(WIDTH, y - GAP_PX + MARGIN, "; ".join(titles), parts)


def chart_height(svg: str) -> float:
    found = re.search(r' height="([\d.]+)"', svg)
    assert found
    return float(found[1])


def with_colours(svg: str) -> str:
    """Variables as their light colours, for what does not know variables.

    >>> with_colours('<rect fill="var(--fwd, #8fb8f0)"/>')
    '<rect fill="#8fb8f0"/>'
    """
    return re.sub(r"var\(--[a-z0-9-]+, (#[0-9a-f]{6})\)", r"\1", svg)
