"""Which GPUs to rent: the frontier of hours and dollars, what the goals come to, what else is."""

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.bill import with_money
from astra.cost.host import ram_notes
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.money.frontier import frontier, steps_along
from astra.money.goals import GoalOutcome, knee_row, ranks
from astra.money.machines import node_summary
from astra.money.offers import (
    conditions_of_owner,
    offers_of,
    price_notes,
    with_prices,
)
from astra.money.options import Goals, MoneyOptions
from astra.money.user_prices import YEAR_H
from astra.notes import NoteCode, note
from astra.recommend.market_result import FrontierPlan, MarketResult
from astra.recommend.money_answer import (
    chances,
    chosen_point,
    hours_and_usd,
    on_known_networks,
    other_regions,
    spot_range,
)
from astra.search.evaluator import Limits
from astra.search.market import MarketSearch, RentalMarket
from astra.search.mixed_market import add_mixtures
from astra.search.nothing_fits import nothing_fits
from astra.search.query import Query
from astra.search.result import Funnel, Mixtures, NothingFits, Result


def _asked(query: Query) -> tuple[MoneyOptions, Goals]:
    assert query.money is not None and query.goals is not None
    return query.money, query.goals


def market_of(query: Query, mixtures: Mixtures | None = None) -> RentalMarket:
    options, goals = _asked(query)
    if goals.tokens is None:
        raise InputError(
            "how many tokens are to be trained? Give --tokens, such as --tokens 1T; hours and "
            "dollars follow from them."
        )
    offers = query.offers or offers_of(options, query.cluster)
    paid = conditions_of_owner(options, query.cluster, goals.conditions)
    market = RentalMarket(query=query, offers=offers, tokens=goals.tokens, conditions=paid)
    return market if mixtures is None else replace(market, mixtures=mixtures)


def search_market(market: RentalMarket, limits: Limits) -> MarketSearch:
    """The frontier, of one type and of several."""
    options, goals = _asked(market.query)
    latest = goals.max_hours or max(YEAR_H, goals.deadline_h or 0.0)
    before: list[Funnel] = []
    for longest in (latest, np.inf):  # nothing within a year, or none so cheap: whatever it takes
        found = MarketSearch(market, limits, longest).run()
        found.count(*before)
        before = [found.funnel]
        if found.trades and (goals.max_hours or _affordable(goals, found)):
            break
    if options.mixed:
        add_mixtures(found, options.any_region)
    return found


def _affordable(goals: Goals, found: MarketSearch) -> bool:
    """Whether a plan keeps the budget, or none is worth looking for that takes longer."""
    if goals.budget_usd is None or goals.deadline_h is not None:
        return True
    return min(trade.usd for trade in found.trades) <= goals.budget_usd


def frontier_plans(found: MarketSearch) -> list[PricedPlan]:
    """The frontier as priced plans, fastest first, without those that only their settings saved."""
    market = found.market
    plans = price_plans([trade.plan for trade in found.trades], market.query.margin)
    billed = [
        with_money(plan, trade.offers, market.tokens, market.conditions)
        for plan, trade in zip(plans, found.trades, strict=True)
    ]
    rows = frontier(*hours_and_usd(billed)).tolist()
    found.trades = [found.trades[row] for row in rows]
    return [billed[row] for row in rows]


def solve_for_money(query: Query, limits: Limits, mixtures: Mixtures | None = None) -> Result:
    """The frontier of hours and dollars, exactly, and the answer; `mixtures`: what is known."""
    start, (options, goals) = time.perf_counter(), _asked(query)
    market = market_of(query, mixtures)
    found = search_market(market, limits)
    points = frontier_plans(found)
    bought = None
    if points:
        best, outcome = chosen_point(points, goals)
        places = ranks(*hours_and_usd(points), best, goals)
        points = [
            msgspec.structs.replace(point, rank=place)
            for point, place in zip(points, places, strict=True)
        ]
        bought = _market_result(found, points, best, outcome)
    return Result(
        query=replace(query, money=with_prices(options, query.cluster, market.offers)),
        funnel=found.funnel,
        seconds=time.perf_counter() - start,
        plans=tuple(sorted(points, key=lambda point: point.rank)[: query.top]),
        nothing_fits=None if points else _nothing(found),
        frontier=tuple(points),
        market=bought,
        mixtures=market.mixtures,
        notes=(
            *query.notes,
            *price_notes(options, query.cluster, market.offers),
            *found.notes,
            *ram_notes(points),
        ),
    )


def _nothing(found: MarketSearch) -> NothingFits:
    """Why the machine that comes closest holds no plan: its GPUs, or its RAM for an offload."""
    machine, searched = found.closest
    query, own = found.market.query, machine.offers[0].machine
    heading = note(NoteCode.CLOSEST_INSTANCE, cloud=own.cloud, instance=own.instance)
    has_room = searched.least_host[1] is None
    on = replace(query.on(machine.cluster(query.cluster)), suggest=query.suggest and has_room)
    why = nothing_fits(on, searched, found.limits)
    codes = (NoteCode.TRY_MORE_GPUS, NoteCode.TRY_OTHER_CLOUDS, NoteCode.TRY_OTHER_TYPE)
    return msgspec.structs.replace(
        why,
        reasons=(heading, *why.reasons),
        suggestions=why.suggestions if has_room else tuple(map(note, codes)),
    )


def _market_result(
    found: MarketSearch,
    points: Sequence[PricedPlan],
    best: int,
    outcome: GoalOutcome | None,
) -> MarketResult:
    market, (_, goals) = found.market, _asked(found.market.query)
    hours, usd = hours_and_usd(points)
    saved, more = steps_along(hours, usd)
    machines, trade = [each.machine for each in found.trades], found.trades[best]
    rented, there = (trade.machine, trade.offers, market.tokens), market.conditions
    known = points, best, market.machines, goals, there, market.query.margin
    return MarketResult(
        tokens=market.tokens,
        budget_usd=goals.budget_usd,
        deadline_hours=goals.deadline_h,
        order=goals.order,
        fastest=1,
        cheapest=len(points),
        knee=knee_row(hours, usd, goals) + 1,
        wished=outcome,
        chosen=best + 1,
        next_saves_hours=tuple(saved.tolist()),
        next_costs_usd=tuple(more.tolist()),
        elsewhere=other_regions(points[best], *rented, there),
        beaten=tuple(sorted(found.beaten)),
        beaten_plans=tuple(
            FrontierPlan(summary=lost.plan.summary(), gpus=lost.plan.gpus, hours=hours, usd=usd)
            for (hours, usd), lost in sorted(found.beaten.items(), key=lambda each: each[0])
        ),
        machines=tuple(node_summary(each, machines.count(each)) for each in market.machines),
        longest_hours=found.latest_h if np.isfinite(found.latest_h) else 0.0,
        conditions=msgspec.to_builtins(there),
        chances=tuple(chances(point, goals) for point in points),
        known_network=on_known_networks(*known),
        spot_range=spot_range(points[best], trade.offers, there),
        mixtures=found.mixtures,
    )
