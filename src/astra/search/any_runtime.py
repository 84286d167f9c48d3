"""A question over several GPU types whose replicas may differ: runtime `any`, answered."""

import time
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.price import price_plans
from astra.cost.stages import stage_summaries
from astra.search.data_parallel import ReplicaGroups
from astra.search.evaluator import Limits, evaluator_of
from astra.search.mixed import idle_gpus, solve_mixed
from astra.search.objective import Fastest
from astra.search.query import Query
from astra.search.recommend import ranked
from astra.search.result import Result, sum_funnels
from astra.strategy.mixed_space import MIXES
from astra.strategy.plan import Plan
from astra.strategy.rules.registry import broken_rules


def solve_any(query: Query, limits: Limits) -> Result:
    """The best that public runtimes launch, and the best whose replicas differ."""
    start, asked = time.perf_counter(), query
    launched = solve_mixed(replace(query, runtimes=MIXES), limits)
    limit_s = launched.best.step_s if launched.best else np.inf
    query = query.of_runtime("any")
    evaluator = evaluator_of(query, Fastest(query.top, query.fold, limit_s), limits)
    evaluator.run(ReplicaGroups(query.space).search)
    priced = price_plans([_launchable(plan) for plan in evaluator.plans()], query.margin)
    plans = ranked([*launched.plans, *priced], query)
    comparison = launched.comparison
    if comparison and plans:
        comparison = msgspec.structs.replace(
            comparison,
            gap_fraction=None,
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
        gap_fraction=None,  # nothing is known of replicas that differ
        seconds=time.perf_counter() - start,
        funnel=sum_funnels([launched.funnel, evaluator.funnel]),
    )


def _launchable(plan: Plan) -> Plan:
    """By the first runtime that launches it, if any does."""
    for runtime in MIXES if plan.is_one_job else ():
        launched = msgspec.structs.replace(plan, runtime=runtime)
        if not broken_rules(launched):
            return launched
    return plan
