"""Which points of a frontier answer a wish, or come nearest."""

from collections.abc import Sequence

import msgspec
import numpy as np

from astra.money.wish import Goals
from astra.search.answer import Market, Wished
from astra.search.priced import Priced


def chosen_row(points: Sequence[Priced], goals: Goals, tokens: float) -> tuple[int, Wished | None]:
    """Which point of a frontier is the answer."""
    hours = np.array([point.hours for point in points], np.float64)
    usd = np.array([point.usd for point in points], np.float64)
    wished = wished_of(hours, usd, goals, tokens)
    if wished is not None:
        return wished.rank - 1, wished
    return (0 if goals.order == "throughput" else len(points) - 1), None


def wished_of(hours: np.ndarray, usd: np.ndarray, goals: Goals, tokens: float) -> Wished | None:
    """Which point of a frontier answers a wish, or comes nearest, and the gap.

    Along a frontier, fastest first, dollars fall: the points within a budget are the last ones,
    those within a deadline the first ones.
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
        return Wished(what=what, possible=True, rank=int(rank) + 1)
    if not len(paid):  # even the cheapest costs more
        last = len(usd) - 1
        late = hours[last] - deadline if deadline is not None else 0.0
        return Wished(
            what=what,
            possible=False,
            rank=last + 1,
            gap_usd=float(usd[last] - (budget or 0.0)),
            gap_hours=float(late) if late > 0 else None,
            also_rank=1 if deadline is not None and not len(timely) else None,
            also_gap_hours=float(hours[0] - (deadline or 0.0))
            if deadline is not None and not len(timely)
            else None,
            tokens=tokens * (budget or 0.0) / float(usd[last]),
        )
    if not len(timely):
        return Wished(
            what=what,
            possible=False,
            rank=1,
            gap_hours=float(hours[0] - (deadline or 0.0)),
            tokens=tokens * (deadline or 0.0) / float(hours[0]),
        )
    cheap, fast = int(timely[-1]), int(paid[0])
    return Wished(
        what=what,
        possible=False,
        rank=cheap + 1,
        gap_usd=float(usd[cheap] - (budget or 0.0)),
        also_rank=fast + 1,
        also_gap_hours=float(hours[fast] - (deadline or 0.0)),
    )


def ranked(points: Sequence[Priced], market: Market, top: int) -> tuple[Priced, ...]:
    """The answer first, then the other points that meet the wish, in the order asked for."""
    rows = list(range(len(points)))
    if market.order == "cost":
        rows.reverse()
    meets = [row for row in rows if _meets(points[row], market)]
    ranked = [market.chosen - 1, *meets, *rows]
    listed = [points[row] for row in dict.fromkeys(ranked)][:top]
    return tuple(msgspec.structs.replace(p, rank=place) for place, p in enumerate(listed, 1))


def _meets(point: Priced, market: Market) -> bool:
    assert point.usd is not None and point.hours is not None
    paid = market.budget_usd is None or point.usd <= market.budget_usd
    return paid and (market.deadline_hours is None or point.hours <= market.deadline_hours)
