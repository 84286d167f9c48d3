"""The plots are well-formed, and dots lie where their numbers say."""

import re
from xml.etree import ElementTree

import pytest
from tools.accuracy.plots import PlottedRun, all_runs_plot, small_multiples

DOTS = [
    PlottedRun("a", 1.0, 1.0, False),
    PlottedRun("a", 10.0, 20.0, True),
    PlottedRun("b & c", 0.1, 0.1, False),
]


def circles(page: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(page)
    found = root.iter("{http://www.w3.org/2000/svg}circle")
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in found]


def test_what_is_right_lies_on_the_diagonal_and_what_is_too_long_above_it() -> None:
    (line,) = re.findall(
        r"<line x1='([\d.]+)' y1='([\d.]+)' x2='([\d.]+)' y2='([\d.]+)'", all_runs_plot(DOTS, "t")
    )
    x1, y1, x2, y2 = map(float, line)
    dots = circles(all_runs_plot(DOTS, "t"))
    above = [y1 + (x - x1) / (x2 - x1) * (y2 - y1) - y for x, y in dots]
    assert above[0] == pytest.approx(0, abs=0.2) and above[1] == pytest.approx(0, abs=0.2)
    assert above[2] > 20


def test_every_group_has_its_square() -> None:
    page = small_multiples(DOTS)
    assert len(circles(page)) == 3
    assert "a (2, 41%)" in page and "b &amp; c (1, 0%)" in page  # mean of the logs: sqrt(2) - 1
