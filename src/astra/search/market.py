"""The frontier of hours and dollars over machines for rent, their counts and plans."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from astra.cost.result import PricedPlan
from astra.hardware.cluster import Cluster, Gpu
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
from astra.search.result import Funnel, sum_funnels
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, Task, plan_at
from astra.strategy.space import Space

USUAL: dict[str, tuple[Any, ...]] = {
    "cp": (1,),
    "sharding": ("optimizer", "gradients"),
    "micro_batch": (1, 2),
    "offload_optimizer_fraction": (0.0,),
    "overlap_ep": (False,),
}

MixedMachines = tuple[float, tuple[tuple[Gpu, int], ...]]  # room of a node for offload; GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalMarket:
    """What can be rented for a query, and under which conditions."""

    query: Query
    offers: Sequence[Offer]
    tokens: float
    conditions: Conditions
    # Of mixtures, whatever they cost: the fastest plan, or None, and the limit that it is below.
    mixtures: dict[MixedMachines, tuple[float, PricedPlan | None]] = field(default_factory=dict)

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
    """A point of the frontier: a plan on a machine at a price."""

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
        self.beaten: set[tuple[float, float]] = set()  # hours and dollars of plans not kept
        self.funnel = Funnel()
        self.closest: tuple[Machine, Evaluator] | None = None  # to fitting a plan into its GPUs
        self.least_host: tuple[Machine, Evaluator] | None = None  # and into the RAM of its nodes
        self.notes: list[Note] = []

    def run(self) -> "MarketSearch":
        for machine in sorted(undominated(self.market.machines), key=_promise):
            self._search(machine)
        return self

    def points(self) -> tuple[Floats, Floats]:
        """Hours and dollars of the frontier."""
        hours = np.array([trade.wall_h for trade in self.trades])
        return hours, np.array([trade.usd for trade in self.trades])

    def add(self, new: Sequence[Trade]) -> None:
        """Keeps those that no other beats."""
        every = [*self.trades, *new]
        self.trades = every
        best = frontier(*self.points())
        self.trades = [every[row] for row in best]
        lost = [trade for row, trade in enumerate(every) if row not in best]
        self.beaten |= {(trade.wall_h, trade.usd) for trade in lost}

    def _search(self, machine: Machine) -> None:
        query, market = self.market.query, self.market
        query = query.on(machine.cluster(query.cluster))
        space = offloading(query.space) if machine.extends else query.space
        if space is None:
            return
        counts = allowed_counts(query.cluster.pools[0])
        objective = Frontier(
            space, counts, machine.rents, market.steps, market.conditions, self.latest_h
        )
        objective.outdo(*self.points())
        evaluator = evaluator_of(query, objective, self.limits)
        evaluator.usable_ram_bytes = machine.room_bytes
        corner = usual_corner(space)
        if corner.settings != space.settings:  # for limits to prune with
            first = replace(evaluator, funnel=Funnel())
            first.run(OneType(corner).search)
            self.funnel.simulated += first.funnel.simulated
        evaluator.run(OneType(space).search)
        self.funnel = sum_funnels([self.funnel, evaluator.funnel])
        if self.closest is None or evaluator.closest[0] < self.closest[1].closest[0]:
            self.closest = machine, evaluator
        need = np.inf if self.least_host is None else self.least_host[1].least_host[0]
        if evaluator.least_host[0] < need:
            self.least_host = machine, evaluator
        self.beaten |= objective.dominated
        self.add([_trade(point, machine, query.task) for point in objective.points])


def _trade(point: FrontierPoint, machine: Machine, task: Task) -> Trade:
    """The plan on a cluster that says where it is rented, and no larger than it needs."""
    plan, offer = plan_at(point.plan, 0, task), machine.offers[point.rent]
    (pool,) = plan.cluster.pools
    used, node = sum(plan.gpus.values()), pool.gpu.node.gpus
    count = used if used < node else -(-used // node) * node
    node_facts = msgspec.structs.replace(pool.gpu.node, ram_bytes=offer.machine.ram_bytes)
    gpu = msgspec.structs.replace(pool.gpu, node=node_facts)
    pool = msgspec.structs.replace(pool, gpu=gpu, count=count, usd_per_hour=offer.usd_per_gpu_hour)
    name = " ".join(dict.fromkeys((*offer.place, offer.machine.instance)))
    plan = msgspec.structs.replace(plan, cluster=Cluster(name=name, pools=(pool,)))
    return Trade(
        wall_h=point.wall_h,
        usd=point.usd,
        plan=plan,
        offers={machine.gpu.name: offer},
        machine=machine,
    )


def usual_corner(space: Space) -> Space:
    """The space narrowed to what most good plans have in common."""
    usual: dict[str, tuple[Any, ...]] = {}
    for name, values in USUAL.items():
        some = tuple(value for value in space.values(name) or () if value in values)
        if some and name not in space.settings:
            usual[name] = some
    return Space(space.workload, {**space.settings, **usual})


def _promise(machine: Machine) -> tuple[float, str]:
    """Dollars for the arithmetic of an hour: what to look at first."""
    gpu = machine.gpu
    rate = gpu.bf16_flops_per_s or gpu.fp16_flops_per_s or 1.0
    return min(offer.usd_per_gpu_hour for offer in machine.offers) / rate, gpu.name


def offloading(space: Space) -> Space | None:
    """Only the plans that may keep something on the host: more RAM is of no use to others."""
    if "offload_activations" in space.settings:
        return space
    name = "offload_optimizer_fraction"
    some = tuple(value for value in space.values(name) or () if value > 0)
    return Space(space.workload, {**space.settings, name: some}) if some else None
