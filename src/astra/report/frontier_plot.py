"""The frontier of hours and dollars as a picture: shapes, SVG of them, HTML or PNG of that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from astra.errors import InputError, shorten
from astra.report.amounts import tokens, usd
from astra.report.document import AnswerDocument
from astra.report.money import money_notes, money_sentence, place_of

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 92, 24, 46, 58
INK, PALE = "#222222", "#bbbbbb"
FONT = "font-family='Helvetica,Arial,sans-serif'"
HALO = "stroke='#ffffff' stroke-width='3'"  # keeps words off what they cross
PICTURE_FORMATS = ("svg", "png", "html")
LABEL_HEIGHT = 11  # height of the words beside a dot
LABEL_SHIFT, MAX_LABEL_ROWS = 90.0, 30  # how far words may be slid, and in how many rows of them
BOXES_PER_LINE = 60  # of a line between two plans, which words keep off


@dataclass(frozen=True, slots=True)
class Line:
    """Straight, from one place to another."""

    start: tuple[float, float]
    end: tuple[float, float]
    pale: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A plan; the answer is filled. Those that others beat are small crosses: two lines."""

    at: tuple[float, float]
    radius: float
    filled: bool


@dataclass(frozen=True, slots=True)
class Text:
    """Words beside a place."""

    at: tuple[float, float]
    text: str
    size: int = 12
    anchor: str = "start"  # start, middle or end


Shape = Line | Dot | Text
Box = tuple[float, float, float, float]  # left, top, right, bottom


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


def plot(answer: AnswerDocument, file_format: str) -> str | bytes:
    """The picture in this format."""
    shapes = frontier_shapes(answer)
    if file_format == "png":
        picture: bytes = _png_renderer().svg2png(bytestring=svg(shapes).encode(), scale=2)
        return picture
    return svg(shapes) if file_format == "svg" else html(answer, shapes)


def frontier_shapes(answer: AnswerDocument) -> list[Shape]:
    """Dollars over hours, both logarithmic; plans joined; goals as dashed lines; all labelled."""
    market, points = answer.market, answer.frontier
    assert market is not None
    hours = [point.hours or 0.0 for point in points]
    dollars = [point.usd or 0.0 for point in points]
    view = _PlotScale(
        [*hours, *_goal_near(market.deadline_hours, hours)],
        [*dollars, *_goal_near(market.budget_usd, dollars)],
    )
    first = points[0]
    title = f"{first.plan.model.name}, {tokens(market.tokens)} tokens: dollars against hours"
    shapes: list[Shape] = [Text((WIDTH / 2, 24), title, 15, "middle"), *view.frame()]
    if market.budget_usd is not None and view.shows(hours[0], market.budget_usd):
        _, y = view.at(hours[0], market.budget_usd)
        shapes.append(Line((LEFT, y), (WIDTH - RIGHT, y), dashed=True))
        label = f"budget {usd(market.budget_usd)}"
        shapes.append(Text((WIDTH - RIGHT - 4, y - 5), label, 12, "end"))
    if market.deadline_hours is not None and view.shows(market.deadline_hours, dollars[0]):
        x, _ = view.at(market.deadline_hours, dollars[0])
        shapes.append(Line((x, TOP), (x, HEIGHT - BOTTOM), dashed=True))
        beside = Text((x + 5, TOP + 14), f"deadline {market.deadline_hours:,.4g} h")
        before = replace(beside, at=(x - 5, TOP + 14), anchor="end")
        shapes.append(beside if _is_inside(_box(beside)) else before)
    places = [view.at(h, d) for h, d in zip(hours, dollars, strict=True)]
    shapes += [Line(a, b) for a, b in pairwise(places)]
    crosses = [view.at(h, d) for h, d in market.beaten if view.shows(h, d)]
    shapes += [line for at in crosses for line in _cross(at)]
    if crosses:
        legend = "x: simulated, beaten in both hours and dollars"
        shapes.append(Text((WIDTH - RIGHT, TOP - 10), legend, 11, "end"))
    names = {market.fastest: "fastest", market.cheapest: "cheapest", market.knee: "knee"}
    names[market.chosen] = f"answer, {names.get(market.chosen, '')}".rstrip(", ")
    labels: list[Text] = [shape for shape in shapes if isinstance(shape, Text)]  # of goals, axes
    shapes = [shape for shape in shapes if not isinstance(shape, Text)]
    upright = [shape for shape in shapes if isinstance(shape, Line) and shape.dashed]
    goals = [box for line in upright for box in _boxes_along((line.start, line.end))]
    dots = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    taken = [*map(_box, labels), *_boxes_along(places), *goals, *dots]
    leaders: list[Shape] = []
    for row, (point, place) in enumerate(zip(points, places, strict=True), 1):
        chosen = row == market.chosen
        shapes.append(Dot(place, 6.0 if chosen else 4.0, chosen))
        gpus = " + ".join(f"{count} {name}" for name, count in point.gpus.items())
        label = f"{point.rank}: {gpus}" + (f" ({names[row]})" if row in names else "")
        text = _label(label, place, taken)
        labels.append(text)
        taken.append(_box(text))
        leaders += _leader(place, _box(text))
    return [*leaders, *shapes, *labels]


def _cross(at: tuple[float, float], half: float = 2.5) -> list[Shape]:
    x, y = at
    return [
        Line((x - half, y - half), (x + half, y + half), pale=True),
        Line((x - half, y + half), (x + half, y - half), pale=True),
    ]


def _leader(place: tuple[float, float], box: Box) -> list[Shape]:
    """A thin line from a dot to its words, where they lie farther off than beside it."""
    left, top, right, bottom = box
    x = min(max(place[0], left), right)
    y = bottom if bottom < place[1] else top
    far = math.hypot(x - place[0], y - place[1])
    return [Line(place, (x, y), pale=True)] if far > 2 * LABEL_HEIGHT else []


def _label(label: str, place: tuple[float, float], taken: Sequence[Box]) -> Text:
    """Words beside a dot: at its nearest side where they cover nothing else and stay inside.

    Below and above by turns, ever farther, then also slid aside; where all is taken, what covers
    the least.
    """
    inside = [text for text in _label_places(label, place) if _is_inside(_box(text))]
    least_covered = math.inf
    best = Text((place[0] + 9.0, place[1] - 7.0), label, LABEL_HEIGHT, "start")
    for text in inside:
        covered = sum(_overlap(_box(text), box) for box in taken)
        if covered < least_covered:
            least_covered, best = covered, text
        if not covered:
            break
    return best


def _label_places(label: str, place: tuple[float, float]) -> list[Text]:
    """Places for words, the nearest first."""
    x, y = place
    sides = ((9.0, "start"), (-8.0, "end"))
    near = [
        Text((x + beside, y + below), label, LABEL_HEIGHT, anchor)
        for step in range(8)
        for below in (-7.0 - LABEL_HEIGHT * step, 17.0 + LABEL_HEIGHT * step)
        for beside, anchor in sides
    ]
    far = [
        Text((x + beside + aside, y + below), label, LABEL_HEIGHT, anchor)
        for step in range(MAX_LABEL_ROWS)
        for below in (-7.0 - LABEL_HEIGHT * step, 17.0 + LABEL_HEIGHT * step)
        for beside, anchor in sides
        for aside in (0.0, -LABEL_SHIFT, LABEL_SHIFT, -2 * LABEL_SHIFT, 2 * LABEL_SHIFT)
    ]
    return [*near, *far]


def _overlap(one: Box, other: Box) -> float:
    """The area that two boxes share; lines are thin, dots and words are not."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def _boxes_along(places: Sequence[tuple[float, float]]) -> list[Box]:
    """Small boxes on the line that joins these places."""
    boxes: list[Box] = []
    for (x, y), (right, low) in pairwise(places):
        for part in range(BOXES_PER_LINE + 1):
            at = x + (right - x) * part / BOXES_PER_LINE, y + (low - y) * part / BOXES_PER_LINE
            boxes.append((at[0] - 1, at[1] - 1, at[0] + 1, at[1] + 1))
    return boxes


def _box(text: Text) -> Box:
    """What words take up, about: a letter is 0.62 of its height wide."""
    x, y = text.at
    wide = 0.62 * text.size * len(text.text)
    left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[text.anchor]
    return left, y - text.size, left + wide, y + 2


def _is_inside(box: Box) -> bool:
    left, top, right, bottom = box
    return left >= LEFT and right <= WIDTH - 4 and top >= TOP and bottom <= HEIGHT - BOTTOM


def _goal_near(goal: float | None, values: Sequence[float]) -> list[float]:
    near = goal is not None and min(values) / 10 <= goal <= max(values) * 10
    return [goal] if near and goal else []


class _PlotScale:
    """Where hours and dollars lie in the picture."""

    def __init__(self, hours: Sequence[float], dollars: Sequence[float]) -> None:
        self.x, self.y = _padded(hours), _padded(dollars)

    def at(self, hours: float, dollars: float) -> tuple[float, float]:
        across = (math.log(max(hours, 1e-9)) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log(max(dollars, 1e-9)) - self.y[0]) / (self.y[1] - self.y[0])
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * wide, TOP + (1 - up) * high

    def shows(self, hours: float, dollars: float) -> bool:
        x, y = self.at(hours, dollars)
        return LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM

    def frame(self) -> list[Shape]:
        """Axes, round numbers along them, and what they count."""
        right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
        shapes: list[Shape] = [
            Line((LEFT, TOP), (LEFT, low)),
            Line((LEFT, low), (right, low)),
            Text((WIDTH / 2, HEIGHT - 12), "wall time [h]", 12, "middle"),
            Text((LEFT - 6, TOP - 10), "total [USD]", 12, "end"),
        ]
        for value in _round_numbers(*self.x):
            x, _ = self.at(value, 1.0)
            shapes.append(Line((x, low), (x, low + 5)))
            shapes.append(
                Text(
                    (x, low + 19), f"{value:,.0f}" if value >= 1000 else f"{value:g}", 11, "middle"
                )
            )
        for value in _round_numbers(*self.y):
            _, y = self.at(1.0, value)
            shapes.append(Line((LEFT, y), (right, y), pale=True))
            shapes.append(Text((LEFT - 6, y + 4), f"{value:,.0f}", 11, "end"))
        return shapes


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = (math.log(max(f(values), 1e-9)) for f in (min, max))
    pad = max(0.08 * (high - low), 0.02)
    return low - pad, high + pad


def _round_numbers(low: float, high: float) -> list[float]:
    """A few round numbers between two logarithms: 1, 2, 5 of every ten, or six even steps.

    >>> _round_numbers(math.log(500), math.log(6000)), _round_numbers(math.log(90), math.log(205))
    ([500.0, 1000.0, 2000.0, 5000.0], [100.0, 120.0, 140.0, 160.0, 180.0, 200.0])
    """
    start, stop = math.exp(low), math.exp(high)
    if stop / start > 5:
        powers = range(math.floor(math.log10(start)), math.ceil(math.log10(stop)) + 1)
        numbers = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    else:
        rough = (stop - start) / 6
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= rough)
        numbers = [step * n for n in range(math.ceil(start / step), math.floor(stop / step) + 1)]
    return [value for value in numbers if start <= value <= stop]


def svg(shapes: Sequence[Shape]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}'>"
    )
    ground = "<rect width='100%' height='100%' fill='#ffffff'/>"
    return "\n".join([head, ground, *map(_svg, shapes), "</svg>"]) + "\n"


def _svg(shape: Shape) -> str:
    if isinstance(shape, Line):
        (a, b), (c, d) = shape.start, shape.end
        dashes = " stroke-dasharray='7 5'" if shape.dashed else ""
        colour = PALE if shape.pale else INK
        return (
            f"<line x1='{a:.1f}' y1='{b:.1f}' x2='{c:.1f}' y2='{d:.1f}' stroke='{colour}'{dashes}/>"
        )
    if isinstance(shape, Dot):
        fill = INK if shape.filled else "#ffffff"
        x, y = shape.at
        return (
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{shape.radius}' fill='{fill}' stroke='{INK}'/>"
        )
    x, y = shape.at
    rest = f"text-anchor='{shape.anchor}' {FONT}>{escape(shape.text)}</text>"
    place = f"<text x='{x:.1f}' y='{y:.1f}' font-size='{shape.size}' fill='{INK}' "
    return f"{place}{HALO} {rest}\n{place}{rest}"


def html(answer: AnswerDocument, shapes: Sequence[Shape]) -> str:
    """The picture and the frontier as a table, in one file that needs no other."""
    assert answer.market is not None
    rows = []
    best = answer.frontier[answer.market.chosen - 1]
    for point in answer.frontier:
        money = point.money
        assert money is not None and point.hours is not None
        assert point.usd is not None and point.usd_per_hour is not None
        places = "; ".join(dict.fromkeys(place_of(rent) for rent in money.rents))
        cells = (
            str(point.rank),
            f"{point.hours:,.1f}",
            f"{point.usd:,.0f}",
            f"{point.usd_per_hour:,.2f}",
            f"{money.usd_per_million_tokens:.4g}",
            " + ".join(f"{count} {name}" for name, count in point.gpus.items()),
            places,
            point.summary,
        )
        mark = " class='answer'" if point is best else ""
        rows.append(f"<tr{mark}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    names = ("rank", "hours", "USD", "USD/h", "USD/Mtok", "GPUs", "where", "plan")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Hours and dollars"
        "</title><style>body{font:14px Helvetica,Arial,sans-serif;margin:2em;max-width:60em}"
        "td,th{padding:2px 10px 2px 0;text-align:left;vertical-align:top}"
        ".answer{font-weight:bold}</style></head><body>"
        f"<p>{escape(money_sentence(best))}</p>{svg(shapes)}<table><tr>"
        f"{''.join(f'<th>{name}</th>' for name in names)}</tr>{''.join(rows)}</table>"
        f"{_note_list(answer)}</body></html>\n"
    )


def _note_list(answer: AnswerDocument) -> str:
    """Warnings and notes, as the page in a terminal has them."""
    assert answer.market is not None
    notes = money_notes(answer, answer.market)
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in notes)}</ul>" if notes else ""
