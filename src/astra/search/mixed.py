"""The best plans over several GPU types that a public runtime launches.

Each type alone and uniform plans over types, both by the rules of the first runtime that is asked;
then pipelines that mix types by the rules of each runtime, below what was found before. The answer
compares them.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.cost.stage_lines import LineCache
from astra.cost.stages import stage_summaries
from astra.hardware.slowest import flops_per_s
from astra.notes import Note, NoteCode, note
from astra.search.evaluator import Evaluator, Limits
from astra.search.nothing_fits import nothing_fits
from astra.search.one_type import search_best
from astra.search.pipelines import Pipelines
from astra.search.query import Query
from astra.search.recommend import ranked
from astra.search.result import Comparison, NothingFits, Result, sum_funnels
from astra.search.uniform import UniformSearch
from astra.strategy.mixed_space import MIXES, lacking
from astra.strategy.plan import Runtime
from astra.strategy.plans import plans_of, task_of
from astra.strategy.rules.registry import check, rules_for

COMPARED = 1.3  # times the best of all, up to which what another runtime reaches is told
USEFUL_GAP = 0.1  # a larger gap says nothing


def solve_mixed(query: Query, limits: Limits) -> Result:
    """The best plans over several types."""
    start, runtimes, asked = time.perf_counter(), query.runtimes, query
    known = LineCache()
    pipelines = {
        own.runtime: Pipelines(own, limits, known)
        for own in (query.of_runtime(runtime) for runtime in runtimes if runtime in MIXES)
    }
    query = query.of_runtime(query.runtime)
    left_out = _left_out(query, [each for each in pipelines.values() if each.why_not is None])
    names = [pool.gpu.name for pool in query.cluster.pools if pool.gpu.name not in left_out]
    one = replace(query, top=1)
    singles = {name: search_best(_single(one, name), limits) for name in names}
    uniform = UniformSearch(query, singles, limits)
    found = [*([] if query.use_all else _plans(singles, query)), *uniform.search()]
    steps_s = {runtime: _fastest_s(_launched_by(runtime, found)) for runtime in runtimes}
    for runtime, each in pipelines.items():
        mixed = each.search(min(steps_s[runtime], COMPARED * _fastest_s(found)))
        steps_s[runtime] = min(steps_s[runtime], _fastest_s(mixed))
        found += mixed
    plans = ranked(found, query)
    slowest_s = COMPARED * _fastest_s(found)
    even_s = None if limits.stopped else _even_split_s(pipelines)
    uniform_s = min(uniform.evaluator.best_s, np.inf if even_s is None else even_s)
    gap = None if limits.stopped or not plans else _gap(plans[0].step_s, pipelines.values())
    evaluators = [*singles.values(), *(each.evaluator for each in pipelines.values())]
    return Result(
        query=asked,
        funnel=sum_funnels([*(each.funnel for each in evaluators), *uniform.funnels]),
        seconds=time.perf_counter() - start,
        plans=plans,
        nothing_fits=None if plans else _nothing(query, singles, limits),
        notes=(*asked.notes, *(each.why_not for each in pipelines.values() if each.why_not)),
        gap_fraction=gap,
        comparison=Comparison(
            gap_fraction=gap,
            alone_step_s={
                name: best.best_s if np.isfinite(best.best_s) else None
                for name, best in singles.items()
                if limits.stopped is None or np.isfinite(best.best_s)
            },
            uniform_step_s=uniform_s if uniform_s < np.inf else None,
            even_split_step_s=even_s,
            runtimes_step_s={
                runtime: step_s if step_s < slowest_s else None
                for runtime, step_s in steps_s.items()
                if limits.stopped is None or step_s < slowest_s
            },
            pipelines_of=tuple(r for r, each in pipelines.items() if each.why_not is None),
            idle=idle_gpus(query, plans),
            types_left_out=tuple(left_out.values()),
            stages=stage_summaries(plans[0], query.stack) if plans else (),
        ),
    )


def _left_out(query: Query, searched: Sequence[Pipelines]) -> dict[str, Note]:
    """Types that lack units for the format, or that no search for pipelines can use."""
    found = {
        pool.gpu.name: lacking(pool, query.precision)
        for pool in query.cluster.pools
        if not flops_per_s(pool.gpu, query.precision)
    }
    for name, why in (searched[0].left_out if searched else {}).items():
        if all(name in each.left_out for each in searched):
            found.setdefault(name, why)
    return found


def _gap(best_s: float, pipelines: Iterable[Pipelines]) -> float | None:
    """How much faster a pipeline may be than the best plan, at most; None: not usefully known."""
    least_s = best_s
    for each in pipelines:
        least_s = min(least_s, each.least_s(best_s))
        if best_s > least_s * (1 + USEFUL_GAP):
            return None
    return best_s / least_s - 1


def _even_split_s(pipelines: Mapping[Runtime, Pipelines]) -> float | None:
    """Of the last runtime that mixes types: FlagScale's meshes may have any even split."""
    searched = [each for each in pipelines.values() if each.problem is not None]
    return searched[-1].even_split_s() if searched else None


def _launched_by(runtime: Runtime, priced: Sequence[PricedPlan]) -> list[PricedPlan]:
    """Of these plans those that the rules of a runtime accept."""
    if not priced:
        return []
    task = msgspec.structs.replace(task_of(priced[0].plan), runtime=runtime)
    allowed = check(plans_of([each.plan for each in priced]), task, rules_for(runtime)).allowed
    return [each for each, held in zip(priced, allowed, strict=True) if held]


def _fastest_s(plans: Sequence[PricedPlan]) -> float:
    return min((plan.step_s for plan in plans), default=np.inf)


def idle_gpus(query: Query, plans: Sequence[PricedPlan]) -> dict[str, int]:
    """GPUs that the best plan leaves alone."""
    used = plans[0].gpus if plans else {}
    pools = query.cluster.pools
    idle = {pool.gpu.name: pool.count - used.get(pool.gpu.name, 0) for pool in pools}
    return {name: count for name, count in idle.items() if count}


def _single(query: Query, name: str) -> Query:
    pools = tuple(pool for pool in query.cluster.pools if pool.gpu.name == name)
    return query.on(msgspec.structs.replace(query.cluster, pools=pools))


def _plans(singles: dict[str, Evaluator], query: Query) -> list[PricedPlan]:
    """The plans on one type, as plans on the whole cluster, that the rules accept there."""
    whole = [
        msgspec.structs.replace(plan, cluster=query.cluster)
        for each in singles.values()
        for plan in each.plans()
    ]
    if not whole:
        return []
    allowed = check(plans_of(whole), query.task, query.rules).allowed
    return price_plans([whole[row] for row in np.flatnonzero(allowed)], query.margin)


def _nothing(query: Query, singles: dict[str, Evaluator], limits: Limits) -> NothingFits:
    """As of the type that comes closest to holding a plan."""
    name = min(singles, key=lambda each: singles[each].closest[0])
    why = nothing_fits(_single(query, name), singles[name], limits)
    return msgspec.structs.replace(
        why,
        reasons=(note(NoteCode.CLOSEST_TYPE, gpu=name), *why.reasons),
        suggestions=tuple(
            note(each.code, **{**each.facts, "gpu": name}) if "gpu" in each.facts else each
            for each in why.suggestions
        ),
    )
