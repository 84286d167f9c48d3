"""What an answer would be with something different: a line each, and the frontier where there is
one.
"""

from typing import TYPE_CHECKING

from astra.cost.result import PricedPlan
from astra.recommend.market_result import AnsweredWhatIf, FrontierPlan
from astra.report.amounts import gpus_text, hours, usd
from astra.report.document import AnswerDocument
from astra.report.priced_plan import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def what_if_parts(answer: AnswerDocument) -> list["RenderableType"]:
    """A line for each change; below it, where hours are weighed against dollars, what every plan
    of the changed frontier takes.
    """
    best = answer.best
    parts: list[RenderableType] = []
    for other in answer.what_if:
        parts.append(_line(other, best))
        if len(other.frontier) > 1:
            parts += [f"The frontier with {other.what}, fastest first", _table(other.frontier), ""]
    if parts and parts[-1] != "":
        parts.append("")
    return parts


def _line(other: AnsweredWhatIf, best: PricedPlan | None) -> str:
    plan = other.plan
    if plan is None:
        return f"With {other.what} no plan fits."
    step, gpus = other.step_change_fraction, sum(plan.gpus.values())
    figures = [f"{seconds(plan.step_s)} a step" + ("" if step is None else f" ({step:+.1%})")]
    if plan.energy is not None and best is not None and best.energy is not None:
        kwh, before = plan.energy.step_kwh, best.energy.step_kwh
        figures.append(f"{kwh:.3g} kWh{_change(kwh, kwh - before)}")
    if plan.hours is not None and plan.usd is not None:
        figures.append(hours(plan.hours) + _change(plan.hours, other.hours_change))
        figures.append(usd(plan.usd) + _change(plan.usd, other.usd_change))
    more = 0 if best is None else gpus - sum(best.gpus.values())
    figures.append(gpus_text(plan.gpus) + (f" ({more:+,} GPUs)" if more else ""))
    kind = "the same plan" if other.same_plan else f"then {plan.summary}"
    missed = "" if other.possible else "; the goals cannot be met"
    return f"With {other.what}: {', '.join(figures)}, {kind}{missed}."


def _change(value: float, change: float | None) -> str:
    """From what it was, as a share of that."""
    return "" if change is None or value == change else f" ({change / (value - change):+.1%})"


def _table(points: tuple[FrontierPlan, ...]) -> "RenderableType":
    from astra.report.text_table import TableColumn, TextTable

    columns = (
        *(TableColumn(name) for name in ("hours", "USD")),
        TableColumn("GPUs", right=False, words=True),
    )
    rows = tuple((f"{p.hours:,.1f}", f"{p.usd:,.0f}", gpus_text(p.gpus)) for p in points)
    return TextTable(columns, rows)
