"""A question over several GPU types whose replicas may differ: runtime `any`, answered."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.host import host_rules
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.cost.stages import stage_summaries
from astra.search.evaluator import Limits
from astra.search.makes.find import MakesFinder, ReplicaGroupsFound
from astra.search.mixed.answer import MIXES, idle_gpus, mixed_space, ranked_plans, solve_mixed
from astra.search.query import Query
from astra.search.result import Comparison, Funnel, Result
from astra.strategy.plan import Plan
from astra.strategy.rules.registry import broken_rules


def solve_any(query: Query, limits: Limits) -> Result:
    """The best that public runtimes launch, and the best whose replicas differ.

    The gap is proven against pipelines over several types, and a bound on plans whose replicas
    differ.
    """
    start, asked = time.perf_counter(), query
    launched = solve_mixed(replace(query, runtimes=MIXES), limits)
    limit = launched.best.step_s if launched.best else np.inf
    query = query.of_runtime("any")
    space = mixed_space(query.space)
    rules = (*query.rules, *host_rules(query.cluster, query.stack))
    finder = MakesFinder(space, rules, query.stack, query.margin, limit, limits.watch)
    found = finder.run()
    chosen = _folded(found) if query.fold else found
    priced = price_plans([_named(each.plan) for each in chosen[: query.top]], query.margin)
    plans = ranked_plans([*launched.plans, *priced], query)
    known, stock, removed = launched.funnel, finder.stock, finder.removed_by_rule
    return replace(
        launched,
        query=asked,
        plans=plans,
        nothing_fits=None if plans else launched.nothing_fits,
        comparison=_compared(query, launched, finder, plans),
        seconds=time.perf_counter() - start,
        funnel=Funnel(
            candidates=known.candidates + stock.candidates + removed.total() + finder.simulated,
            removed_by_rule=dict(stock.removed_by_rule + removed + Counter(known.removed_by_rule)),
            bounded=known.bounded + stock.bounded,
            out_of_memory=known.out_of_memory + stock.out_of_memory + finder.out_of_memory,
            priced=known.priced + stock.priced + finder.simulated,
            simulated=known.simulated + finder.simulated,
        ),
    )


def _folded(found: Sequence[ReplicaGroupsFound]) -> list[ReplicaGroupsFound]:
    """Of plans that differ in little but vpp, offload and recompute the fastest."""
    first: dict[object, ReplicaGroupsFound] = {}
    for each in found:
        plan = each.plan
        cuts = tuple(
            (pipeline.replicas, pipeline.micro_batches, s.gpu, s.tp, s.stages)
            for pipeline in plan.pipelines
            for s in pipeline.segments
        )
        first.setdefault((plan.micro_batch, plan.cp, plan.sharding, cuts), each)
    return list(first.values())


def _named(plan: Plan) -> Plan:
    """By the first runtime that launches it, if any does."""
    for runtime in MIXES if plan.is_one_job else ():
        launched = msgspec.structs.replace(plan, runtime=runtime)
        if not broken_rules(launched):
            return launched
    return plan


def _compared(
    query: Query, launched: Result, finder: MakesFinder, plans: tuple[PricedPlan, ...]
) -> Comparison | None:
    """What the best plan is worth; what is proven holds for both kinds of plans."""
    known = launched.comparison
    if known is None or not plans:
        return known
    best = plans[0]
    least = finder.bound_s
    if launched.best is not None:
        least = min(least, launched.best.step_s / (1 + known.gap_fraction))
    return msgspec.structs.replace(
        known,
        gap_fraction=max(best.step_s / least - 1, 0.0),
        idle=idle_gpus(query, plans),
        stages=stage_summaries(best, query.stack),
        launched_step_s=launched.best.step_s if launched.best else None,
    )
