"""The charts of an answer, by name: its JSON document in, a picture out.

The one place where pictures are made, for pages, reports, notebooks and files alike.
"""

from collections.abc import Callable
from dataclasses import dataclass

from astra.errors import InputError, did_you_mean
from astra.report.svg.changes import change_rows, changes_svg, changes_title
from astra.report.svg.frontier import frontier_svg, frontier_title
from astra.report.svg.memory import TITLE as MEMORY_TITLE
from astra.report.svg.memory import memory_svg
from astra.report.svg.mixing import TITLE as MIXING_TITLE
from astra.report.svg.mixing import mixing_svg
from astra.report.svg.parts import parts_svg, parts_title
from astra.report.svg.pool import TITLE as POOL_TITLE
from astra.report.svg.pool import pool_svg
from astra.report.svg.priced import Document, priced_plan, priced_plans
from astra.report.svg.scaling import TITLE as SCALING_TITLE
from astra.report.svg.scaling import fastest_by_count, scaling_svg
from astra.report.svg.timeline import timeline_svg
from astra.report.svg.whiskers import TITLE as WHISKERS_TITLE
from astra.report.svg.whiskers import whiskers_svg

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


def _has_frontier(document: Document) -> bool:
    return len(document.get("frontier") or ()) > 1 and bool(document.get("market"))


def _has_rivals(document: Document) -> bool:
    """Plans of one question; those of a frontier are on other GPUs, and ordered by dollars."""
    return len(priced_plans(document)) > 1 and not document.get("market")


def _changes(document: Document) -> bool:
    return bool(change_rows(document))


def _mixes(document: Document) -> bool:
    return bool(document.get("mixed") and document.get("plans"))


def _pool(document: Document, width: float, rank: int) -> str:
    return pool_svg(document, priced_plan(document, rank), width)


def _timeline(document: Document, width: float, rank: int) -> str:
    from astra.strategy.plan_file import plan_from_json
    from astra.timeline.step import step_timeline

    plan = plan_from_json(priced_plan(document, rank)["plan"], "plan")
    return timeline_svg(step_timeline(plan), width)


CHARTS: dict[str, Chart] = {
    "frontier": Chart(
        applies=_has_frontier,
        title=lambda document, _rank: frontier_title(document),
        draw=lambda document, width, _rank: frontier_svg(document, width),
    ),
    "plans": Chart(
        applies=_has_rivals,
        title=lambda _document, _rank: WHISKERS_TITLE,
        draw=lambda document, width, _rank: whiskers_svg(document, width),
    ),
    "scaling": Chart(
        applies=lambda document: bool(fastest_by_count(document)),
        title=lambda _document, _rank: SCALING_TITLE,
        draw=lambda document, width, _rank: scaling_svg(document, width),
    ),
    "pool": Chart(
        applies=_has_plan,
        title=lambda _document, _rank: POOL_TITLE,
        draw=_pool,
    ),
    "mixing": Chart(
        applies=_mixes,
        title=lambda _document, _rank: MIXING_TITLE,
        draw=lambda document, width, _rank: mixing_svg(document, width),
    ),
    "timeline": Chart(
        applies=_has_plan,
        title=lambda _document, _rank: "One step, stage by stage",
        draw=_timeline,
    ),
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
    "changes": Chart(
        applies=_changes,
        title=lambda document, _rank: changes_title(document),
        draw=lambda document, width, _rank: changes_svg(document, width),
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
