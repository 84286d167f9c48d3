"""The pictures of the accuracy report: dots lie where their numbers say, groups apart."""

from pathlib import Path
from typing import Any

import pytest
from tools.accuracy import plots

DOTS = [
    plots.PlottedRun("a", 1.0, 1.0, False),
    plots.PlottedRun("a", 10.0, 20.0, True),
    plots.PlottedRun("b & c", 0.1, 0.1, False),
]


def places(axes: Any) -> list[tuple[float, float]]:
    """Of all dots of a square, as seconds."""
    scatters = [found for found in axes.collections if type(found).__name__ == "PathCollection"]
    return sorted((float(x), float(y)) for dots in scatters for x, y in dots.get_offsets())


def test_dots_lie_at_measured_and_predicted_seconds_on_equal_axes() -> None:
    axes: Any = plots.all_runs_plot(DOTS, "t").axes[0]
    assert places(axes) == [(0.1, 0.1), (1.0, 1.0), (10.0, 20.0)]
    assert axes.get_xlim() == axes.get_ylim() and axes.get_xscale() == axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "dense",
        "mixture of experts",
    ]


def test_every_group_has_its_square_and_no_square_is_left_empty() -> None:
    squares = plots.small_multiples(DOTS).axes
    shown = {axes.get_title(): places(axes) for axes in squares if axes.axison}
    assert shown == {  # errors are means of logarithms: sqrt(2) - 1
        "a (2, 41%)": [(1.0, 1.0), (10.0, 20.0)],
        "b & c (1, 0%)": [(0.1, 0.1)],
    }
    assert len(squares) == 5


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plots.write(plots.all_runs_plot(DOTS, "t"), tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one == two and b">measured step [s]</text>" in one
