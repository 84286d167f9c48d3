"""Which points of a frontier meet the goals, or come nearest."""

import msgspec
import numpy as np
import numpy.typing as npt

from astra.money.frontier import Floats, Ints, knee
from astra.money.options import Goals


class GoalOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A goal about money, and what comes of it."""

    what: str  # within budget, within deadline, within both
    possible: bool
    rank: int  # place in the frontier: the answer, or what comes nearest
    gap_usd: float | None = None  # that the nearest costs more than the budget
    gap_hours: float | None = None  # that it takes longer than the deadline
    also_rank: int | None = None  # nearest the other way, where both cannot be had
    also_gap_usd: float | None = None
    also_gap_hours: float | None = None
    plan_rank: int | None = None  # the rank of the plan at `rank`, and at `also_rank`
    also_plan_rank: int | None = None
    tokens: float | None = None  # of the nearest that keep all goals; None where they are met


def best_row(hours: Floats, usd: Floats, goals: Goals) -> tuple[int, GoalOutcome | None]:
    """Which point of a frontier, fastest first, is the answer, and what comes of the goals."""
    wished = goal_outcome(hours, usd, goals)
    if wished is not None:
        return wished.rank - 1, wished
    return _first(np.arange(len(hours)), hours, usd, goals.order), None


def _first(rows: Ints, hours: Floats, usd: Floats, order: str) -> int:
    """Of these points, fastest first, the one that an order puts first."""
    if order == "knee":
        return int(rows[knee(hours[rows], usd[rows])])
    return int(rows[0] if order == "throughput" else rows[-1])


def knee_row(hours: Floats, usd: Floats, goals: Goals) -> int:
    """The knee of what keeps all goals; of the whole frontier where nothing does."""
    kept = np.flatnonzero(_kept(hours, usd, goals))
    return _first(kept if len(kept) else np.arange(len(hours)), hours, usd, "knee")


def _kept(hours: Floats, usd: Floats, goals: Goals) -> npt.NDArray[np.bool_]:
    return (hours <= (goals.deadline_h or np.inf)) & (usd <= (goals.budget_usd or np.inf))


def goal_outcome(hours: Floats, usd: Floats, goals: Goals) -> GoalOutcome | None:
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
        rank = _first(both, hours, usd, goals.order) + 1
        return GoalOutcome(what=what, possible=True, rank=rank)
    cheap = int(timely[-1]) if len(timely) else 0
    fast = int(paid[0]) if len(paid) else len(usd) - 1
    ways = [fast] if deadline is None else [cheap] if budget is None else [cheap, fast]

    def missed(row: int) -> tuple[bool, float]:
        return goals_missed(float(hours[row]), float(usd[row]), deadline, budget)

    row, *others = sorted(dict.fromkeys(ways), key=missed)
    found = GoalOutcome(
        what=what,
        possible=False,
        rank=row + 1,
        gap_usd=_over(float(usd[row]), budget),
        gap_hours=_over(float(hours[row]), deadline),
    )
    for other in others:
        found = msgspec.structs.replace(
            found,
            also_rank=other + 1,
            also_gap_usd=_over(float(usd[other]), budget),
            also_gap_hours=_over(float(hours[other]), deadline),
        )
    return found


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


def ranks(hours: Floats, usd: Floats, best: int, goals: Goals) -> list[int]:
    """Of every point of a frontier: the answer is first, then come the others that keep all
    goals, in the order asked for; around the knee the fastest first.
    """
    rows = list(range(len(hours)))
    if goals.order == "cost":
        rows.reverse()
    kept = _kept(hours, usd, goals)
    order = list(dict.fromkeys([best, *(row for row in rows if kept[row]), *rows]))
    return [order.index(row) + 1 for row in range(len(hours))]
