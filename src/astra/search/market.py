"""The frontier of hours and dollars over machines for rent, their counts and plans."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from astra.hardware.topology import allowed_counts
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.frontier import frontier
from astra.money.machines import Machine, machines_of, undominated
from astra.notes import Note
from astra.search.evaluator import Evaluator, Limits, evaluator_of
from astra.search.objective import Frontier, FrontierPoint
from astra.search.one_type import OneType
from astra.search.query import Query
from astra.search.result import Funnel, Mixtures, sum_funnels
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, Task, plan_at
from astra.strategy.space import Space

# What most good plans have in common.
USUAL: dict[str, tuple[Any, ...]] = {
    "cp": (1,),
    "sharding": ("optimizer", "gradients"),
    "micro_batch": (1, 2),
    "offload_optimizer_fraction": (0.0,),
    "overlap_ep": (False,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalMarket:
    """What can be rented for a query, and under which conditions."""

    query: Query
    offers: Sequence[Offer]
    tokens: float
    conditions: Conditions
    mixtures: Mixtures = field(default_factory=dict)

    @property
    def machines(self) -> list[Machine]:
        guessed = self.query.money is not None and self.query.money.join_guessed
        return machines_of(self.query.cluster.pools, self.offers, guessed)

    @property
    def steps(self) -> float:
        """Of the whole run."""
        return self.tokens / self.query.tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A point of the frontier: a plan on a machine at a price, by its expected step."""

    wall_h: float
    usd: float
    plan: Plan
    offers: dict[str, Offer]  # by GPU type
    machine: Machine | None  # None: several


class MarketSearch:
    """One search over machines; what one finds prunes the next."""

    def __init__(self, market: RentalMarket, limits: Limits, latest_h: float = np.inf) -> None:
        """`latest_h`: what takes longer is of no use."""
        self.market, self.limits, self.latest_h = market, limits, latest_h
        self.trades: list[Trade] = []  # the frontier, fastest first
        self.beaten: dict[tuple[float, float], Trade] = {}  # not kept, by hours and dollars
        self.funnel = Funnel()
        self.looked: list[tuple[Machine, Evaluator]] = []
        self.notes: list[Note] = []
        self.mixtures = 0  # that were searched

    def run(self) -> "MarketSearch":
        machines = undominated(self.market.machines)
        for machine in sorted(machines, key=lambda each: (each.usd_per_flop, each.gpu.name)):
            self._search(machine)
        return self

    def points(self) -> tuple[Floats, Floats]:
        """Hours and dollars of the frontier."""
        hours = np.array([trade.wall_h for trade in self.trades])
        return hours, np.array([trade.usd for trade in self.trades])

    @property
    def closest(self) -> tuple[Machine, Evaluator]:
        """To holding a plan: it lacks but RAM of its nodes, else memory of its GPUs, the least."""
        return min(self.looked, key=lambda own: (own[1].least_host[0], own[1].closest[0]))

    def count(self, *funnels: Funnel) -> None:
        """Candidates of searches besides its own."""
        self.funnel = sum_funnels([self.funnel, *funnels])

    def add(self, new: Sequence[Trade]) -> None:
        """Keeps those that no other beats."""
        every = self.trades = [*self.trades, *new]
        best = frontier(*self.points())
        self.trades = [every[row] for row in best]
        lost = (own for row, own in enumerate(every) if row not in best)
        self.beaten |= {(own.wall_h, own.usd): own for own in lost}

    def _search(self, machine: Machine) -> None:
        query, market = self.market.query, self.market
        query = query.on(machine.cluster(query.cluster))
        space = offloading(query.space) if machine.extends else query.space
        if space is None:
            return
        counts = allowed_counts(query.cluster.pools[0])
        rent = machine.rents, market.steps, market.conditions, self.latest_h
        objective = Frontier(space, counts, *rent, is_weighed=query.risk != "none")
        objective.outdo(*self.points())
        evaluator = evaluator_of(query, objective, self.limits)
        evaluator.usable_ram_bytes = machine.room_bytes
        if not self.trades:  # for limits to prune with
            first = replace(evaluator, funnel=Funnel())
            first.run(OneType(space.narrowed(USUAL)).search)
            self.funnel.simulated += first.funnel.simulated
        evaluator.run(OneType(space).search)
        self.count(evaluator.funnel)
        self.looked.append((machine, evaluator))
        for at, lost in objective.dominated.items():
            self.beaten[at] = _trade(lost, machine, query.task)
        self.add([_trade(point, machine, query.task) for point in objective.points])


def _trade(point: FrontierPoint, machine: Machine, task: Task) -> Trade:
    plan, offer = plan_at(point.plan, 0, task), machine.offers[point.rent]
    rented = machine.rented(offer, sum(plan.gpus.values()))
    return Trade(
        wall_h=point.wall_h,
        usd=point.usd,
        plan=msgspec.structs.replace(plan, cluster=rented),
        offers={machine.gpu.name: offer},
        machine=machine,
    )


def offloading(space: Space) -> Space | None:
    """Only the plans that may keep something on the host: more RAM is of no use to others."""
    layers = space.values("offload_layers") or (0,)
    if "offload_activations" in space.settings or max(layers) > 0:
        return space
    name = "offload_optimizer_fraction"
    some = tuple(value for value in space.values(name) or () if value > 0)
    return Space(space.workload, {**space.settings, name: some}) if some else None
