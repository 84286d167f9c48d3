"""Which plan of a frontier is the answer, how sure it is, and what stands beside it."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from astra.cost.bill import with_money
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.hardware.slowest import flops_per_s
from astra.money.catalogue import GUESSED, Offer
from astra.money.chances import Chances, RunFigures, chances_of
from astra.money.conditions import Conditions, defaults
from astra.money.dollars import tokens_within
from astra.money.frontier import Floats, frontier
from astra.money.goals import GoalOutcome, best_row
from astra.money.machines import Machine, OtherRegion
from astra.money.options import Goals
from astra.recommend.market_result import FrontierPlan, SpotRange
from astra.strategy.plan import Plan
from astra.strategy.rules.registry import broken_rules

MAX_OTHER_REGIONS = 12


def hours_and_usd(points: Sequence[PricedPlan]) -> tuple[Floats, Floats]:
    hours = np.array([point.hours for point in points], np.float64)
    return hours, np.array([point.usd for point in points], np.float64)


def chosen_point(points: Sequence[PricedPlan], goals: Goals) -> tuple[int, GoalOutcome | None]:
    """Which point is the answer; where goals are missed, the tokens of it that keep them."""
    row, wished = best_row(*hours_and_usd(points), goals)
    if wished is None or wished.possible:
        return row, wished
    point = points[row]
    assert point.money is not None and point.hours is not None and point.usd is not None
    bill = (point.hours, point.usd, point.money.startup_hours, point.money.egress_usd)
    enough = tokens_within(point.money.tokens, *bill, goals.deadline_h, goals.budget_usd)
    return row, msgspec.structs.replace(wished, tokens=float(math.floor(enough)))


def in_short(point: PricedPlan) -> FrontierPlan:
    return msgspec.convert(point, FrontierPlan, from_attributes=True)


def chances(point: PricedPlan, goals: Goals) -> Chances:
    """How likely a plan fits and keeps the goals."""
    assert point.money is not None and point.hours is not None and point.usd is not None
    run = RunFigures(
        hours=point.hours,
        usd=point.usd,
        startup_hours=point.money.startup_hours,
        egress_usd=point.money.egress_usd,
        spread=point.step_s_high / point.step_s,
        fits=point.memory.fit_probability,
    )
    return chances_of(run, goals)


def has_guessed_network(point: PricedPlan) -> bool:
    """One node asks for no network."""
    assert point.money is not None
    return any(rent.network_certainty == GUESSED and rent.nodes > 1 for rent in point.money.rents)


def on_known_networks(
    points: Sequence[PricedPlan],
    best: int,
    machines: Sequence[Machine],
    goals: Goals,
    conditions: Conditions,
    margin: float,
) -> PricedPlan | None:
    """Where the answer's network is a guess: the best plan on networks that are known.

    Of the points of the frontier, those on guessed networks moved to as many GPUs of any type with
    a known one, where they fit; plans that would be better there than these are not looked for.
    """
    if not has_guessed_network(points[best]):
        return None
    found = [point for point in points if not has_guessed_network(point)]
    moved = [
        (_moved(point.plan, machine), machine.offers[0])
        for point in points
        if has_guessed_network(point) and len(point.gpus) == 1
        for machine in machines
        if _can_take(machine, point)
    ]
    moved = [(plan, offer) for plan, offer in moved if not broken_rules(plan)]
    money = points[best].money
    assert money is not None
    priced = price_plans([plan for plan, _ in moved], margin) if moved else []
    for plan, (_, offer) in zip(priced, moved, strict=True):
        if plan.runs:
            billed = with_money(plan, {offer.machine.gpu: offer}, money.tokens, conditions)
            found.append(msgspec.structs.replace(billed, rank=0))  # it is none of the frontier
    rows = frontier(*hours_and_usd(found))
    if not len(rows):
        return None
    sorted_points = [found[row] for row in rows]
    return sorted_points[best_row(*hours_and_usd(sorted_points), goals)[0]]


def _can_take(machine: Machine, point: PricedPlan) -> bool:
    """Whether it has as many GPUs, linked alike, that know the format, and its network is known."""
    (pool,) = (pool for pool in point.plan.cluster.pools if pool.gpu.name in point.gpus)
    return (
        flops_per_s(machine.gpu, point.plan.precision) > 0
        and machine.offers[0].machine.certainty != GUESSED
        and machine.gpu.node.gpus == pool.gpu.node.gpus
        and machine.gpu.link.domain_gpus >= pool.gpu.link.domain_gpus
        and machine.most >= sum(point.gpus.values())
        and machine.room_bytes >= point.host_memory_bytes
    )


def _moved(plan: Plan, machine: Machine) -> Plan:
    """The same layout on another machine, at its cheapest."""
    pipelines = tuple(
        msgspec.structs.replace(
            pipeline,
            segments=tuple(
                msgspec.structs.replace(segment, gpu=machine.gpu.name)
                for segment in pipeline.segments
            ),
        )
        for pipeline in plan.pipelines
    )
    rented = machine.rented(machine.offers[0], sum(plan.gpus.values()))
    return msgspec.structs.replace(plan, cluster=rented, pipelines=pipelines)


def spot_range(
    best: PricedPlan, offers: Mapping[str, Offer], conditions: Conditions
) -> SpotRange | None:
    """What a run on spot nodes takes where they stop as seldom, or as often, as may be; None
    where none is spot, or the user says how often.
    """
    rate = defaults()["spot_interruptions_per_hour"]
    assumed = conditions.spot_interruptions_per_hour
    money = best.money
    assert money is not None and rate.low is not None and rate.high is not None
    is_spot = any(rent.spot for rent in money.rents)
    if not is_spot or assumed != rate.value or not conditions.failures:
        return None
    ends = []
    for each in (rate.low, rate.high):
        changed = msgspec.structs.replace(conditions, spot_interruptions_per_hour=each)
        there = with_money(best, offers, money.tokens, changed)
        assert there.hours is not None and there.usd is not None
        ends.append((there.hours, there.usd))
    return SpotRange(
        assumed_per_hour=assumed,
        low_per_hour=rate.low,
        high_per_hour=rate.high,
        low_hours=ends[0][0],
        low_usd=ends[0][1],
        high_hours=ends[1][0],
        high_usd=ends[1][1],
        source=rate.source.where,
    )


def other_regions(
    priced: PricedPlan,
    machine: Machine | None,
    paid: Mapping[str, Offer],
    tokens: float,
    conditions: Conditions,
) -> tuple[OtherRegion, ...]:
    """The plan on the same kind of machine at other clouds, the cheapest of each first.

    `machine`: None where there are several, of which nothing is said; `paid`: how it is rented.
    """
    if machine is None:
        return ()
    found: list[OtherRegion] = []
    for offer in (*machine.offers, *machine.elsewhere):
        node = offer.machine
        if offer in paid.values() or priced.host_memory_bytes > node.usable_ram_bytes:
            continue
        there = with_money(priced, {machine.gpu.name: offer}, tokens, conditions)
        assert there.usd_per_hour is not None and there.hours is not None and there.usd is not None
        found.append(
            OtherRegion(
                cloud=node.cloud,
                region=offer.region,
                instance=node.instance,
                spot=offer.spot,
                price_date=offer.date,
                network_certainty=node.certainty,
                usd_per_hour=there.usd_per_hour,
                hours=there.hours,
                usd=there.usd,
            )
        )
    first: dict[str, OtherRegion] = {}
    for each in sorted(found, key=lambda each: (each.usd, each.cloud, each.region)):
        first.setdefault(each.cloud, each)
    return tuple(first.values())[:MAX_OTHER_REGIONS]
