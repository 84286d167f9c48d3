"""The charts of an answer, by name: its JSON document in, a picture out.

The one place where pictures are made, for pages, reports, notebooks and files alike.
"""

from collections.abc import Callable
from dataclasses import dataclass

from astra.errors import InputError, did_you_mean
from astra.report.svg.memory import TITLE as MEMORY_TITLE
from astra.report.svg.memory import memory_svg
from astra.report.svg.parts import parts_svg, parts_title
from astra.report.svg.priced import Document, priced_plan, priced_plans

LEAST_WIDTH, MAX_WIDTH = 240.0, 4000.0  # in pixels


@dataclass(frozen=True, slots=True)
class Chart:
    """One kind of picture."""

    applies: Callable[[Document], bool]  # whether a document has what it shows
    title: Callable[[Document, int], str]  # above it; `rank`: of which plan
    draw: Callable[[Document, float, int], str]  # document, width in px, rank


def _has_plan(document: Document) -> bool:
    return bool(priced_plans(document))


def _memory(document: Document, width: float, rank: int) -> str:
    margin = (document.get("request") or {}).get("memory_margin")
    return memory_svg(priced_plan(document, rank), width, margin)


CHARTS: dict[str, Chart] = {
    "parts": Chart(
        applies=_has_plan,
        title=lambda document, rank: parts_title(priced_plan(document, rank)),
        draw=lambda document, width, rank: parts_svg(priced_plan(document, rank), width),
    ),
    "memory": Chart(
        applies=_has_plan,
        title=lambda _document, _rank: MEMORY_TITLE,
        draw=_memory,
    ),
}


def draw(name: str, document: Document, width: float, rank: int = 1) -> str:
    """A chart as SVG; `rank`: of which plan of the answer, where it shows one."""
    chart = CHARTS.get(name)
    if chart is None:
        known = f"Charts: {', '.join(CHARTS)}."
        raise InputError(f"chart {name} is not known. {did_you_mean(name, CHARTS, known)}")
    if not LEAST_WIDTH <= width <= MAX_WIDTH:
        span = f"{LEAST_WIDTH:.0f} to {MAX_WIDTH:.0f}"
        raise InputError(f"width = {width:g}: {span} pixels are possible.")
    if not chart.applies(document):
        fitting = ", ".join(charts_of(document)) or "none"
        raise InputError(f"this answer has nothing for the chart {name}. Its charts: {fitting}.")
    return chart.draw(document, width, rank)


def charts_of(document: Document) -> list[str]:
    """The names of all charts that a document has something for."""
    return [name for name, chart in CHARTS.items() if chart.applies(document)]
