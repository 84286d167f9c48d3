"""The best plans on one GPU type, proven: no plan of the space has a shorter simulated step."""

import time
from dataclasses import replace

import msgspec

from astra.cost.price import price_plans
from astra.hardware.topology import allowed_counts
from astra.notes import NoteCode, note
from astra.search.nothing_fits import finder_of, least_of, nothing_fits, with_count
from astra.search.query import Query
from astra.search.result import Progress, Result
from astra.strategy.plans import plan_at


def solve_one_type(query: Query, progress: Progress | None = None) -> Result:
    """The fastest plans."""
    start = time.perf_counter()
    best = finder_of(query).run(progress)
    task = query.task
    rows = range(len(best.plans)) if best.plans is not None else ()
    priced = price_plans(
        [plan_at(best.plans, row, task) for row in rows if best.plans is not None], query.margin
    )
    ranked = [msgspec.structs.replace(plan, rank=place) for place, plan in enumerate(priced, 1)]
    nothing = None if ranked else nothing_fits(query, best)
    return Result(
        query=query,
        funnel=best.funnel,
        seconds=time.perf_counter() - start,
        plans=tuple(ranked),
        nothing_fits=nothing,
        notes=query.notes,
    )


def fewest_gpus(query: Query, progress: Progress | None) -> Result:
    """The best plans on the fewest GPUs that fit the model, or that reach a throughput.

    More GPUs never take longer, so the least count is found by halving.
    """
    pool = query.cluster.pools[0]
    cap = min(pool.count, query.cluster.max_gpus or pool.count)
    counts = [count for count in allowed_counts(pool) if count <= cap]

    def enough(count: int) -> bool:
        best = finder_of(with_count(replace(query, top=1), count)).run(progress)
        reached = best.plans is not None
        return reached and query.tokens_per_step / best.step_s[0] >= query.min_tokens_per_s

    found = solve_one_type(with_count(query, least_of(counts, enough)), progress)
    return reaching(replace(found, query=query), cap)


def reaching(found: Result, cap: int) -> Result:
    """Without the plans that stay below; all of them, with a word, where none reaches it."""
    least = found.query.min_tokens_per_s
    enough = tuple(plan for plan in found.plans if plan.tokens_per_s >= least)
    if enough or not found.plans:
        return replace(found, plans=enough)
    below = note(NoteCode.BELOW_THROUGHPUT, gpus=cap, tokens_per_s=least)
    return replace(found, notes=(*found.notes, below))
