"""Which GPUs to rent: the frontier of hours and dollars, what the goals come to, what else is."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from astra.cost.host import ram_notes, ram_too_small, usable_ram_bytes
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.frontier import knee, steps_along
from astra.money.offers import catalogue_of, list_price_notes, offers_of
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
from astra.notes import Note, NoteCode, note
from astra.search.bill import with_money
from astra.search.evaluator import Limits
from astra.search.goals import chosen_row, ranked
from astra.search.market import FrontierFound, Machine, MarketSearch, Trade, machines_of
from astra.search.mixed_market import mixed_trades
from astra.search.nothing_fits import nothing_fits
from astra.search.query import Query
from astra.search.result import (
    MarketResult,
    MarketWhatIf,
    NodeSummary,
    NothingFits,
    OtherRegion,
    Result,
)
from astra.strategy.plan import Plan

MAX_OTHER_REGIONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalMarket:
    """What can be rented for a query, and under which conditions."""

    query: Query
    offers: Sequence[Offer]
    conditions: Conditions

    @property
    def options(self) -> MoneyOptions:
        assert self.query.money is not None
        return self.query.money

    @property
    def goals(self) -> Goals:
        assert self.query.goals is not None
        return self.query.goals

    @property
    def tokens(self) -> float:
        if self.goals.tokens is None:
            raise InputError(
                "how many tokens are to be trained? Give --tokens, such as --tokens 1T; hours and "
                "dollars follow from them."
            )
        return self.goals.tokens

    @property
    def machines(self) -> list[Machine]:
        pools = self.query.cluster.pools
        return machines_of(pools, self.offers, self.options.join_guessed)


def market_of(query: Query) -> RentalMarket:
    assert query.money is not None and query.goals is not None
    offers = offers_of(query.money, query.cluster)
    return RentalMarket(query=query, offers=offers, conditions=query.goals.conditions)


def _changed(market: RentalMarket, changes: Sequence[MarketChange]) -> RentalMarket:
    """The same with other prices, networks, failures."""
    return replace(
        market,
        query=market.query.on(changed_cluster(market.query.cluster, changes)),
        offers=changed_offers(market.offers, changes),
        conditions=changed_conditions(market.conditions, changes),
    )


def search_market(market: RentalMarket, limits: Limits) -> tuple[FrontierFound, float]:
    """The frontier, and the hours beyond which nothing was looked for."""
    goals, query = market.goals, market.query
    latest = goals.max_hours or max(YEAR_H, goals.deadline_h or 0.0)
    for longest in (latest, np.inf):  # nothing within a year, or none so cheap: whatever it takes
        spent = (market.tokens, market.conditions, longest, limits)
        found = MarketSearch(query, market.machines, *spent).run()
        if found.trades and (goals.max_hours or _affordable(goals, found)):
            break
    if market.options.mixed:
        trades, fallen, notes = mixed_trades(
            query,
            market.offers,
            market.options.any_region,
            found.trades,
            market.tokens,
            market.conditions,
            longest,
            limits,
        )
        beaten = tuple(sorted({*found.beaten, *fallen}))
        found = replace(found, trades=tuple(trades), beaten=beaten, notes=tuple(notes))
    return found, longest


def _affordable(goals: Goals, found: FrontierFound) -> bool:
    """Whether a plan keeps the budget, or none is worth looking for that takes longer."""
    if goals.budget_usd is None or goals.deadline_h is not None:
        return True
    return min(trade.usd for trade in found.trades) <= goals.budget_usd


def frontier_plans(market: RentalMarket, found: FrontierFound) -> list[PricedPlan]:
    """The frontier as priced plans, fastest first."""
    plans = price_plans([trade.plan for trade in found.trades], market.query.margin)
    return [
        msgspec.structs.replace(
            with_money(plan, trade.offers, market.tokens, market.conditions), rank=place
        )
        for place, (plan, trade) in enumerate(zip(plans, found.trades, strict=True), 1)
    ]


def solve_for_money(query: Query, limits: Limits) -> Result:
    """The frontier of hours and dollars, exactly, and which of its plans meets the goals."""
    start = time.perf_counter()
    market = market_of(query)
    changes = _changes(market)
    found, latest = search_market(market, limits)
    points = frontier_plans(market, found)
    bought = _market_result(market, points, found, latest) if points else None
    if bought and changes:
        other = _changed(market, changes)
        there, _ = search_market(other, limits)
        compared = _what_if(market, frontier_plans(other, there), points[bought.chosen - 1])
        bought = msgspec.structs.replace(bought, what_if=compared)
    points = ranked(points, bought) if bought else []
    notes = (*list_price_notes(market.offers), *found.notes, *ram_notes(points))
    return Result(
        query=_with_prices(market),
        funnel=found.funnel,
        seconds=time.perf_counter() - start,
        plans=tuple(sorted(points, key=lambda point: point.rank)[: query.top]),
        nothing_fits=None if points else _nothing(query, found, limits),
        frontier=tuple(points),
        market=bought,
        notes=(*query.notes, *notes),
    )


def _changes(market: RentalMarket) -> tuple[MarketChange, ...]:
    """What --what-if says, where it can change something."""
    if market.options.what_if is None:
        return ()
    cluster = market.query.cluster
    found = parse_what_if(market.options.what_if, [pool.gpu for pool in cluster.pools])
    check_changes(found, cluster, market.offers, market.options.spot, market.conditions.failures)
    return found


def _with_prices(market: RentalMarket) -> Query:
    """The query with the prices that were given, wherever they were: so it can be asked again."""
    options = market.options
    given = {
        offer.machine.gpu: offer.usd_per_gpu_hour
        for offer in market.offers
        if offer.price_from in ("user", "owned")
    }
    if given:
        options = msgspec.structs.replace(
            options, price=given, owned=None, amortise_years=None, power_price=None, pue=None
        )
    if options.offers is not None:
        listed = tuple(catalogue_of(market.options, market.query.cluster))
        options = msgspec.structs.replace(options, offers=listed)
    return replace(market.query, money=options)


def _what_if(
    market: RentalMarket, points: Sequence[PricedPlan], before: PricedPlan
) -> MarketWhatIf:
    """The answer in the changed market beside the one there is."""
    what = market.options.what_if
    assert what is not None
    if not points:
        return MarketWhatIf(what=what, plan=None, same_plan=False)
    row, outcome = chosen_row(points, market.goals, market.tokens)
    plan = points[row]
    assert plan.usd is not None and before.usd is not None
    assert plan.hours is not None and before.hours is not None
    same = (plan.summary, plan.gpus) == (before.summary, before.gpus)
    return MarketWhatIf(
        what=what,
        plan=plan,
        same_plan=same,
        usd_change=plan.usd - before.usd,
        hours_change=plan.hours - before.hours,
        possible=outcome is None or outcome.possible,
    )


def _nothing(query: Query, found: FrontierFound, limits: Limits) -> NothingFits:
    """Why the machine that comes closest holds no plan."""
    assert found.closest is not None
    if found.least_host is not None:
        return _host_too_small(query, *found.least_host)
    machine, best = found.closest
    why = nothing_fits(query.on(machine.cluster(query.cluster)), best, limits)
    return msgspec.structs.replace(why, reasons=(_closest(machine), *why.reasons))


def _closest(machine: Machine) -> Note:
    own = machine.offers[0].machine
    return note(NoteCode.CLOSEST_INSTANCE, cloud=own.cloud, instance=own.instance)


def _host_too_small(query: Query, need: float, machine: Machine, plan: Plan) -> NothingFits:
    """Plans fit their GPUs only with an offload that no machine has the RAM for."""
    (closest,) = price_plans([plan], query.margin)
    return NothingFits(
        closest=closest,
        reasons=(_closest(machine), ram_too_small(need, machine.room_bytes)),
        suggestions=(
            note(NoteCode.TRY_MORE_GPUS),
            note(NoteCode.TRY_OTHER_CLOUDS),
            note(NoteCode.TRY_OTHER_TYPE),
        ),
    )


def _market_result(
    market: RentalMarket, points: Sequence[PricedPlan], found: FrontierFound, latest: float
) -> MarketResult:
    goals = market.goals
    hours = np.array([point.hours for point in points], np.float64)
    usd = np.array([point.usd for point in points], np.float64)
    best, outcome = chosen_row(points, goals, market.tokens)
    saved, more = steps_along(hours, usd)
    return MarketResult(
        tokens=market.tokens,
        budget_usd=goals.budget_usd,
        deadline_hours=goals.deadline_h,
        order=goals.order,
        fastest=1,
        cheapest=len(points),
        knee=knee(hours, usd) + 1,
        wished=outcome,
        chosen=best + 1,
        next_saves_hours=tuple(saved.tolist()),
        next_costs_usd=tuple(more.tolist()),
        elsewhere=_other_regions(market, points[best], found.trades[best]),
        beaten=found.beaten,
        machines=tuple(_node_summary(machine, found.trades) for machine in market.machines),
        longest_hours=latest if np.isfinite(latest) else 0.0,
        conditions=msgspec.to_builtins(goals.conditions),
    )


def _other_regions(market: RentalMarket, best: PricedPlan, trade: Trade) -> tuple[OtherRegion, ...]:
    """The chosen plan on the same kind of machine in other places, cheapest first."""
    found: list[OtherRegion] = []
    if trade.machine is None:
        return ()
    for offer in (*trade.machine.offers, *trade.machine.elsewhere):
        if offer in trade.offers.values() or best.host_memory_bytes > usable_ram_bytes(
            offer.machine
        ):
            continue
        there = {trade.machine.gpu.name: offer}
        other = with_money(best, there, market.tokens, market.goals.conditions)
        assert other.usd_per_hour is not None and other.hours is not None and other.usd is not None
        found.append(
            OtherRegion(
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
    first: dict[str, OtherRegion] = {}
    for each in found:  # the cheapest of every cloud, on demand or spot
        first.setdefault(each.cloud, each)
    return tuple(list(first.values())[:MAX_OTHER_REGIONS])


def _node_summary(machine: Machine, trades: Sequence[Trade]) -> NodeSummary:
    first = machine.offers[0]
    spot = [offer.usd_per_gpu_hour for offer in machine.offers if offer.spot]
    steady = [offer for offer in machine.offers if not offer.spot]
    offer = steady[0] if steady else first
    return NodeSummary(
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
