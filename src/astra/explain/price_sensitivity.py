"""How far a price must move for the answer to change: all that may be chosen, searched for."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from astra.errors import InputError
from astra.explain.explained_plan import Say
from astra.money.price_sensitivity import Choice, PriceSensitivity, price_move
from astra.money.user_prices import YEAR_H
from astra.notes import Note, NoteCode, note
from astra.search.evaluator import Limits
from astra.search.query import Query
from astra.search.recommend import with_sure_margin
from astra.search.rent import frontier_plans, market_of, search_market


def price_sensitivity(
    query: Query, say: Say, mixed: Sequence[Choice] = ()
) -> tuple[tuple[PriceSensitivity, ...], tuple[Note, ...]]:
    """For every GPU type: the least change of its prices alone with which another plan is chosen.

    Prices of a type scale all its rents alike, so what may be chosen on one type at any price is
    on its own frontier. `mixed`: plans on several types that are on the frontier as prices are;
    others are not looked for, which is said.
    """
    assert query.money is not None and query.goals is not None
    alone = replace(
        with_sure_margin(query), money=msgspec.structs.replace(query.money, mixed=False)
    )
    market = market_of(alone)
    choices = list(mixed)
    for pool in query.cluster.pools:
        say(note(NoteCode.TYPE_ALONE, gpu=pool.gpu.name))
        own = alone.on(msgspec.structs.replace(query.cluster, pools=(pool,)))
        found = frontier_plans(search_market(replace(market, query=own), Limits()))
        choices += [msgspec.convert(point, Choice, from_attributes=True) for point in found]
    if not choices and query.risk != "none":  # none is so sure to fit
        return price_sensitivity(replace(query, risk="none"), say, mixed)
    if not choices:
        raise InputError("no plan fits, so no price can change the answer.")
    latest = query.goals.max_hours or max(YEAR_H, query.goals.deadline_h or 0.0)
    if query.goals.budget_usd is None:  # as the search of all types leaves out what takes longer
        choices = [each for each in choices if each.hours <= latest] or choices
    priced = {offer.machine.gpu for offer in market.offers if offer.price_from != "owned"}
    names = [pool.gpu.name for pool in query.cluster.pools if pool.gpu.name in priced]
    moves = tuple(price_move(name, choices, query.goals) for name in names)
    return moves, (note(NoteCode.MIXED_PRICES),) if mixed else ()
