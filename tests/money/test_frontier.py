"""The frontier of points against comparing all with all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.money.frontier import frontier, knee, steps_along

points = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=0, max_size=40)


@pytest.mark.slow
@given(points)
def test_the_frontier_is_what_nothing_else_beats(pairs: list[tuple[int, int]]) -> None:
    hours = np.array([float(h) for h, _ in pairs])
    usd = np.array([float(u) for _, u in pairs])
    rows = frontier(hours, usd).tolist()
    expected = []
    for row, (h, u) in enumerate(pairs):
        beaten = any(
            (h2 <= h and u2 <= u) and ((h2, u2) != (h, u) or other < row)
            for other, (h2, u2) in enumerate(pairs)
            if other != row
        )
        if not beaten:
            expected.append(row)
    assert sorted(rows) == expected
    assert [pairs[row] for row in rows] == sorted(pairs[row] for row in rows)


def test_the_knee_is_where_the_curve_bends() -> None:
    hours = np.array([1.0, 1.2, 1.5, 4.0, 9.0])
    usd = np.array([100.0, 60.0, 20.0, 15.0, 12.0])
    assert knee(hours, usd) == 2
    assert knee(hours[:2], usd[:2]) == 1


def test_a_step_along_the_frontier_is_hours_for_dollars() -> None:
    saved, more = steps_along(np.array([1.0, 3.0, 7.0]), np.array([50.0, 40.0, 35.0]))
    assert saved.tolist() == [0.0, 2.0, 4.0] and more.tolist() == [0.0, 10.0, 5.0]


def test_of_plans_that_cost_about_the_same_the_knee_is_the_fastest() -> None:
    hours, usd = np.array([144.0, 700.0, 5352.0]), np.array([1.09, 1.03, 1.0])
    assert knee(hours, usd) == 0
    assert knee(hours[[0, 2]], usd[[0, 2]]) == 0
