"""Which GPUs to rent: the frontier of hours and dollars over machines, counts and plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from astra.cost.host import usable_ram_bytes
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.pools import gpu_specs
from astra.hardware.topology import allowed_counts
from astra.money.catalogue import GUESSED, Instance, Offer, joins, machine_gpu
from astra.money.conditions import Conditions
from astra.money.frontier import frontier
from astra.notes import Note
from astra.search.bill import rent_of
from astra.search.evaluator import Evaluator, Limits
from astra.search.objective import Frontier, FrontierPoint
from astra.search.one_type import MemoryBounds, OneType
from astra.search.query import Query
from astra.search.result import Funnel
from astra.strategy.plan import Plan
from astra.strategy.plans import plan_at
from astra.strategy.space import Space

USUAL: dict[str, tuple[Any, ...]] = {
    "cp": (1,),
    "sharding": ("optimizer", "gradients"),
    "micro_batch": (1, 2),
    "offload_optimizer_fraction": (0.0,),
    "overlap_ep": (False,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of node, up to a number of GPUs, with the cheapest ways to rent it."""

    gpu: Gpu
    most: int
    offers: tuple[Offer, ...]  # on demand, spot, or both: the cheapest of each
    elsewhere: tuple[Offer, ...]  # all the others, whatever their RAM
    room_bytes: float = np.inf  # of a node's RAM, for what plans offload; infinite: not known
    extends: bool = False  # there is one alike that costs no more, with less RAM

    def cluster(self, whole: Cluster) -> Cluster:
        """Of such nodes alone."""
        return msgspec.structs.replace(whole, pools=(Pool(gpu=self.gpu, count=self.most),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A point of the frontier: a plan on a machine at a price."""

    wall_h: float
    usd: float
    plan: Plan
    offers: dict[str, Offer]  # by GPU type
    machine: Machine | None  # None: several


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierFound:
    """The frontier, fastest first, and where the candidates went."""

    trades: tuple[Trade, ...]
    funnel: Funnel
    closest: tuple[Machine, Evaluator] | None  # where nothing fits
    least_host: tuple[float, Machine, Plan] | None  # where RAM alone is too small
    skipped: int  # machines whose best bound is dominated already
    beaten: tuple[tuple[float, float], ...] = ()  # hours and dollars of plans simulated, not kept
    notes: tuple[Note, ...] = ()


def machines_of(
    pools: Sequence[Pool], offers: Sequence[Offer], join_guessed: bool = False
) -> list[Machine]:
    """For every type and kind of node: the cheapest offers, and up to how many GPUs.

    One for each size of RAM that costs more than all smaller ones. Nodes between which no network
    is published are not joined unless asked for: one at a time.
    """
    found = []
    for pool in pools:
        kinds: dict[Gpu, list[Offer]] = {}
        for offer in offers:
            if offer.machine.gpu == pool.gpu.name:
                kinds.setdefault(gpu_specs(gpu_in(offer.machine, pool.gpu)), []).append(offer)
        for own in kinds.values():
            most = 0
            for room, some in _by_room(own):
                gpu = gpu_in(some[0].machine, pool.gpu)
                alone = not (join_guessed or joins(some[0].machine))
                count = min(pool.count, gpu.node.gpus) if alone else pool.count
                rest = tuple(offer for offer in own if offer not in some)
                found.append(
                    Machine(
                        gpu=gpu,
                        most=count,
                        offers=some,
                        elsewhere=rest,
                        room_bytes=room,
                        extends=count <= most,
                    )
                )
                most = max(most, count)
    return found


def _by_room(own: Sequence[Offer]) -> list[tuple[float, tuple[Offer, ...]]]:
    """The cheapest offers with at least so much room for offload, the smallest room first.

    Of rooms with the same offers the largest; offers with less room never cost more.
    """
    by_price = sorted(own, key=_by_price)
    found: dict[tuple[Offer, ...], float] = {}
    for room in sorted({usable_ram_bytes(offer.machine) for offer in own}):
        best: dict[bool, Offer] = {}
        for offer in by_price:
            if usable_ram_bytes(offer.machine) >= room:
                best.setdefault(offer.spot, offer)
        found[tuple(best.values())] = room
    return [(room, some) for some, room in found.items()]


def undominated(machines: Sequence[Machine]) -> list[Machine]:
    """Without those that another one equals but for faster NICs at no higher price.

    A plan takes no longer with faster NICs, which tests of collectives and of searches hold.
    """
    groups: dict[Gpu, list[Machine]] = {}
    for machine in machines:
        slow = msgspec.structs.replace(machine.gpu.node, nic_bytes_per_s=1.0)
        key = gpu_specs(msgspec.structs.replace(machine.gpu, node=slow))
        groups.setdefault(key, []).append(machine)
    return [
        machine
        for group in groups.values()
        for machine in group
        if not any(_outdoes(other, machine) for other in group if other is not machine)
    ]


def _outdoes(better: Machine, worse: Machine) -> bool:
    """Faster between nodes, as many, and each way to pay for it no dearer."""
    faster = better.gpu.node.nic_bytes_per_s > worse.gpu.node.nic_bytes_per_s
    return (
        faster
        and better.most >= worse.most
        and better.room_bytes >= worse.room_bytes
        and all(
            any(
                o.spot == offer.spot and o.usd_per_hour <= offer.usd_per_hour for o in better.offers
            )
            for offer in worse.offers
        )
    )


def _by_price(offer: Offer) -> tuple[object, ...]:
    """Cheapest first; what is known before what is guessed."""
    machine = offer.machine
    guessed = machine.certainty == GUESSED
    return offer.usd_per_hour, guessed, machine.cloud, offer.region, machine.instance


def gpu_in(machine: Instance, own: Gpu) -> Gpu:
    """The GPU in its node; one that the user described keeps the node it was given."""
    return own if machine.cloud == "given" else machine_gpu(machine)


class MarketSearch:
    """One search over machines; what one finds prunes the next."""

    def __init__(
        self,
        query: Query,
        machines: Sequence[Machine],
        tokens: float,
        conditions: Conditions,
        latest_h: float,
        limits: Limits,
    ) -> None:
        self.query, self.tokens, self.conditions, self.latest_h = (
            query,
            tokens,
            conditions,
            latest_h,
        )
        self.limits = limits
        self.machines = sorted(undominated(machines), key=_promise)
        self.trades: list[Trade] = []
        self.beaten: set[tuple[float, float]] = set()
        self.funnel = Funnel()
        self.closest: tuple[Machine, Evaluator] | None = None
        self.least_host: tuple[float, Machine, Plan] | None = None
        self.skipped = 0

    def run(self) -> FrontierFound:
        for machine in self.machines:
            self._search(machine)
        return FrontierFound(
            trades=tuple(self.trades),
            funnel=self.funnel,
            closest=None if self.trades else self.closest,
            least_host=None if self.trades else self.least_host,
            skipped=self.skipped,
            beaten=tuple(sorted(self.beaten)),
        )

    def _search(self, machine: Machine) -> None:
        whole = self.query.on(machine.cluster(self.query.cluster)).space
        space = offloading(whole) if machine.extends else whole
        if space is None:
            return
        objective = self._frontier(machine, space)
        evaluator = self._evaluator(machine, space, objective)
        corner = _corner(space)
        if corner.settings != space.settings:  # for limits to prune with
            first = self._evaluator(machine, corner, objective)
            first.cache = evaluator.cache
            first.run(OneType(corner, bounds=MemoryBounds).search)
            self.funnel.simulated += first.funnel.simulated
        problem = OneType(space, bounds=MemoryBounds)
        evaluator.run(problem.search)
        self.skipped += not problem.was_useful
        _add(self.funnel, evaluator.funnel)
        if self.closest is None or evaluator.closest[0] < self.closest[1].closest[0]:
            self.closest = (machine, evaluator)
        need, plans = evaluator.least_host
        if plans is not None and (self.least_host is None or need < self.least_host[0]):
            self.least_host = (need, machine, plan_at(plans, 0, space.workload.task))
        self.beaten |= objective.dominated
        self._merge([self._trade(point, machine, space) for point in objective.points])

    def _frontier(self, machine: Machine, space: Space) -> Frontier:
        found = Frontier(
            space,
            allowed_counts(space.workload.task.cluster.pools[0]),
            [rent_of(offer) for offer in machine.offers],
            self.tokens / self.query.tokens_per_step,
            self.conditions,
            self.latest_h,
        )
        found.outdo(
            np.array([trade.wall_h for trade in self.trades]),
            np.array([trade.usd for trade in self.trades]),
        )
        return found

    def _evaluator(self, machine: Machine, space: Space, objective: Frontier) -> Evaluator:
        return Evaluator(
            task=space.workload.task,
            rules=self.query.rules,
            stack=self.query.stack,
            margin=self.query.margin,
            objective=objective,
            limits=self.limits,
            usable_ram_bytes=machine.room_bytes,
        )

    def _trade(self, point: FrontierPoint, machine: Machine, space: Space) -> Trade:
        offer = machine.offers[point.rent]
        plan = plan_at(point.plan, 0, space.workload.task)
        return Trade(
            wall_h=point.wall_h,
            usd=point.usd,
            plan=_rented(plan, offer),
            offers={machine.gpu.name: offer},
            machine=machine,
        )

    def _merge(self, new: list[Trade]) -> None:
        every = [*self.trades, *new]
        self.trades = best_of(every)
        self.beaten |= beaten_by(self.trades, every)


def beaten_by(best: Sequence[Trade], every: Sequence[Trade]) -> set[tuple[float, float]]:
    """Hours and dollars of those that are not among the best."""
    return {(trade.wall_h, trade.usd) for trade in every if all(trade is not own for own in best)}


def best_of(trades: Sequence[Trade]) -> list[Trade]:
    """Those that no other beats, fastest first."""
    hours = np.array([trade.wall_h for trade in trades])
    usd = np.array([trade.usd for trade in trades])
    return [trades[row] for row in frontier(hours, usd)]


def _corner(space: Space) -> Space:
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


def _rented(plan: Plan, offer: Offer) -> Plan:
    """The plan on a cluster that says where it is rented, and no larger than it needs."""
    (pool,) = plan.cluster.pools
    used, node = sum(plan.gpus.values()), pool.gpu.node.gpus
    count = used if used < node else -(-used // node) * node
    node_facts = msgspec.structs.replace(pool.gpu.node, ram_bytes=offer.machine.ram_bytes)
    gpu = msgspec.structs.replace(pool.gpu, node=node_facts)
    pool = msgspec.structs.replace(pool, gpu=gpu, count=count, usd_per_hour=offer.usd_per_gpu_hour)
    name = " ".join(dict.fromkeys((*offer.place, offer.machine.instance)))
    cluster = Cluster(name=name, pools=(pool,))
    return msgspec.structs.replace(plan, cluster=cluster)


def _add(total: Funnel, part: Funnel) -> None:
    total.candidates += part.candidates
    total.bounded += part.bounded
    total.out_of_memory += part.out_of_memory
    total.priced += part.priced
    total.simulated += part.simulated
    for name, count in part.removed_by_rule.items():
        total.remove(name, count)
