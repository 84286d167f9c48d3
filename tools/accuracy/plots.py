"""Predicted against measured steps as SVG: dots on logarithmic axes, by matplotlib."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {False: "#2f6db5", True: "#d9822b"}  # dense, mixture of experts
LINE_COLOUR = "#888888"
DOTS_PER_INCH = 150
BAND = 1.10  # times the measured step: shaded on either side of the diagonal


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """One run."""

    group: str
    measured_s: float
    predicted_s: float
    experts: bool


def all_runs_plot(dots: Sequence[PlottedRun], title: str) -> Figure:
    """All runs in one square."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, dots, 12)
    axes.set(title=title, xlabel="measured step [s]", ylabel="predicted step [s]")
    axes.legend(frameon=False, loc="upper left")
    return figure


def small_multiples(dots: Sequence[PlottedRun], across: int = 5) -> Figure:
    """One square for each group, its runs and their mean error above it."""
    groups = sorted({dot.group for dot in dots})
    rows = -(-len(groups) // across)
    figure = Figure(figsize=(9, 2 * rows), layout="constrained")
    squares = figure.subplots(rows, across, squeeze=False).flat
    for group, axes in zip(groups, squares, strict=False):
        mine = [dot for dot in dots if dot.group == group]
        logs = [abs(math.log(dot.predicted_s / dot.measured_s)) for dot in mine]
        draw(axes, mine, 8)
        axes.set_title(f"{group} ({len(mine)}, {math.expm1(sum(logs) / len(logs)):.0%})", size=8)
        axes.tick_params(which="both", labelbottom=False, labelleft=False, length=0)
    for axes in squares:  # those that are left
        axes.set_axis_off()
    return figure


def draw(axes: Axes, dots: Sequence[PlottedRun], size: float) -> None:
    """Diagonal, band and dots, with the same logarithmic axis either way."""
    seconds = [s for dot in dots for s in (dot.measured_s, dot.predicted_s)]
    pad = max((max(seconds) / min(seconds)) ** 0.05, 1.12)
    ends = [min(seconds) / pad, max(seconds) * pad]
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    low, high = ([end * side for end in ends] for side in (1 / BAND, BAND))
    axes.fill_between(ends, low, high, color=LINE_COLOUR, alpha=0.18, linewidth=0)
    axes.plot(ends, ends, color=LINE_COLOUR, linewidth=0.8)
    for experts, label in ((False, "dense"), (True, "mixture of experts")):
        mine = sorted((d.measured_s, d.predicted_s) for d in dots if d.experts == experts)
        if mine:
            measured, predicted = zip(*mine, strict=True)
            axes.scatter(
                measured,
                predicted,
                s=size,
                alpha=0.55,
                linewidth=0,
                color=COLOURS[experts],
                label=label,
                rasterized=True,  # thousands of dots are smaller as a picture
            )


def write(figure: Figure, path: Path) -> None:
    """The same bytes for the same figure: no date, no random names; words stay words."""
    with mpl.rc_context({"svg.hashsalt": "accuracy", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None}, dpi=DOTS_PER_INCH)
