"""The frontier of hours and dollars drawn in a terminal, without colour."""

import math
from collections.abc import Sequence
from itertools import pairwise

from astra.search.answer import Market
from astra.search.priced import Priced

WIDTH, HEIGHT = 60, 14
LETTERS = "123456789abcdefghijklmnopqrstuvwxyz"


def drawn(points: Sequence[Priced], market: Market) -> str:
    """Dollars over hours, both logarithmic: plans by their ranks, joined; goals as lines."""
    hours = [point.hours or 0.0 for point in points]
    dollars = [point.usd or 0.0 for point in points]
    across = _Axis([*hours, *_near(market.deadline_hours, hours)], WIDTH)
    up = _Axis([*dollars, *_near(market.budget_usd, dollars)], HEIGHT)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    _goal_lines(grid, across, up, market)
    places = [(across.at(h), HEIGHT - 1 - up.at(d)) for h, d in zip(hours, dollars, strict=True)]
    for (x0, y0), (x1, y1) in pairwise(places):
        for step in range(max(abs(x1 - x0), abs(y1 - y0)) + 1):
            share = step / max(abs(x1 - x0), abs(y1 - y0), 1)
            grid[round(y0 + share * (y1 - y0))][round(x0 + share * (x1 - x0))] = "."
    for point, (x, y) in reversed(list(zip(points, places, strict=True))):
        grid[y][x] = LETTERS[point.rank - 1] if point.rank <= len(LETTERS) else "o"
    x, y = places[market.chosen - 1]
    grid[y][x] = "*"
    labels = {0: f"${up.high:,.0f}", HEIGHT - 1: f"${up.low:,.0f}"}
    width = max(map(len, labels.values()))
    lines = [
        f"{labels.get(row, ''):>{width}} |{''.join(cells).rstrip()}"
        for row, cells in enumerate(grid)
    ]
    low, high = f"{across.low:,.0f} h", f"{across.high:,.0f} h"
    bottom = f"{'':>{width}}  {low}{high:>{WIDTH - len(low)}}"
    return "\n".join([*lines, f"{'':>{width}} +{'-' * WIDTH}", bottom])


def _near(goal: float | None, values: Sequence[float]) -> list[float]:
    """A goal belongs into the picture unless it is far off."""
    near = goal is not None and min(values) / 10 <= goal <= max(values) * 10
    return [goal] if near and goal else []


def _goal_lines(grid: list[list[str]], across: "_Axis", up: "_Axis", market: Market) -> None:
    budget, deadline = market.budget_usd, market.deadline_hours
    if budget is not None and up.holds(budget):
        line = ["-"] * (WIDTH - 7) + list(" budget")
        grid[HEIGHT - 1 - up.at(budget)] = line
    if deadline is not None and across.holds(deadline):
        column = across.at(deadline)
        for line in grid:
            line[column] = "+" if line[column] == "-" else "|"
        text = "deadline"
        row = next(line for line in grid if "b" not in line)  # without the budget's label
        if column + 1 + len(text) <= WIDTH:
            row[column + 1 : column + 1 + len(text)] = list(text)
        else:
            row[column - len(text) : column] = list(text)


class _Axis:
    """Values on a logarithmic scale of so many characters."""

    def __init__(self, values: Sequence[float], cells: int) -> None:
        self.low, self.high = min(values), max(values)
        self.cells = cells

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def at(self, value: float) -> int:
        if self.high <= self.low or self.low <= 0:
            return 0
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(max(round(share * (self.cells - 1)), 0), self.cells - 1)
