"""The best plans on one GPU type, proven: no plan of the space has a shorter simulated step."""

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.bill import with_energy
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.hardware.topology import allowed_counts
from astra.money.energy import energy_of
from astra.notes import NoteCode, note
from astra.search.evaluator import Evaluator, Limits, evaluator_of
from astra.search.nothing_fits import least_of, nothing_fits, with_count
from astra.search.objective import Fastest, LeastEnergy, Objective
from astra.search.one_type import OneType, objective_of, search_best
from astra.search.query import Query
from astra.search.recommend import ranked
from astra.search.result import Result


def solve_one_type(query: Query, limits: Limits, objective: Objective | None = None) -> Result:
    """The fastest plans, or those that another objective wants."""
    start = time.perf_counter()
    searched = evaluator_of(query, objective or objective_of(query), limits)
    searched.is_alone = True
    searched.run(OneType(query.space).search)
    priced = price_plans(searched.plans(), query.margin)
    plans = ranked(priced, query) if objective is None else tuple(priced)
    only_faster = np.isfinite(query.faster_than_s)
    return Result(
        query=query,
        funnel=searched.funnel,
        seconds=time.perf_counter() - start,
        plans=plans,
        nothing_fits=None if plans or only_faster else nothing_fits(query, searched, limits),
        notes=query.notes,
        status=limits.stopped or "proven",
        gap_fraction=_gap(searched, plans, limits),
    )


def _gap(searched: Evaluator, plans: Sequence[PricedPlan], limits: Limits) -> float | None:
    """How much faster a plan may be at most, where the search was stopped; else none is."""
    if limits.stopped is None:
        return 0.0
    known = isinstance(searched.objective, Fastest) and 0 < searched.least_s < np.inf
    return max(plans[0].step_s / searched.least_s - 1, 0.0) if known and plans else None


def least_energy(query: Query, limits: Limits) -> Result:
    """The plans that train with the fewest kWh; each says how many."""
    energy_of(query.cluster.pools[0].gpu, 0.0, 1, query.money)  # what is not known is said at once
    found = solve_one_type(
        query, limits, LeastEnergy(query.top, query.fold, is_weighed=query.risk != "none")
    )
    places = enumerate((with_energy(plan, query.money) for plan in found.plans), 1)
    plans = tuple(msgspec.structs.replace(plan, rank=place) for place, plan in places)
    return replace(found, plans=plans)


def fewest_gpus(query: Query, limits: Limits) -> Result:
    """The best plans on the fewest GPUs that fit the model, or that reach a throughput.

    More GPUs never take longer, so the least count is found by halving.
    """
    pool = query.cluster.pools[0]
    cap = min(pool.count, query.cluster.max_gpus or pool.count)
    counts = [count for count in allowed_counts(pool) if count <= cap]

    def enough(count: int) -> bool:
        best_s = search_best(with_count(replace(query, top=1, risk="none"), count), limits).best_s
        return best_s < np.inf and query.tokens_per_step / best_s >= query.min_tokens_per_s

    found = solve_one_type(with_count(query, least_of(counts, enough)), limits)
    return reaching(replace(found, query=query), cap)


def reaching(found: Result, cap: int) -> Result:
    """Without the plans that stay below; all of them, with a word, where none reaches it."""
    least = found.query.min_tokens_per_s
    enough = tuple(plan for plan in found.plans if plan.tokens_per_s >= least)
    if enough or not found.plans:
        return replace(found, plans=enough)
    below = note(NoteCode.BELOW_THROUGHPUT, gpus=cap, tokens_per_s=least)
    return replace(found, notes=(*found.notes, below))
