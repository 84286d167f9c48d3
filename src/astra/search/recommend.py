"""The plans that are recommended: of the least expected step among those that are sure to fit.

How sure a plan must be is a share of the memory that is kept free, so that every search knows it;
where none is so sure, all that fit count.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.result import PricedPlan
from astra.memory.fit_probability import margin_of
from astra.notes import NoteCode, note
from astra.recommend.expectation import expected_steps_s, recommendation
from astra.search.evaluator import Limits
from astra.search.query import Query
from astra.search.result import Result
from astra.strategy.plan import Plan

CANDIDATES = 10  # plans, at least, of which the best is recommended

Search = Callable[[Query, Limits], Result]


def ranked(priced: Sequence[PricedPlan], query: Query) -> tuple[PricedPlan, ...]:
    """The best first; what two runtimes launch alike is told once, of the first."""
    is_weighed = query.risk != "none"
    cost_s = expected_steps_s(priced) if is_weighed else [each.step_s for each in priced]
    kept: dict[Plan, PricedPlan] = {}
    for _, each in sorted(zip(cost_s, priced, strict=True), key=lambda pair: pair[0]):
        kept.setdefault(msgspec.structs.replace(each.plan, runtime="any"), each)
    places = enumerate(list(kept.values())[: query.top], 1)
    return tuple(msgspec.structs.replace(each, rank=place) for place, each in places)


def with_sure_margin(query: Query) -> Query:
    """With as much memory kept free as its risk asks for."""
    if query.risk == "none":
        return query
    sure = margin_of(recommendation().risk[query.risk])
    return replace(query, margin=max(query.margin, sure))


def search_with_risk(search: Search, query: Query, limits: Limits) -> Result:
    """The answer of a search whose plans fit as surely as is asked, or else of all that fit; on one
    GPU type beside it the fastest on paper.
    """
    sure = with_sure_margin(replace(query, suggest=False))
    if not query.is_for_money:
        sure = replace(sure, top=max(query.top, CANDIDATES))
    found = search(sure, limits)
    if not found.plans and limits.stopped is None:
        found = search(query, limits)
        unsure = note(NoteCode.NONE_FITS_SURELY, probability=recommendation().risk[query.risk])
        return replace(found, notes=(*found.notes, unsure)) if found.plans else found
    found = replace(found, query=query)
    if query.is_for_money:
        return found
    best = found.plans[: query.top]
    if query.objective != "time" or len(query.cluster.pools) > 1:
        return replace(found, plans=best)
    below_s = min((plan.step_s for plan in found.plans), default=np.inf)
    paper = search(replace(query, top=1, risk="none", faster_than_s=below_s), limits)
    seconds = found.seconds + paper.seconds
    # The first plans of a search are kept whatever limit it has: they may be slower.
    fastest = min((*found.plans, *paper.plans), key=lambda plan: plan.step_s, default=None)
    return replace(found, plans=best, seconds=seconds, fastest_on_paper=fastest)
