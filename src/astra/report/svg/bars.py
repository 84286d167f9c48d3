"""Bars of one quantity: from zero to the right, or to both sides of what there is."""

from collections.abc import Sequence
from dataclasses import dataclass

from astra.report.svg.axis import picture, text, text_width
from astra.report.svg.colours import paint
from astra.report.svg.shapes import line, rect

BAR_PX, ROW_PX, NAMED_ROW_PX = 12.0, 22.0, 38.0
MOST_NAME = 0.4  # of the width, that names may take beside the bars


@dataclass(frozen=True, slots=True)
class Row:
    """A bar: what it is, how long, and how that reads. Without a value there is none."""

    name: str
    value: float | None
    words: str
    strong: bool = False


def bars_svg(rows: Sequence[Row], width: float, title: str) -> str:
    """Lengths from zero."""
    left, right, row_px = _room(rows, width)
    most = max((row.value or 0.0 for row in rows), default=0.0) or 1.0
    parts = []
    for place, row in enumerate(rows):
        y = (place + 1) * row_px - ROW_PX
        parts += _words(row, y, width, row_px > ROW_PX)
        if row.value is not None:
            long = max(row.value / most * (width - left - right), 1.0)
            fill = paint("ink" if row.strong else "other")
            parts.append(rect(left, y + 5, long, BAR_PX, fill, f"{row.name}: {row.words}"))
    return picture(width, len(rows) * row_px, _sentence(title, rows), parts)


def diverging_svg(rows: Sequence[Row], width: float, title: str) -> str:
    """Less to the left in blue, more to the right in brown."""
    left, right, row_px = _room(rows, width)
    values = [row.value or 0.0 for row in rows]
    less, more = -min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    scale = (width - left - right) / ((less + more) or 1.0)
    zero, parts = left + less * scale, []
    for place, row in enumerate(rows):
        y = (place + 1) * row_px - ROW_PX
        parts += _words(row, y, width, row_px > ROW_PX)
        if row.value is not None:
            long = max(abs(row.value) * scale, 1.0)
            start, fill = (zero - long, "backward") if row.value < 0 else (zero, "pipeline_comm")
            hint = f"{row.name}: {row.words}"
            parts.append(rect(max(start, 0.0), y + 5, long, BAR_PX, paint(fill), hint))
    if row_px == ROW_PX:
        parts.append(line(zero, 0, zero, len(rows) * row_px, "ink3"))
    else:  # so that it crosses no name
        bottoms = [(place + 1) * row_px for place in range(len(rows))]
        parts += [line(zero, y - ROW_PX + 3, zero, y - 2, "ink3") for y in bottoms]
    return picture(width, len(rows) * row_px, _sentence(title, rows), parts)


def _room(rows: Sequence[Row], width: float) -> tuple[float, float, float]:
    """Left of the bars, right of them, and the height of a row: names stand above where long."""
    right = max(text_width(row.words, 12) for row in rows) + 14
    longest = max(text_width(row.name, 12) for row in rows) + 14
    if longest <= MOST_NAME * width:
        return longest, right, ROW_PX
    return 0.0, right, NAMED_ROW_PX


def _words(row: Row, y: float, width: float, above: bool) -> list[str]:
    name_y = y + 1 if above else y + 15
    colour, weight = ("ink", 600) if row.strong else ("ink2", 400)
    return [
        text(0, name_y, row.name, size=12, colour=colour, weight=weight),
        text(width, y + 15, row.words, size=12, colour="ink", anchor="end", weight=600),
    ]


def _sentence(title: str, rows: Sequence[Row]) -> str:
    return f"{title}. " + "; ".join(f"{row.name}: {row.words}" for row in rows)
