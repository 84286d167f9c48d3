"""A question over several GPU types whose replicas may differ: runtime `any`, answered."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.search.answer import Answer, Mixed, Search, Wanted, rules_of
from astra.search.by_stage import stages_of
from astra.search.find import Progress
from astra.search.host import host_rules
from astra.search.makes.find import Found, MakesFinder
from astra.search.mixed.answer import (
    MIXES,
    answer_mixed,
    as_runtime,
    idle_gpus,
    mixed_space,
    ranked_plans,
)
from astra.search.price import price_many
from astra.search.priced import Priced
from astra.strategy.plan import Plan
from astra.strategy.rules.registry import broken_rules


def answer_any(
    wanted: Wanted, request: dict[str, object], progress: Progress | None = None
) -> Answer:
    """The best that public runtimes launch, and the best whose replicas differ.

    The gap is proven against pipelines over several types, and a bound on plans whose replicas
    differ.
    """
    start = time.perf_counter()
    launched = answer_mixed(replace(wanted, runtimes=MIXES), request, progress)
    limit = launched.best.step_s if launched.best else np.inf
    wanted = as_runtime(wanted, "any")
    space = mixed_space(wanted.space)
    rules = (*rules_of(wanted), *host_rules(space.question.task.cluster, wanted.stack))
    finder = MakesFinder(space, rules, wanted.stack, wanted.margin, limit, progress)
    found = finder.run()
    chosen = _folded(found) if wanted.fold else found
    priced = price_many([_named(each.plan) for each in chosen[: wanted.top]], wanted.margin)
    plans = ranked_plans([*launched.plans, *priced], wanted)
    search, stock, removed = launched.search, finder.stock, finder.removed_by_rule
    return msgspec.structs.replace(
        launched,
        plans=plans,
        nothing_fits=None if plans else launched.nothing_fits,
        mixed=_told(wanted, launched, finder, plans),
        search=Search(
            candidates=search.candidates + stock.candidates + removed.total() + finder.simulated,
            removed_by_rule=dict(stock.removed_by_rule + removed + Counter(search.removed_by_rule)),
            bounded=search.bounded + stock.bounded,
            out_of_memory=search.out_of_memory + stock.out_of_memory + finder.out_of_memory,
            priced=search.priced + stock.priced + finder.simulated,
            simulated=search.simulated + finder.simulated,
            seconds=round(time.perf_counter() - start, 3),
        ),
    )


def _folded(found: Sequence[Found]) -> list[Found]:
    """Of plans that differ in little but vpp, offload and recompute the fastest."""
    first: dict[object, Found] = {}
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


def _told(
    wanted: Wanted, launched: Answer, finder: MakesFinder, plans: tuple[Priced, ...]
) -> Mixed | None:
    """What the best plan is worth; what is proven holds for both kinds of plans."""
    known = launched.mixed
    if known is None or not plans:
        return known
    best = plans[0]
    least = finder.bound_s
    if launched.best is not None:
        least = min(least, launched.best.step_s / (1 + known.gap_fraction))
    return msgspec.structs.replace(
        known,
        gap_fraction=max(best.step_s / least - 1, 0.0),
        idle=idle_gpus(wanted, plans),
        stages=stages_of(best, wanted.stack),
        launched_step_s=launched.best.step_s if launched.best else None,
    )
