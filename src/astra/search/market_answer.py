"""The question about money answered: the frontier, what the wishes buy, what else there is."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from astra.errors import InputError
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.frontier import knee, steps_along
from astra.money.options import Goals, MoneyOptions
from astra.money.user_prices import YEAR_H
from astra.money.what_if import (
    MarketChange,
    changed_cluster,
    changed_conditions,
    changed_offers,
    check_changes,
    parse_what_if,
)
from astra.search.answer import (
    Answer,
    Elsewhere,
    Machines,
    Market,
    NothingFits,
    Wanted,
    WhatIf,
    nothing_fits,
    search_of,
)
from astra.search.find import Progress
from astra.search.host import ram_notes, room_bytes, too_small_ram
from astra.search.market import (
    Found,
    Machine,
    Trade,
    machines_of,
    space_on,
)
from astra.search.market import Search as MarketSearch
from astra.search.mixed_market import mixed_trades
from astra.search.money import with_money
from astra.search.offers import catalogue_of, offers_of, own_nodes
from astra.search.price import price_many
from astra.search.priced import Priced
from astra.search.wished import chosen_row, ranked
from astra.strategy.plan import Plan
from astra.strategy.space import Space

MOST_ELSEWHERE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about money with all that the search needs."""

    wanted: Wanted
    wish: MoneyOptions
    goals: Goals

    @property
    def tokens(self) -> float:
        if self.goals.tokens is None:
            raise InputError(
                "how many tokens are to be trained? Give --tokens, such as --tokens 1T; hours and "
                "dollars follow from them."
            )
        return self.goals.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A market to search: what can be rented, and under which conditions."""

    wanted: Wanted
    offers: Sequence[Offer]
    conditions: Conditions
    join_guessed: bool

    @property
    def machines(self) -> list[Machine]:
        pools = self.wanted.space.question.task.cluster.pools
        return machines_of(pools, self.offers, self.join_guessed)


def scene_of(asked: Asked) -> Scene:
    cluster = asked.wanted.space.question.task.cluster
    return Scene(
        wanted=asked.wanted,
        offers=offers_of(asked.wish, cluster),
        conditions=asked.goals.conditions,
        join_guessed=asked.wish.join_guessed,
    )


def changed(scene: Scene, changes: Sequence[MarketChange]) -> Scene:
    """The same with other prices, networks, failures."""
    question = scene.wanted.space.question
    cluster = changed_cluster(question.task.cluster, changes)
    task = msgspec.structs.replace(question.task, cluster=cluster)
    space = Space(replace(question, task=task), scene.wanted.space.chosen)
    return replace(
        scene,
        wanted=replace(scene.wanted, space=space),
        offers=changed_offers(scene.offers, changes),
        conditions=changed_conditions(scene.conditions, changes),
    )


def searched(asked: Asked, scene: Scene, progress: Progress | None = None) -> tuple[Found, float]:
    """The frontier, and the hours beyond which nothing was looked for."""
    goals = asked.goals
    latest = goals.max_hours or max(YEAR_H, goals.deadline_h or 0.0)
    for longest in (latest, np.inf):  # nothing within a year, or none so cheap: whatever it takes
        found = MarketSearch(
            scene.wanted, scene.machines, asked.tokens, scene.conditions, longest
        ).run(progress)
        if found.trades and (goals.max_hours or _affordable(goals, found)):
            break
    if asked.wish.mixed:
        before = found.funnel.candidates
        trades, fallen, notes = mixed_trades(
            scene.wanted,
            scene.offers,
            asked.wish.any_region,
            found.trades,
            asked.tokens,
            scene.conditions,
            longest,
            (lambda count: progress(before + count)) if progress else None,
        )
        beaten = tuple(sorted({*found.beaten, *fallen}))
        found = replace(found, trades=tuple(trades), beaten=beaten, notes=tuple(notes))
    return found, longest


def _affordable(goals: Goals, found: Found) -> bool:
    """Whether a plan keeps the budget, or none is worth looking for that takes longer."""
    if goals.budget_usd is None or goals.deadline_h is not None:
        return True
    return min(trade.usd for trade in found.trades) <= goals.budget_usd


def points_of(asked: Asked, scene: Scene, found: Found) -> list[Priced]:
    """The frontier as priced plans, fastest first."""
    plans = price_many([trade.plan for trade in found.trades], asked.wanted.margin)
    return [
        msgspec.structs.replace(
            with_money(plan, trade.offers, asked.tokens, scene.conditions), rank=place
        )
        for place, (plan, trade) in enumerate(zip(plans, found.trades, strict=True), 1)
    ]


def answer_money(
    asked: Asked, request: dict[str, object], progress: Progress | None = None
) -> Answer:
    """The frontier of hours and dollars, exactly, and which of its plans answers the wish."""
    start = time.perf_counter()
    scene = scene_of(asked)
    changes = _changes(asked, scene)
    found, latest = searched(asked, scene, progress)
    points = points_of(asked, scene, found)
    market = _market(asked, points, found, scene.machines, latest) if points else None
    if market and changes:
        other = changed(scene, changes)
        there, _ = searched(asked, other, progress)
        compared = _what_if(asked, points_of(asked, other, there), points[market.chosen - 1])
        market = msgspec.structs.replace(market, what_if=compared)
    points = ranked(points, market) if market else []
    return Answer(
        request=_with_prices(request, asked, scene.offers, [*found.notes, *ram_notes(points)]),
        search=search_of(found.funnel, time.perf_counter() - start),
        plans=tuple(sorted(points, key=lambda point: point.rank)[: asked.wanted.top]),
        nothing_fits=None if points else _nothing(asked.wanted, found),
        frontier=tuple(points),
        market=market,
    )


def _changes(asked: Asked, scene: Scene) -> tuple[MarketChange, ...]:
    """What --what-if says, where it can change something."""
    if asked.wish.what_if is None:
        return ()
    cluster = scene.wanted.space.question.task.cluster
    found = parse_what_if(asked.wish.what_if, [pool.gpu for pool in cluster.pools])
    check_changes(found, cluster, scene.offers, asked.wish.spot, scene.conditions.failures)
    return found


def _with_prices(
    request: dict[str, object], asked: Asked, offers: Sequence[Offer], notes: Sequence[str]
) -> dict[str, object]:
    """The request with the prices that were given, wherever they were, and with more notes."""
    said = request.get("notes")
    notes = [*own_nodes(offers), *notes]
    if notes and isinstance(said, list):
        request = request | {"notes": [*said, *notes]}
    money = request.get("money")
    if not isinstance(money, dict):
        return request
    given = {
        o.machine.gpu: o.usd_per_gpu_hour
        for o in offers
        if o.machine.cloud == "given" and o.price_from != "described"
    }
    if given:
        owned = ("owned", "amortise_years", "power_price", "pue")
        money = {name: value for name, value in money.items() if name not in owned}
        money["price"] = given
    if asked.wish.offers is not None:
        listed = catalogue_of(asked.wish, asked.wanted.space.question.task.cluster)
        money = money | {"offers": [msgspec.to_builtins(o) for o in listed]}
    return request | {"money": money}


def _what_if(asked: Asked, points: Sequence[Priced], before: Priced) -> WhatIf:
    """The answer in the changed market beside the one there is."""
    assert asked.wish.what_if is not None
    if not points:
        return WhatIf(what=asked.wish.what_if, plan=None, same_plan=False)
    row, wished = chosen_row(points, asked.goals, asked.tokens)
    plan = points[row]
    assert plan.usd is not None and before.usd is not None
    assert plan.hours is not None and before.hours is not None
    same = (plan.summary, plan.gpus) == (before.summary, before.gpus)
    return WhatIf(
        what=asked.wish.what_if,
        plan=plan,
        same_plan=same,
        usd_change=plan.usd - before.usd,
        hours_change=plan.hours - before.hours,
        possible=wished is None or wished.possible,
    )


def _nothing(wanted: Wanted, found: Found) -> NothingFits:
    """Why the machine that comes closest holds no plan."""
    assert found.closest is not None
    if found.least_host is not None:
        return _host_too_small(wanted, *found.least_host)
    machine, best = found.closest
    why = nothing_fits(replace(wanted, space=space_on(wanted.space, machine)), best)
    where = f"{machine.offers[0].machine.cloud} {machine.offers[0].machine.instance}"
    return msgspec.structs.replace(why, binding=f"closest is {where}: {why.binding}")


def _host_too_small(wanted: Wanted, need: float, machine: Machine, plan: Plan) -> NothingFits:
    """Plans fit their GPUs only with an offload that no machine has the RAM for."""
    (closest,) = price_many([plan], wanted.margin)
    own = machine.offers[0].machine
    return NothingFits(
        closest=closest,
        binding=(
            f"closest is {own.cloud} {own.instance}: {too_small_ram(need, machine.room_bytes)}"
        ),
        tries=(
            "more GPUs: --gpus with a larger count",
            "clouds with more RAM a node: without --cloud and --region",
            "another GPU type beside these",
        ),
    )


def _market(
    asked: Asked, points: Sequence[Priced], found: Found, machines: Sequence[Machine], latest: float
) -> Market:
    goals = asked.goals
    hours = np.array([point.hours for point in points], np.float64)
    usd = np.array([point.usd for point in points], np.float64)
    best, wished = chosen_row(points, goals, asked.tokens)
    saved, more = steps_along(hours, usd)
    return Market(
        tokens=asked.tokens,
        budget_usd=goals.budget_usd,
        deadline_hours=goals.deadline_h,
        order=goals.order,
        fastest=1,
        cheapest=len(points),
        knee=knee(hours, usd) + 1,
        wished=wished,
        chosen=best + 1,
        next_saves_hours=tuple(saved.tolist()),
        next_costs_usd=tuple(more.tolist()),
        elsewhere=_elsewhere(asked, points[best], found.trades[best]),
        beaten=found.beaten,
        machines=tuple(_machine(machine, found.trades) for machine in machines),
        longest_hours=latest if np.isfinite(latest) else 0.0,
        conditions=msgspec.to_builtins(goals.conditions),
    )


def _elsewhere(asked: Asked, best: Priced, trade: Trade) -> tuple[Elsewhere, ...]:
    """The chosen plan on the same kind of machine in other places, cheapest first."""
    found: list[Elsewhere] = []
    if trade.machine is None:
        return ()
    for offer in (*trade.machine.offers, *trade.machine.elsewhere):
        if offer in trade.offers.values() or best.host_memory_bytes > room_bytes(offer.machine):
            continue
        there = {trade.machine.gpu.name: offer}
        other = with_money(best, there, asked.tokens, asked.goals.conditions)
        assert other.usd_per_hour is not None and other.hours is not None and other.usd is not None
        found.append(
            Elsewhere(
                cloud=offer.machine.cloud,
                region=offer.region,
                instance=offer.machine.instance,
                spot=offer.spot,
                price_date=offer.date,
                network_certainty=offer.machine.certainty,
                usd_per_hour=other.usd_per_hour,
                hours=other.hours,
                usd=other.usd,
            )
        )
    found.sort(key=lambda each: (each.usd, each.cloud, each.region))
    first: dict[str, Elsewhere] = {}
    for each in found:  # the cheapest of every cloud, on demand or spot
        first.setdefault(each.cloud, each)
    return tuple(list(first.values())[:MOST_ELSEWHERE])


def _machine(machine: Machine, trades: Sequence[Trade]) -> Machines:
    first = machine.offers[0]
    spot = [offer.usd_per_gpu_hour for offer in machine.offers if offer.spot]
    steady = [offer for offer in machine.offers if not offer.spot]
    offer = steady[0] if steady else first
    return Machines(
        gpu=machine.gpu.name,
        node_gpus=machine.gpu.node.gpus,
        nic_bytes_per_s=machine.gpu.node.nic_bytes_per_s,
        most_gpus=machine.most,
        cloud=offer.machine.cloud,
        region=offer.region,
        instance=offer.machine.instance,
        usd_per_gpu_hour=offer.usd_per_gpu_hour,
        spot_usd_per_gpu_hour=spot[0] if spot else None,
        network_certainty=offer.machine.certainty,
        points=sum(trade.machine == machine for trade in trades),
    )
