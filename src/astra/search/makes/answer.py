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
from astra.search.mixed.answer import answer_mixed, mixed_space
from astra.search.price import price_many
from astra.search.priced import Priced
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.rules.book import judge
from astra.strategy.space import Space


def answer_any(
    wanted: Wanted, request: dict[str, object], progress: Progress | None = None
) -> Answer:
    """The best plan of one pipeline, as FlagScale launches it, and the best of several makes.

    The gap is proven against both: FlagScale's optimum, and a bound on plans of several makes.
    """
    start = time.perf_counter()
    launched = answer_mixed(_as(wanted, "flagscale"), request, progress)
    limit = launched.best.step_s if launched.best else np.inf
    space = mixed_space(wanted.space)
    rules = (*rules_of(wanted), *host_rules(space.question.task.cluster, wanted.stack))
    finder = MakesFinder(space, rules, wanted.stack, wanted.margin, limit, progress)
    found = finder.run()
    chosen = _folded(found) if wanted.fold else found
    priced = price_many([_named(each.plan) for each in chosen[: wanted.top]], wanted.margin)
    plans = _ranked([*launched.plans, *priced], wanted)
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


def _as(wanted: Wanted, runtime: str) -> Wanted:
    question = wanted.space.question
    task = msgspec.structs.replace(question.task, runtime=runtime)
    return replace(wanted, space=Space(replace(question, task=task), wanted.space.chosen))


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
    """A plan of one pipeline is one that FlagScale launches."""
    if len(plan.pipelines) > 1:
        return plan
    return msgspec.structs.replace(plan, runtime="flagscale")


def _ranked(priced: list[Priced], wanted: Wanted) -> tuple[Priced, ...]:
    """The fastest first, those that the user's own rules accept."""
    kept = []
    for each in sorted(priced, key=lambda each: each.step_s):
        verdict = judge(plans_of([each.plan]), task_of(each.plan), wanted.own_rules)
        if verdict.allowed[0]:
            kept.append(each)
    some = enumerate(kept[: wanted.top], 1)
    return tuple(msgspec.structs.replace(each, rank=place) for place, each in some)


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
    caps = {pool.gpu.name: pool.count for pool in wanted.space.question.task.cluster.pools}
    idle = {name: count - best.gpus.get(name, 0) for name, count in caps.items()}
    return msgspec.structs.replace(
        known,
        gap_fraction=max(best.step_s / least - 1, 0.0),
        idle={name: count for name, count in idle.items() if count},
        stages=stages_of(best, wanted.stack),
        launched_step_s=launched.best.step_s if launched.best else None,
    )
