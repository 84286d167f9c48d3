"""Which plans are wanted, and how fast one must be to be of use."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from astra.cost.checkpoint import checkpoint_bytes_of, checkpoint_sizes
from astra.money.conditions import Conditions
from astra.money.dollars import Rent, bill, rented_losses, step_within
from astra.money.frontier import frontier
from astra.recommend.expectation import gpus_cost, settings_cost
from astra.strategy.plan_keys import PlanKey as Key
from astra.strategy.plan_keys import plan_family, plan_key
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.space import Space

Incumbent = tuple[float, Key, Plans]  # step, key, one plan


class Objective(Protocol):
    """What a problem asks of the goal."""

    @property
    def limit_s(self) -> float:
        """The loosest limit: no step from this one on is of use, whatever its plan."""

    @property
    def incumbents(self) -> list[Incumbent]:
        """The best plans so far, best first."""

    def limits_s(self, plans: Plans) -> Floats:
        """What the step of each of these plans must beat. (plan,)"""

    def limits_of_counts_s(self, gpus: Ints) -> Floats:
        """The loosest limit of plans on so many GPUs. (count,)"""

    def keys(self, plans: Plans) -> list[Key]:
        """What counts as one plan: of plans with equal keys the best is kept."""

    def weights(self, plans: Plans) -> Floats:
        """What of a step decides between plans of one key, over the step. (plan,)"""

    def add(self, plans: Plans, step_s: Floats) -> None:
        """Keeps what is wanted of these."""


def _merged(
    known: list[Incumbent], plans: Plans, step_s: Floats, keys: list[Key], most: int | None = None
) -> list[Incumbent]:
    """The fastest of each key, fastest first; of equal steps the one found first. So many at most:
    only these are taken from their table.
    """
    every: list[tuple[float, Key, Plans | int]] = [*known]
    every += zip(step_s.tolist(), keys, range(len(keys)), strict=True)
    best: dict[Key, tuple[float, Key, Plans | int]] = {}
    for entry in sorted(every, key=lambda entry: entry[0]):
        best.setdefault(entry[1], entry)
    return [
        (step, key, plans.take([plan]) if isinstance(plan, int) else plan)
        for step, key, plan in list(best.values())[:most]
    ]


@dataclass(slots=True)
class LeastWeighed:
    """The K plans of the least step x weight; of near-identical ones the best, where they are
    folded. Incumbents have these products.
    """

    top: int
    fold: bool = False
    ceiling_s: float = np.inf  # a step that others are known to reach
    incumbents: list[Incumbent] = field(default_factory=list)

    @property
    def limit_s(self) -> float:
        full = len(self.incumbents) >= self.top
        return min(self.incumbents[self.top - 1][0] if full else np.inf, self.ceiling_s)

    def limits_s(self, plans: Plans) -> Floats:
        """A layout's own columns have the simplest of its variants."""
        return self.limit_s / self.weights(plans)

    def limits_of_counts_s(self, gpus: Ints) -> Floats:
        return self.limit_s / self.least_weights(gpus)

    def keys(self, plans: Plans) -> list[Key]:
        if self.fold:
            return plan_family(plans)
        return [plan_key(plans, row) for row in range(len(plans))]

    def weights(self, plans: Plans) -> Floats:
        return np.ones(len(plans))

    def least_weights(self, gpus: Ints) -> Floats:
        """Of any plan on so many GPUs; at least 1."""
        return np.ones(len(gpus))

    def add(self, plans: Plans, step_s: Floats) -> None:
        weighed = step_s * self.weights(plans)
        self.incumbents = _merged(self.incumbents, plans, weighed, self.keys(plans), self.top)


class Fastest(LeastWeighed):
    """The K fastest plans."""


@dataclass(slots=True)
class LeastExpected(Fastest):
    """The K plans of the least expected step on one GPU type; that one may not fit is left aside,
    and weighed when they are ranked.
    """

    gpus: int = 1  # that there are

    def weights(self, plans: Plans) -> Floats:
        return 1 + gpus_cost(plans.gpus, self.gpus) + settings_cost(plans)

    def least_weights(self, gpus: Ints) -> Floats:
        return 1 + gpus_cost(gpus, self.gpus)


@dataclass(slots=True)
class LeastEnergy(LeastWeighed):
    """The K plans of the least energy on one GPU type, whose GPUs draw the same: the least GPUs x
    step. Where risk matters, settings must save as much as of a step.
    """

    is_weighed: bool = False

    def weights(self, plans: Plans) -> Floats:
        return plans.gpus * (1 + settings_cost(plans) if self.is_weighed else np.ones(len(plans)))

    def least_weights(self, gpus: Ints) -> Floats:
        return gpus.astype(np.float64)


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan under one rent."""

    wall_h: float
    usd: float
    rent: int  # which of the objective's
    plan: Plans


class Frontier:
    """The plans on one kind of node that nothing known beats in both hours and dollars.

    Hours and dollars of a plan grow with its step, and depend besides on its GPUs and on the
    bytes of its checkpoint alone (its key). So for every key there is one step below which a
    plan is of use, whatever has been found so far, here or elsewhere: the limit. Of plans of one
    key only the fastest can be on the frontier, under any rent.
    """

    def __init__(
        self,
        space: Space,
        counts: Sequence[int],
        rents: Sequence[Rent],
        steps: float,
        conditions: Conditions,
        max_hours: float = np.inf,
        is_weighed: bool = False,
    ) -> None:
        """`counts`: GPUs for rent; `steps`: of the run; `is_weighed`: by the expected step."""
        self.is_weighed = is_weighed
        self.space, self.rents, self.steps, self.conditions = space, rents, steps, conditions
        self.counts = np.array(counts, np.int64)
        self.sizes = checkpoint_sizes(space)
        self.max_hours = max_hours  # what takes longer is of no use
        self.known_h, self.known_usd = np.zeros(0), np.zeros(0)  # found elsewhere
        self.points: list[FrontierPoint] = []
        self.dominated: dict[tuple[float, float], FrontierPoint] = {}  # simulated, by hours and USD
        self.incumbents: list[Incumbent] = []
        self._set_limits()

    def outdo(self, hours: Floats, usd: Floats) -> None:
        """Points that are known already: what they dominate is of no use."""
        self.known_h, self.known_usd = hours, usd
        self._set_limits()

    @property
    def limit_s(self) -> float:
        return float(self.table.max())

    def limits_s(self, plans: Plans) -> Floats:
        if not len(plans):
            return np.zeros(0)
        sizes = checkpoint_bytes_of(plans, self.space)
        size, count = np.searchsorted(self.sizes, sizes), np.searchsorted(self.counts, plans.gpus)
        found: Floats = self.table[size, count] / self.weights(plans)
        return found

    def limits_of_counts_s(self, gpus: Ints) -> Floats:
        found: Floats = self.table.max(axis=0)[np.searchsorted(self.counts, gpus)]
        return found

    def keys(self, plans: Plans) -> list[Key]:
        sizes = checkpoint_bytes_of(plans, self.space)
        return list(zip(plans.gpus.tolist(), sizes.astype(np.int64).tolist(), strict=True))

    def weights(self, plans: Plans) -> Floats:
        return 1 + settings_cost(plans) if self.is_weighed else np.ones(len(plans))

    def add(self, plans: Plans, step_s: Floats) -> None:
        """Those on the frontier, here and among what is known from elsewhere."""
        expected_s = step_s * self.weights(plans)
        found = _merged(self.incumbents, plans, expected_s, self.keys(plans))
        steps = np.array([step for step, *_ in found])
        gpus = np.concatenate([plan.gpus for *_, plan in found])
        sizes = np.concatenate([checkpoint_bytes_of(plan, self.space) for *_, plan in found])
        hours, usd = self._billed(steps, gpus, sizes)
        every_h, every_usd = np.append(self.known_h, hours), np.append(self.known_usd, usd)
        best = frontier(every_h, every_usd) - len(self.known_h)
        best = best[best >= 0]

        def point(at: int) -> FrontierPoint:
            rent, row = divmod(at, len(found))
            return FrontierPoint(float(hours[at]), float(usd[at]), rent, found[row][-1])

        lost = map(point, np.setdiff1d(np.arange(len(hours)), best).tolist())
        self.dominated |= {(each.wall_h, each.usd): each for each in lost}
        self.points = [point(at) for at in best.tolist()]
        self.incumbents = [found[row] for row in np.unique(best % len(found))]
        self._set_limits()

    def _all_points(self) -> tuple[Floats, Floats]:
        """Hours and dollars of all that is known."""
        hours = [*self.known_h, *(point.wall_h for point in self.points)]
        usd = [*self.known_usd, *(point.usd for point in self.points)]
        return np.array(hours), np.array(usd)

    def _billed(self, steps_s: Floats, gpus: Ints, sizes: Floats) -> tuple[Floats, Floats]:
        """Hours and dollars of plans, under one rent after the other. (rent x plan,)"""
        bills = []
        for rent in self.rents:
            lost, price = rented_losses(gpus, sizes, rent, self.conditions), rent.usd_per_hour(gpus)
            bills.append(bill(steps_s, self.steps, lost, price, sizes, self.conditions))
        hours = np.concatenate([each.wall_h for each in bills])
        return hours, np.concatenate([each.usd for each in bills])

    def _set_limits(self) -> None:
        """The step of every key from which on it is dominated under every rent. (size, count)"""
        hours, usd = self._all_points()
        size = np.repeat(self.sizes, len(self.counts))
        gpus = np.tile(self.counts, len(self.sizes))
        limits = np.zeros(len(size))
        hours = np.append(hours, self.max_hours)
        usd = np.append(usd, -np.inf)  # whatever it costs
        for rent in self.rents:
            lost, price = rented_losses(gpus, size, rent, self.conditions), rent.usd_per_hour(gpus)
            own = step_within(hours, usd, self.steps, lost, price, size, self.conditions)
            limits = np.maximum(limits, own.min(axis=0))
        self.table = limits.reshape(len(self.sizes), len(self.counts))
