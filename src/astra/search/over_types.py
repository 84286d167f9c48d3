"""The best plans over several GPU types: of each vendor by itself, for each runtime asked."""

from dataclasses import replace

import msgspec

from astra.hardware.vendors import vendor_note
from astra.search.any_runtime import solve_any
from astra.search.best_plans import reaching
from astra.search.evaluator import Limits
from astra.search.mixed import solve_mixed
from astra.search.query import Query
from astra.search.result import Result
from astra.search.vendors import solve_each_vendor


def solve_over_types(query: Query, limits: Limits) -> Result:
    """The fastest plans."""
    apart = vendor_note(query.cluster)
    if apart:
        return solve_each_vendor(query, apart, limits, solve_over_types)
    return solve_any(query, limits) if "any" in query.runtimes else solve_mixed(query, limits)


def fewest_over_types(query: Query, limits: Limits) -> Result:
    """The best plans on the fewest GPUs of all types that fit, or that reach a throughput.

    More GPUs never take longer, so the least total is found by halving.
    """
    best = solve_over_types(query, limits)

    def used(found: Result) -> int | None:
        enough = [plan for plan in found.plans if plan.tokens_per_s >= query.min_tokens_per_s]
        return min((sum(plan.gpus.values()) for plan in enough), default=None)

    def capped(gpus: int) -> Result:
        smaller = query.on(msgspec.structs.replace(query.cluster, max_gpus=gpus))
        return replace(solve_over_types(smaller, limits), query=query)

    high, low = used(best), 0  # the most that is enough, and one that is not
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        now = used(capped(middle))
        low, high = (low, now) if now is not None else (middle, high)
    if high is not None:
        best = capped(high)
    return reaching(best, sum(pool.count for pool in query.cluster.pools))
