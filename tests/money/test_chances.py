"""The chances of keeping goals, against a plain simulation of the step."""

import math
import random
from statistics import NormalDist
from typing import Any

import pytest

from astra.money.chances import Chances, RunFigures, chances_of
from astra.money.options import MoneyOptions, goals_of

RUN = RunFigures(hours=100.5, usd=1010.0, startup_hours=0.5, egress_usd=5.0, spread=1.08, fits=0.98)


def chances(**goals: Any) -> Chances:
    return chances_of(RUN, goals_of(MoneyOptions(**goals)))


@pytest.mark.parametrize(("deadline", "budget"), [(100.5, 1010.0), (104.0, 990.0), (95.0, 1100.0)])
def test_the_chances_are_the_shares_of_steps_drawn_at_random(
    deadline: float, budget: float
) -> None:
    dice, sigma = random.Random(1), math.log(RUN.spread) / NormalDist().inv_cdf(0.9)
    in_time = paid = 0
    for _ in range(20_000):
        hours = 0.5 + 100.0 * math.exp(dice.gauss(0, sigma))
        in_time += hours <= deadline
        paid += 5.0 + 1005.0 / 100.5 * hours <= budget
    found = chances(deadline=deadline, budget=budget)
    assert found.deadline == pytest.approx(in_time / 20_000, abs=0.015)
    assert found.budget == pytest.approx(paid / 20_000, abs=0.015)
    assert found.all == pytest.approx(0.98 * min(found.deadline or 0, found.budget or 0))


def test_a_goal_that_is_just_met_is_kept_in_one_case_of_two() -> None:
    assert chances(deadline=100.5).deadline == pytest.approx(0.5)
    assert chances(budget=1010.0).budget == pytest.approx(0.5)


def test_the_ends_of_the_interval_leave_out_one_case_of_ten_each() -> None:
    found = chances()
    assert found.deadline is None and found.budget is None and found.all == 0.98
    assert chances(deadline=found.hours_high).deadline == pytest.approx(0.9)
    assert chances(budget=found.usd_low).budget == pytest.approx(0.1)


def test_a_deadline_before_the_start_is_never_kept() -> None:
    assert chances(deadline=0.4).deadline == 0
