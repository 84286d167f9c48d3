"""How far a price must move for the answer to change."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.explain.explained_plan import Say
from astra.explain.result import PriceSensitivity, RunnerUp
from astra.money.frontier import frontier
from astra.money.options import Goals
from astra.notes import Note, NoteCode, note
from astra.search.evaluator import Limits
from astra.search.goals import goal_outcome
from astra.search.query import Query
from astra.search.rent import frontier_plans, market_of, search_market

REL_EPS = 1e-9  # relative; beside a turn


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan that may be the answer, and what of its dollars is rent of which GPU type."""

    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float
    rent_usd: dict[str, float]

    def usd_at(self, gpu: str, factor: float) -> float:
        """With the prices of one type so many times as high."""
        return self.usd + (factor - 1) * self.rent_usd.get(gpu, 0.0)


class SavedRent(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind, as a result keeps them."""

    gpu: str
    nodes: int
    node_usd_per_hour: float


class SavedTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a run costs, as a result keeps it."""

    rents: tuple[SavedRent, ...]


class SavedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a frontier, as a result keeps it."""

    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float
    money: SavedTerms


def choice_of(point: PricedPlan | SavedPoint) -> Choice:
    """Of a plan with hours and dollars."""
    assert point.money is not None and point.hours is not None and point.usd is not None
    rents = {
        rent.gpu: rent.nodes * rent.node_usd_per_hour * point.hours for rent in point.money.rents
    }
    return Choice(point.summary, point.gpus, point.hours, point.usd, rents)


def price_sensitivity(
    query: Query, say: Say, mixed: Sequence[Choice] = ()
) -> tuple[tuple[PriceSensitivity, ...], tuple[Note, ...]]:
    """For every GPU type: the least change of its prices alone with which another plan is chosen.

    Prices of a type scale all its rents alike, so what may be chosen on one type at any price is
    on its own frontier. `mixed`: plans on several types that are on the frontier as prices are;
    others are not looked for, which is said.
    """
    assert query.money is not None and query.goals is not None
    alone = replace(query, money=msgspec.structs.replace(query.money, mixed=False))
    market = market_of(alone)
    names = [pool.gpu.name for pool in query.cluster.pools]
    choices = list(mixed)
    for name in names:
        say(note(NoteCode.TYPE_ALONE, gpu=name))
        pools = tuple(pool for pool in query.cluster.pools if pool.gpu.name == name)
        own = alone.on(msgspec.structs.replace(query.cluster, pools=pools))
        only = replace(market, query=own)
        found, _ = search_market(only, Limits())
        choices += [choice_of(point) for point in frontier_plans(only, found)]
    if not choices:
        raise InputError("no plan fits, so no price can change the answer.")
    moves = tuple(_move(name, choices, query.goals) for name in names)
    return moves, (note(NoteCode.MIXED_PRICES),) if mixed else ()


def _chosen(gpu: str, factor: float, choices: Sequence[Choice], goals: Goals) -> Choice:
    """The answer among these with the prices of one type so many times as high."""
    hours = np.array([each.hours for each in choices])
    usd = np.array([each.usd_at(gpu, factor) for each in choices])
    rows = frontier(hours, usd)
    wished = goal_outcome(hours[rows], usd[rows], goals)
    plain = 0 if goals.order == "throughput" else len(rows) - 1
    return choices[rows[plain if wished is None else wished.rank - 1]]


def _turns(gpu: str, best: Choice, choices: Sequence[Choice], goals: Goals) -> list[float]:
    """Factors at which the choice may turn: a plan costs as much as the answer, or the budget, or
    is over the budget by as large a share as another is late."""
    found: list[float] = []
    late = {0.0}
    if goals.deadline_h is not None:
        late |= {max(each.hours / goals.deadline_h - 1, 0.0) for each in choices}
    for each in choices:
        rent, own = each.rent_usd.get(gpu, 0.0), best.rent_usd.get(gpu, 0.0)
        if rent != own:
            found.append(1 + (best.usd - each.usd) / (rent - own))
        if rent and goals.budget_usd is not None:
            due = [goals.budget_usd * (1 + share) for share in late]
            found += [1 + (usd - each.usd) / rent for usd in due]
    return sorted({factor for factor in found if factor > 0})


def _move(gpu: str, choices: Sequence[Choice], goals: Goals) -> PriceSensitivity:
    """The least changes, up and down, with which the choice is another."""
    best = _chosen(gpu, 1.0, choices, goals)
    turns = _turns(gpu, best, choices, goals)

    def first(factors: Iterable[float], beyond: float) -> tuple[float | None, RunnerUp | None]:
        """The first turn at which another is chosen, and which."""
        for factor in factors:
            other = _chosen(gpu, factor * beyond, choices, goals)
            if other is not best:
                found = RunnerUp(
                    summary=other.summary, gpus=other.gpus, usd=other.usd, hours=other.hours
                )
                return abs(factor - 1), found
        return None, None

    rise, dearer = first((factor for factor in turns if factor > 1 + REL_EPS), 1 + REL_EPS)
    fall, cheaper = first(
        (factor for factor in reversed(turns) if factor < 1 - REL_EPS), 1 - REL_EPS
    )
    rival = cheaper or dearer
    return PriceSensitivity(
        gpu=gpu,
        rise_fraction=rise,
        fall_fraction=fall,
        rise_rival=dearer,
        fall_rival=cheaper,
        rival=None if rival is None else rival.summary,
        rival_gpus=None if rival is None else rival.gpus,
        rival_usd=None if rival is None else rival.usd,
        rival_hours=None if rival is None else rival.hours,
    )
