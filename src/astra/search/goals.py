"""Which points of a frontier meet the goals, or come nearest."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from astra.cost.result import PricedPlan
from astra.money.dollars import tokens_within
from astra.money.options import Goals
from astra.search.result import GoalOutcome, MarketResult


def chosen_row(
    points: Sequence[PricedPlan], goals: Goals, tokens: float
) -> tuple[int, GoalOutcome | None]:
    """Which point of a frontier is the answer."""
    hours = np.array([point.hours for point in points], np.float64)
    usd = np.array([point.usd for point in points], np.float64)
    wished = goal_outcome(hours, usd, goals)
    if wished is None:
        return (0 if goals.order == "throughput" else len(points) - 1), None
    row = wished.rank - 1
    if not wished.possible:
        enough = _enough(points[row], goals, tokens)
        wished = msgspec.structs.replace(wished, tokens=enough)
    return row, wished


def _enough(point: PricedPlan, goals: Goals, tokens: float) -> float:
    """The tokens of this plan that keep all goals, whole ones; 0 where starting up breaks one."""
    assert point.money is not None and point.hours is not None and point.usd is not None
    bill = (point.hours, point.usd, point.money.startup_hours, point.money.egress_usd)
    within = tokens_within(tokens, *bill, goals.deadline_h, goals.budget_usd)
    return float(math.floor(within))


def goal_outcome(hours: np.ndarray, usd: np.ndarray, goals: Goals) -> GoalOutcome | None:
    """Which point of a frontier answers a wish, or comes nearest, and the gap.

    Along a frontier, fastest first, dollars fall: the points within a budget are the last ones,
    those within a deadline the first ones. Where no point keeps both, two come nearest: the
    cheapest within the deadline (the fastest of all, where none is) and the fastest within the
    budget (the cheapest of all). One that keeps a goal goes before one that keeps none, then the
    one that misses by the smaller share of the goal.
    """
    budget, deadline = goals.budget_usd, goals.deadline_h
    if budget is None and deadline is None:
        return None
    paid = np.flatnonzero(usd <= budget) if budget is not None else np.arange(len(usd))
    timely = np.flatnonzero(hours <= deadline) if deadline is not None else np.arange(len(usd))
    both = np.intersect1d(paid, timely)
    what = " and ".join(
        text for text, value in (("budget", budget), ("deadline", deadline)) if value is not None
    )
    if len(both):
        rank = both[0] if goals.order == "throughput" else both[-1]
        return GoalOutcome(what=what, possible=True, rank=int(rank) + 1)
    cheap = int(timely[-1]) if len(timely) else 0
    fast = int(paid[0]) if len(paid) else len(usd) - 1
    ways = [fast] if deadline is None else [cheap] if budget is None else [cheap, fast]

    def gaps(row: int) -> tuple[float | None, float | None]:
        return _over(float(usd[row]), budget), _over(float(hours[row]), deadline)

    def missed(row: int) -> tuple[bool, float]:
        return goals_missed(float(hours[row]), float(usd[row]), deadline, budget)

    row, *other = sorted(dict.fromkeys(ways), key=missed)
    also = other[0] if other else None
    also_usd, also_hours = (None, None) if also is None else gaps(also)
    return GoalOutcome(
        what=what,
        possible=False,
        rank=row + 1,
        gap_usd=gaps(row)[0],
        gap_hours=gaps(row)[1],
        also_rank=None if also is None else also + 1,
        also_gap_usd=also_usd,
        also_gap_hours=also_hours,
    )


def goals_missed(
    hours: float, usd: float, deadline_h: float | None, budget_usd: float | None
) -> tuple[bool, float]:
    """Whether no goal is kept, and the larger share by which one is missed; 0: all are kept."""
    late, dear = _over(hours, deadline_h), _over(usd, budget_usd)
    share = max((late or 0.0) / (deadline_h or 1.0), (dear or 0.0) / (budget_usd or 1.0))
    return late is not None and dear is not None, share


def _over(value: float, goal: float | None) -> float | None:
    """By how much a goal is missed; None: it is kept, or there is none."""
    return None if goal is None or value <= goal else value - goal


def ranked(points: Sequence[PricedPlan], market: MarketResult) -> list[PricedPlan]:
    """The same points, each with its rank: the answer is first, then come the others that meet
    the wish, in the order asked for.
    """
    rows = list(range(len(points)))
    if market.order == "cost":
        rows.reverse()
    meets = [row for row in rows if _meets(points[row], market)]
    order = list(dict.fromkeys([market.chosen - 1, *meets, *rows]))
    return [msgspec.structs.replace(p, rank=order.index(row) + 1) for row, p in enumerate(points)]


def _meets(point: PricedPlan, market: MarketResult) -> bool:
    assert point.usd is not None and point.hours is not None
    paid = market.budget_usd is None or point.usd <= market.budget_usd
    return paid and (market.deadline_hours is None or point.hours <= market.deadline_hours)
