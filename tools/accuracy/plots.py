"""Predicted against measured steps as SVG, drawn without a library: dots on logarithmic axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

DENSE_COLOUR, MOE_COLOUR, LINE_COLOUR, FRAME_COLOUR, TEXT_COLOUR = (
    "#2f6db5",
    "#d9822b",
    "#888888",
    "#bbbbbb",
    "#555555",
)
BAND_FRACTION = 0.10  # shaded on either side of the diagonal
FONT = "font-family='Helvetica,Arial,sans-serif'"


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """One run."""

    group: str
    measured_s: float
    predicted_s: float
    experts: bool


def all_runs_plot(dots: Sequence[PlottedRun], title: str) -> str:
    """All runs in one square."""
    side, edge = 460, 52
    panel = _Panel(dots, edge, 34, side - edge - 18)
    parts = [_text(side / 2, 20, title, 14), *panel.draw(dots, 2.2), *panel.axis_labels()]
    parts += [_text(edge + 12, 52, "● dense", 12, DENSE_COLOUR, "start")]
    parts += [_text(edge + 12, 68, "● mixture of experts", 12, MOE_COLOUR, "start")]
    middle = 34 + panel.side / 2
    parts.append(_text(edge + panel.side / 2, side + 16, "measured step [s]", 12))
    parts.append(
        f"<text x='14' y='{middle}' transform='rotate(-90 14 {middle})' font-size='12' "
        f"fill='{TEXT_COLOUR}' text-anchor='middle' {FONT}>predicted step [s]</text>"
    )
    return _page(side, side + 26, parts)


def small_multiples(dots: Sequence[PlottedRun], across: int = 5) -> str:
    """One square for each group."""
    groups = sorted({dot.group for dot in dots})
    side, gap = 150, 34
    parts = []
    for place, group in enumerate(groups):
        row, column = divmod(place, across)
        x, y = 12 + column * (side + 16), 26 + row * (side + gap)
        group_dots = [dot for dot in dots if dot.group == group]
        off = math.exp(_mean([abs(math.log(d.predicted_s / d.measured_s)) for d in group_dots])) - 1
        parts.append(_text(x + side / 2, y - 8, f"{group} ({len(group_dots)}, {off:.0%})", 11))
        parts += _Panel(group_dots, x, y, side).draw(group_dots, 2.0)
    rows = -(-len(groups) // across)
    return _page(24 + across * (side + 16) - 16, 26 + rows * (side + gap), parts)


class _Panel:
    """A square with the same logarithmic axis either way."""

    def __init__(self, dots: Sequence[PlottedRun], x: float, y: float, side: float) -> None:
        seconds = [s for dot in dots for s in (dot.measured_s, dot.predicted_s)]
        low, high = math.log10(min(seconds)), math.log10(max(seconds))
        pad = max(0.05 * (high - low), 0.05)
        self.low, self.high = low - pad, high + pad
        self.x, self.y, self.side = x, y, side

    def at(self, measured_s: float, predicted_s: float) -> tuple[float, float]:
        across = (math.log10(measured_s) - self.low) / (self.high - self.low)
        up = (math.log10(predicted_s) - self.low) / (self.high - self.low)
        return self.x + across * self.side, self.y + (1 - up) * self.side

    def draw(self, dots: Sequence[PlottedRun], radius: float) -> list[str]:
        """Frame, band, diagonal and dots."""
        wide = math.log10(1 + BAND_FRACTION) / (self.high - self.low) * self.side
        x, y, end = self.x, self.y, self.side
        band = (
            (x, y + end - wide), (x, y + end), (x + wide, y + end),
            (x + end, y + wide), (x + end, y), (x + end - wide, y),
        )  # fmt: skip
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in band)
        shapes = [
            f"<rect x='{x}' y='{y}' width='{end}' height='{end}' fill='none' "
            f"stroke='{FRAME_COLOUR}'/>",
            f"<polygon points='{corners}' fill='{LINE_COLOUR}' fill-opacity='0.18'/>",
            f"<line x1='{x}' y1='{y + end}' x2='{x + end}' y2='{y}' stroke='{LINE_COLOUR}'/>",
        ]
        for experts, colour in ((False, DENSE_COLOUR), (True, MOE_COLOUR)):
            steps_s = sorted((d.measured_s, d.predicted_s) for d in dots if d.experts == experts)
            places = [self.at(*seconds) for seconds in steps_s]
            circles = [f"<circle cx='{a:.1f}' cy='{b:.1f}' r='{radius}'/>" for a, b in places]
            shapes.append(f"<g fill='{colour}' fill-opacity='0.55'>{''.join(circles)}</g>")
        return shapes

    def axis_labels(self) -> list[str]:
        """Powers of ten along both axes."""
        labels = []
        for power in range(math.ceil(self.low), math.floor(self.high) + 1):
            left, _ = self.at(10.0**power, 10.0**power)
            _, top = self.at(10.0**power, 10.0**power)
            labels.append(_text(left, self.y + self.side + 16, f"{10.0**power:g}", 11))
            labels.append(_text(self.x - 6, top + 4, f"{10.0**power:g}", 11, TEXT_COLOUR, "end"))
        return labels


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _text(
    x: float, y: float, text: str, size: int, colour: str = TEXT_COLOUR, anchor: str = "middle"
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}' "
        f"text-anchor='{anchor}' {FONT}>{escape(text)}</text>"
    )


def _page(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}'>"
    )
    ground = "<rect width='100%' height='100%' fill='#ffffff'/>"
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"
