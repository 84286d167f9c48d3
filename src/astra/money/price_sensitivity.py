"""How far the prices of a GPU type must move for the answer to change."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from astra.money.frontier import frontier
from astra.money.goals import best_row
from astra.money.options import Goals

REL_EPS = 1e-9  # relative; beside a turn
# The knee bends with all prices: looked for in such steps up to so many times the price.
KNEE_STEP, KNEE_MOST = 1.005, 100.0


class RunnerUp(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that is chosen once a price has moved."""

    summary: str
    gpus: dict[str, int]
    usd: float  # at the prices of today
    hours: float


class MoneyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan of an answer about money, in hours and dollars beside the explained one."""

    rank: int
    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float
    more_hours: float
    more_usd: float


class PriceSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """How far the prices of one GPU type must move for the answer to change; None: never."""

    gpu: str
    rise_fraction: float | None
    fall_fraction: float | None
    rise_rival: RunnerUp | None = None
    fall_rival: RunnerUp | None = None
    rival: str | None = None  # of the fall; of the rise, where no fall changes the answer
    rival_gpus: dict[str, int] | None = None
    rival_usd: float | None = None  # at the prices of today
    rival_hours: float | None = None


class NodePrice(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind and what an hour of one costs: what is read of a plan's rents."""

    gpu: str
    nodes: int
    node_usd_per_hour: float


class ChoiceRents(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a plan's money."""

    rents: tuple[NodePrice, ...]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with hours and dollars that may be the answer, as a result keeps it."""

    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float
    money: ChoiceRents

    def rent_usd(self, gpu: str) -> float:
        """What of its dollars is rent of one GPU type."""
        return sum(
            rent.nodes * rent.node_usd_per_hour * self.hours
            for rent in self.money.rents
            if rent.gpu == gpu
        )

    def usd_at(self, gpu: str, factor: float) -> float:
        """With the prices of one type so many times as high."""
        return self.usd + (factor - 1) * self.rent_usd(gpu)


def money_differences(choices: Sequence[Choice], rank: int) -> tuple[MoneyDifference, ...]:
    """All other plans beside the one of this rank; plans in the order of their ranks."""
    own = choices[rank - 1]
    return tuple(
        MoneyDifference(
            rank=place,
            summary=each.summary,
            gpus=each.gpus,
            hours=each.hours,
            usd=each.usd,
            more_hours=each.hours - own.hours,
            more_usd=each.usd - own.usd,
        )
        for place, each in enumerate(choices, 1)
        if place != rank
    )


def _chosen(gpu: str, factor: float, choices: Sequence[Choice], goals: Goals) -> Choice:
    """The answer among these with the prices of one type so many times as high."""
    hours = np.array([each.hours for each in choices])
    usd = np.array([each.usd_at(gpu, factor) for each in choices])
    rows = frontier(hours, usd)
    best, _ = best_row(hours[rows], usd[rows], goals)
    return choices[rows[best]]


def _turns(gpu: str, best: Choice, choices: Sequence[Choice], goals: Goals) -> list[float]:
    """Factors at which the choice may turn: a plan costs as much as the answer, or the budget, or
    is over the budget by as large a share as another is late."""
    found: list[float] = []
    late = {0.0}
    if goals.deadline_h is not None:
        late |= {max(each.hours / goals.deadline_h - 1, 0.0) for each in choices}
    for each in choices:
        rent, own = each.rent_usd(gpu), best.rent_usd(gpu)
        if rent != own:
            found.append(1 + (best.usd - each.usd) / (rent - own))
        if rent and goals.budget_usd is not None:
            due = [goals.budget_usd * (1 + share) for share in late]
            found += [1 + (usd - each.usd) / rent for usd in due]
    return sorted({factor for factor in found if factor > 0})


def _knee_turns(gpu: str, best: Choice, choices: Sequence[Choice], goals: Goals) -> list[float]:
    """The factors next to 1, below and above, beyond which the knee is another plan."""
    found = []
    for step in (1 / KNEE_STEP, KNEE_STEP):
        factor = 1.0
        while 1 / KNEE_MOST < factor < KNEE_MOST:
            if _chosen(gpu, factor * step, choices, goals) is not best:
                found.append(_halved(gpu, factor, factor * step, best, choices, goals))
                break
            factor *= step
    return found


def _halved(
    gpu: str, same: float, other: float, best: Choice, choices: Sequence[Choice], goals: Goals
) -> float:
    """Where between two factors the choice turns from `best`: the first with another one."""
    while abs(other / same - 1) > REL_EPS:
        middle = (same * other) ** 0.5
        if _chosen(gpu, middle, choices, goals) is best:
            same = middle
        else:
            other = middle
    return other


def price_move(gpu: str, choices: Sequence[Choice], goals: Goals) -> PriceSensitivity:
    """The least changes of the prices of a type, up and down, with which the choice is another."""
    best = _chosen(gpu, 1.0, choices, goals)
    turns = _knee_turns if goals.order == "knee" else _turns
    factors = turns(gpu, best, choices, goals)

    def first(some: Iterable[float], beyond: float) -> tuple[float | None, RunnerUp | None]:
        """The first turn at which another is chosen, and which."""
        for factor in some:
            other = _chosen(gpu, factor * beyond, choices, goals)
            if other is not best:
                return abs(factor - 1), msgspec.convert(other, RunnerUp, from_attributes=True)
        return None, None

    above = (factor for factor in factors if factor > 1 + REL_EPS)
    below = (factor for factor in reversed(factors) if factor < 1 - REL_EPS)
    rise, dearer = first(above, 1 + REL_EPS)
    fall, cheaper = first(below, 1 - REL_EPS)
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
