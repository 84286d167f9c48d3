"""A question over several GPU types whose replicas may differ: runtime `any`, answered."""

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.price import price_plans
from astra.cost.stages import stage_summaries
from astra.search.data_parallel import ReplicaGroups
from astra.search.evaluator import Limits, evaluator_of
from astra.search.mixed import USEFUL_GAP, idle_gpus, ranked_plans, solve_mixed
from astra.search.objective import Fastest
from astra.search.query import Query
from astra.search.result import Result, sum_funnels
from astra.strategy.mixed_space import MIXES
from astra.strategy.plan import Plan
from astra.strategy.rules.registry import broken_rules

MAX_KEPT = 64  # plans whose replicas differ, before near-identical ones are folded


def solve_any(query: Query, limits: Limits) -> Result:
    """The best that public runtimes launch, and the best whose replicas differ."""
    start, asked = time.perf_counter(), query
    launched = solve_mixed(replace(query, runtimes=MIXES), limits)
    limit_s = launched.best.step_s if launched.best else np.inf
    query = query.of_runtime("any")
    evaluator = evaluator_of(query, Fastest(MAX_KEPT, ceiling_s=limit_s), limits)
    bound_s = evaluator.run(ReplicaGroups(query.space).search)
    found = evaluator.plans()
    chosen = _folded(found) if query.fold else found
    priced = price_plans([_launchable(plan) for plan in chosen[: query.top]], query.margin)
    plans = ranked_plans([*launched.plans, *priced], query)
    gap = _gap(launched, bound_s, plans[0].step_s) if plans else None
    comparison = launched.comparison
    if comparison and plans:
        comparison = msgspec.structs.replace(
            comparison,
            gap_fraction=gap,
            idle=idle_gpus(query, plans),
            stages=stage_summaries(plans[0], query.stack),
            launched_step_s=launched.best.step_s if launched.best else None,
        )
    return replace(
        launched,
        query=asked,
        plans=plans,
        nothing_fits=None if plans else launched.nothing_fits,
        comparison=comparison,
        gap_fraction=gap,
        seconds=time.perf_counter() - start,
        funnel=sum_funnels([launched.funnel, evaluator.funnel]),
    )


def _gap(launched: Result, bound_s: float, best_s: float) -> float | None:
    """How much faster a plan of either kind may be than the best; None: not usefully known."""
    if launched.best:
        if launched.gap_fraction is None:
            return None
        bound_s = min(bound_s, launched.best.step_s / (1 + launched.gap_fraction))
    is_useful = bound_s * (1 + USEFUL_GAP) >= best_s
    return max(best_s / bound_s - 1, 0.0) if is_useful else None


def _folded(plans: Sequence[Plan]) -> list[Plan]:
    """Of plans that differ in little but vpp, offload and recompute the fastest."""
    first: dict[object, Plan] = {}
    for plan in plans:
        cuts = tuple(
            (pipeline.replicas, pipeline.micro_batches, s.gpu, s.tp, s.stages)
            for pipeline in plan.pipelines
            for s in pipeline.segments
        )
        first.setdefault((plan.micro_batch, plan.cp, plan.sharding, cuts), plan)
    return list(first.values())


def _launchable(plan: Plan) -> Plan:
    """By the first runtime that launches it, if any does."""
    for runtime in MIXES if plan.is_one_job else ():
        launched = msgspec.structs.replace(plan, runtime=runtime)
        if not broken_rules(launched):
            return launched
    return plan
