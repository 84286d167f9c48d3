"""The frontier of hours and dollars drawn in a terminal, without colour."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from astra.cost.result import PricedPlan
from astra.recommend.market_result import MarketResult

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDTH, HEIGHT = 60, 14  # of the drawing, where there is room
MIN_WIDTH = 20  # characters across
LETTERS = "123456789abcdefghijklmnopqrstuvwxyz"
Grid = list[list[str]]


@dataclass(frozen=True, slots=True)
class FrontierDrawing:
    """The frontier, as wide as the screen allows."""

    points: Sequence[PricedPlan]
    market: MarketResult

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        text = draw_frontier(self.points, self.market, options.max_width)
        yield Text(text, no_wrap=True, overflow="ignore")


def draw_frontier(points: Sequence[PricedPlan], market: MarketResult, room: int = 80) -> str:
    """Dollars over hours, both logarithmic: plans by their ranks, joined; goals as lines."""
    hours = [point.hours or 0.0 for point in points]
    dollars = [point.usd or 0.0 for point in points]
    up = _Axis([*dollars, *_goal_near(market.budget_usd, dollars)], HEIGHT)
    labels = {0: f"${up.high:,.0f}", HEIGHT - 1: f"${up.low:,.0f}"}
    width = max(map(len, labels.values()))
    cells = max(min(WIDTH, room - width - 2), MIN_WIDTH)
    across = _Axis([*hours, *_goal_near(market.deadline_hours, hours)], cells)
    grid = [[" "] * cells for _ in range(HEIGHT)]
    row, column = _goal_lines(grid, across, up, market)
    places = [(across.at(h), HEIGHT - 1 - up.at(d)) for h, d in zip(hours, dollars, strict=True)]
    for (x0, y0), (x1, y1) in pairwise(places):
        for step in range(max(abs(x1 - x0), abs(y1 - y0)) + 1):
            share = step / max(abs(x1 - x0), abs(y1 - y0), 1)
            grid[round(y0 + share * (y1 - y0))][round(x0 + share * (x1 - x0))] = "."
    for point, (x, y) in reversed(list(zip(points, places, strict=True))):
        grid[y][x] = LETTERS[point.rank - 1] if point.rank <= len(LETTERS) else "o"
    x, y = places[market.chosen - 1]
    grid[y][x] = "*"
    _goal_words(grid, row, column)
    lines = [
        f"{labels.get(row, ''):>{width}} |{''.join(line).rstrip()}" for row, line in enumerate(grid)
    ]
    low, high = f"{across.low:,.0f} h", f"{across.high:,.0f} h"
    bottom = f"{'':>{width}}  {low}{high:>{cells - len(low)}}"
    return "\n".join([*lines, f"{'':>{width}} +{'-' * cells}", bottom])


def _goal_near(goal: float | None, values: Sequence[float]) -> list[float]:
    """A goal belongs into the picture unless it is far off."""
    near = goal is not None and min(values) / 10 <= goal <= max(values) * 10
    return [goal] if near and goal else []


def _goal_lines(
    grid: Grid, across: "_Axis", up: "_Axis", market: MarketResult
) -> tuple[int | None, int | None]:
    """Draw them; the budget's row and the deadline's column, where they are in the picture."""
    budget, deadline = market.budget_usd, market.deadline_hours
    row = column = None
    if budget is not None and up.holds(budget):
        row = HEIGHT - 1 - up.at(budget)
        grid[row] = ["-"] * across.cells
    if deadline is not None and across.holds(deadline):
        column = across.at(deadline)
        for line in grid:
            line[column] = "+" if line[column] == "-" else "|"
    return row, column


def _goal_words(grid: Grid, row: int | None, column: int | None) -> None:
    """What the lines are, where nothing else is drawn: as far right or up as can be."""
    if row is not None:
        text = " budget"
        starts = range(len(grid[row]) - len(text), -1, -1)
        _write_where_free(text, [(grid[row], start) for start in starts], "-")
    if column is not None:
        text = "deadline"
        sides = (column + 1, column - len(text))
        _write_where_free(text, [(line, start) for line in grid for start in sides], " ")


def _write_where_free(text: str, places: list[tuple[list[str], int]], free: str) -> None:
    """Write words at the first of these places that holds nothing but this."""
    for line, start in places:
        end = start + len(text)
        if start >= 0 and end <= len(line) and set(line[start:end]) == {free}:
            line[start:end] = text
            return


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
