"""A query answered: which search it needs, and what is said of the plans besides."""

from dataclasses import replace
from functools import partial

from astra.cost.bill import with_dollars
from astra.cost.host import ram_notes
from astra.cost.paper import compared
from astra.money.energy import without_energy
from astra.money.left_out import power_notes
from astra.notes import NoteCode, note
from astra.search.evaluator import Limits
from astra.search.objectives import search_of
from astra.search.query import Query
from astra.search.recommend import search_with_risk
from astra.search.result import Mixtures, NothingFits, Result


def solve(query: Query, limits: Limits | None = None, mixtures: Mixtures | None = None) -> Result:
    """The best plans of a query; "nothing fits" is a result.

    Where `limits` end the search, the best so far is the result, and its status says so.
    `mixtures`: those that a search for money of the same question found in another market.
    """
    limits = limits or Limits()
    found = _solve(query, limits, mixtures)
    if limits.stopped is None:
        return found
    early = note(
        NoteCode.STOPPED_EARLY,
        by=limits.stopped,
        candidates=found.funnel.candidates,
        plans=len(found.plans),
        gap_fraction=found.gap_fraction,
    )
    none_yet = NothingFits(closest=None, reasons=(note(NoteCode.NO_PLAN_YET),))
    return replace(
        found,
        status=limits.stopped,
        nothing_fits=None if found.plans else none_yet,
        notes=(*found.notes, early),
    )


def _solve(query: Query, limits: Limits, mixtures: Mixtures | None) -> Result:
    search = search_of(query.objective, len(query.cluster.pools))
    if query.is_for_money:
        search = partial(search, mixtures=mixtures)
    if query.risk != "none":
        search = partial(search_with_risk, search)
    if query.is_for_money:
        return search(query, limits)
    money = without_energy(query.money) if query.objective == "energy" else query.money
    market = query.cluster, query.offers, query.goals
    with_dollars((), money, *market)  # prices that cannot be are refused at once
    found = search(query, limits)
    plans = tuple(with_dollars(found.plans, money, *market))
    return replace(
        found,
        plans=plans,
        notes=(*found.notes, *ram_notes(plans), *power_notes(money)),
        paper=compared(plans) if query.pipeline_model == "paper" else None,
    )
