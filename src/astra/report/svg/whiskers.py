"""The steps of an answer's plans with their intervals, on one axis."""

from collections.abc import Sequence

from astra.report.priced_plan import seconds
from astra.report.svg.axis import number, picture, text, text_width, ticks, time_labels
from astra.report.svg.colours import paint
from astra.report.svg.priced import Document, priced_plans
from astra.report.svg.shapes import line, rect

TITLE = "A step of each plan, and where it lies four times of five"
ROW_PX, NAMED_ROW_PX = 22.0, 36.0  # a plan's name beside its line, or above it
MOST_NAME = 0.54  # of the width, that names may take beside the lines
RANK_PX, RIGHT_PX = 22.0, 62.0


def whiskers_svg(document: Document, width: float) -> str:
    """A line from the low to the high end of each step, a dot at the step; zero is not in view."""
    plans = priced_plans(document)
    low, high = min(p["step_s_low"] for p in plans), max(p["step_s_high"] for p in plans)
    names = [plan["summary"] for plan in plans]
    longest = max(text_width(name, 12) for name in names) + RANK_PX + 12
    beside = longest <= MOST_NAME * width
    left, row_px = (longest, ROW_PX) if beside else (6.0, NAMED_ROW_PX)
    pad = 0.04 * (high - low)
    scale = (width - left - RIGHT_PX) / (high - low + 2 * pad)

    def x(at_s: float) -> float:
        return left + (at_s - low + pad) * scale

    bottom, first = len(plans) * row_px, plans[0]
    band = x(first["step_s_high"]) - x(first["step_s_low"])
    parts = [rect(x(first["step_s_low"]), 0, band, bottom, paint("sunk"))]
    values = ticks(low - pad, high + pad, 5)
    for at_s, label in zip(values, time_labels(values), strict=True):
        parts.append(line(x(at_s), 0, x(at_s), bottom, "line"))
        parts.append(text(x(at_s), bottom + 14, label, anchor="middle"))
    for row, (plan, name) in enumerate(zip(plans, names, strict=True)):
        y, strong = row * row_px + (row_px - 10 if not beside else row_px / 2), row == 0
        colour, weight = ("ink", 600) if strong else ("ink2", 400)
        name_y = y + 4 if beside else y - 12
        rank = str(plan["rank"])
        parts.append(text(RANK_PX - 8, name_y, rank, size=12, colour="ink3", anchor="end"))
        parts.append(text(RANK_PX, name_y, name, size=12, colour=colour, weight=weight))
        ends = [x(plan[end]) for end in ("step_s_low", "step_s", "step_s_high")]
        parts += _whisker(ends, y, _hint(plan))
        step = seconds(plan["step_s"])
        parts.append(text(width, y + 4, step, size=12, colour=colour, anchor="end", weight=weight))
    return picture(width, bottom + 22, _sentence(plans), parts)


def whisker_cell(plan: Document, plans: Sequence[Document], width: float = 120) -> str:
    """One line of the same, for a table that has a plan a row."""
    low, high = min(p["step_s_low"] for p in plans), max(p["step_s_high"] for p in plans)
    scale = (width - 10) / (high - low)
    ends = [5 + (plan[end] - low) * scale for end in ("step_s_low", "step_s", "step_s_high")]
    return picture(width, 14, _hint(plan), _whisker(ends, 7, _hint(plan)))


def _whisker(ends: Sequence[float], y: float, hint: str) -> list[str]:
    at = f'cx="{number(ends[1])}" cy="{number(y)}" r="4"'
    dot = f'<circle {at} fill="{paint("ink")}" stroke="{paint("panel")}"><title>{hint}</title>'
    return [line(ends[0], y, ends[2], y, "ink3", 1.5), f"{dot}</circle>"]


def _hint(plan: Document) -> str:
    low, high = seconds(plan["step_s_low"]), seconds(plan["step_s_high"])
    return f"plan {plan['rank']}: {seconds(plan['step_s'])}, {low} to {high} four times of five"


def _sentence(plans: Sequence[Document]) -> str:
    steps = ", ".join(f"{plan['rank']}: {seconds(plan['step_s'])}" for plan in plans)
    return f"{TITLE}. {steps}"
