"""A question over several GPU types answered: mixed plans, and the best on each type alone."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from astra.cost.host import host_rules
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.cost.stages import stage_summaries
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.slowest import flops_per_s
from astra.notes import Note, NoteCode, note
from astra.search.evaluator import Evaluator, Limits, Stopped
from astra.search.mixed.naive import even_split_s
from astra.search.mixed.pipelines import best_pipelines
from astra.search.mixed.solve import MixedFinder
from astra.search.mixed.uniform import UniformSearch
from astra.search.nothing_fits import nothing_fits
from astra.search.one_type import search_fastest
from astra.search.query import Query
from astra.search.result import (
    Comparison,
    Funnel,
    NothingFits,
    Progress,
    Result,
    sum_funnels,
)
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plans import plan_at, plans_of, task_of
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space

# Dimensions of a mixed plan that can be narrowed.
SEARCHED = (
    "tp",
    "dp",
    "micro_batch",
    "cp",
    "cp_comm_type",
    "sharding",
    "ep",
    "etp",
    "mesh_dp",
    "recompute",
    "offload_optimizer_fraction",
)
TURNS = ("vpp", "overlap_ep")  # and of one for Megatron-LM
MIXES: tuple[Runtime, ...] = ("megatron", "flagscale")  # whose pipelines may mix types
COMPARED = 1.3  # times the best of all, up to which what another runtime reaches is told
LONG = 4096  # tokens of a GPU, below which context parallelism is not tried unless asked for


def solve_mixed(query: Query, limits: Limits) -> Result:
    """The best plans over several types: those on one type, uniform ones, and pipelines that mix
    types by the rules of each runtime that is asked.
    """
    start, runtimes = time.perf_counter(), query.runtimes
    mixing = {r: _mixing(query.of_runtime(r)) for r in runtimes if r in MIXES}
    asked, query = query, query.of_runtime(query.runtime)
    left_out = _left_out(query, [each for each in mixing.values() if each.finder])
    singles = _singles(query, [n for n in _names(query) if n not in left_out], limits)
    funnels = [best.funnel for best in singles.values()]
    uniform = UniformSearch(query, singles, limits).run()
    funnels += uniform.funnels
    own = [] if query.use_all else _plans(singles, query)
    found = [*own, *uniform.found]
    steps_s = {runtime: _fastest_s(_launched_by(runtime, found)) for runtime in runtimes}
    for runtime, each in mixing.items():
        limit_s = min(steps_s[runtime], COMPARED * _fastest_s(found))
        pipelines = each.search(limit_s, funnels, limits)
        steps_s[runtime] = min(steps_s[runtime], _fastest_s(pipelines))
        found += pipelines
        funnels.append(each.funnel)
    ranked = ranked_plans(found, query)
    slowest_s = COMPARED * _fastest_s(found)
    even_s = None if limits.stopped else _even_split_s(list(mixing.values()))
    gap = None if limits.stopped else _gap(ranked, [each.open_s for each in mixing.values()])
    return Result(
        query=asked,
        funnel=sum_funnels(funnels),
        seconds=time.perf_counter() - start,
        plans=ranked,
        nothing_fits=None if ranked else _nothing(query, singles, limits),
        notes=(*asked.notes, *_narrowed(mixing.values())),
        gap_fraction=gap,
        comparison=Comparison(
            gap_fraction=gap,
            alone_step_s={
                name: _least_s(best)
                for name, best in singles.items()
                if limits.stopped is None or np.isfinite(best.best_s)
            },
            uniform_step_s=min(
                (s for s in (uniform.step_s, even_s) if s is not None and s < np.inf), default=None
            ),
            even_split_step_s=even_s,
            runtimes_step_s={
                runtime: step_s if step_s < slowest_s else None
                for runtime, step_s in steps_s.items()
                if limits.stopped is None or step_s < slowest_s
            },
            pipelines_of=tuple(runtime for runtime, each in mixing.items() if each.finder),
            idle=idle_gpus(query, ranked),
            types_left_out=tuple(left_out.values()),
            stages=stage_summaries(ranked[0], query.stack) if ranked else (),
        ),
    )


@dataclass(slots=True)
class _Mixing:
    """A search for pipelines over several types by the rules of one runtime."""

    query: Query
    finder: MixedFinder | None  # None: the space was narrowed in a way it does not know
    left_out: dict[str, Note]  # types that it does not use

    def search(self, limit_s: float, done: Sequence[Funnel], limits: Limits) -> list[PricedPlan]:
        """Pipelines of more than one type that are faster than the limit."""
        if self.finder is None or len(self.finder.space.workload.task.cluster.pools) < 2:
            return []
        self.finder.limit_s, self.finder.progress = limit_s, _watched(done, limits)
        task = self.query.task
        with suppress(Stopped):
            best_pipelines(self.finder, rules_for(task.runtime))
        found = sorted(self.finder.found.values(), key=lambda each: each.step_s)
        own = self.finder.space.workload.task
        plans = [_whole(plan_at(each.plans, 0, own), task.cluster) for each in found]
        return price_plans(plans, self.query.margin)

    @property
    def open_s(self) -> float:
        """What pipelines that were not looked at may take at least; infinite: all were."""
        return self.finder.tally.open_s if self.finder else np.inf

    @property
    def funnel(self) -> Funnel:
        if self.finder is None:
            return Funnel()
        tally = self.finder.tally
        return Funnel(
            candidates=tally.labels + tally.listed,
            removed_by_rule=dict(tally.removed_by_rule),
            bounded=tally.bounded,
            out_of_memory=tally.out_of_memory,
            priced=tally.simulated,
            simulated=tally.simulated,
        )


def _mixing(query: Query) -> _Mixing:
    if why_not_mixed(query.space):
        return _Mixing(query, None, {})
    return _Mixing(query, *_holding(query))


def why_not_mixed(space: Space) -> Note | None:
    """Why no pipelines over several types are searched; None where they are."""
    runtime, names = space.workload.task.runtime, narrowed_by(space.workload.task.runtime)
    if runtime not in (*MIXES, "any"):
        return note(NoteCode.NO_MIXED_PIPELINES, runtime=runtime)
    cps = space.settings.get("cp", (1,))
    if runtime == "flagscale" and 1 not in cps:
        return note(NoteCode.NO_CONTEXT_OVER_TYPES, cp=list(cps))
    unknown = [name for name in space.settings if name not in names]
    if not unknown:
        return None
    return note(
        NoteCode.NOT_NARROWED_OVER_TYPES,
        settings=unknown,
        runtime=runtime,
        narrowed_by=list(names),
        interleaved=bool(set(unknown) & set(TURNS)),
    )


def _narrowed(mixing: Iterable[_Mixing]) -> list[Note]:
    """On pipelines that are not searched for."""
    return [why for each in mixing if (why := why_not_mixed(each.query.space))]


def _left_out(query: Query, mixing: Sequence[_Mixing]) -> dict[str, Note]:
    """Types that lack units for the format, or that no search for pipelines can use."""
    found = {
        pool.gpu.name: _lacking(pool, query.precision)
        for pool in query.cluster.pools
        if not flops_per_s(pool.gpu, query.precision)
    }
    for name, why in (mixing[0].left_out if mixing else {}).items():
        if all(name in each.left_out for each in mixing):
            found.setdefault(name, why)
    return found


def _names(query: Query) -> list[str]:
    return [pool.gpu.name for pool in query.cluster.pools]


def _launched_by(runtime: Runtime, priced: Sequence[PricedPlan]) -> list[PricedPlan]:
    """Of these plans those that the rules of a runtime accept."""
    if not priced:
        return []
    task = msgspec.structs.replace(task_of(priced[0].plan), runtime=runtime)
    allowed = check(plans_of([each.plan for each in priced]), task, rules_for(runtime)).allowed
    return [each for each, held in zip(priced, allowed, strict=True) if held]


def ranked_plans(priced: Sequence[PricedPlan], query: Query) -> tuple[PricedPlan, ...]:
    """The fastest first; what two runtimes launch alike is told once, of the first."""
    kept: dict[Plan, PricedPlan] = {}
    for each in sorted(priced, key=lambda each: each.step_s):
        kept.setdefault(msgspec.structs.replace(each.plan, runtime="any"), each)
    places = enumerate(list(kept.values())[: query.top], 1)
    return tuple(msgspec.structs.replace(each, rank=place) for place, each in places)


def _gap(ranked: Sequence[PricedPlan], bounds_s: Sequence[float]) -> float:
    """How much faster a pipeline may be than the best plan, at most."""
    open_s = min(bounds_s, default=np.inf)
    return max(ranked[0].step_s / open_s - 1, 0.0) if ranked and np.isfinite(open_s) else 0.0


def _fastest_s(plans: Sequence[PricedPlan]) -> float:
    return min((plan.step_s for plan in plans), default=np.inf)


def _least_s(searched: Evaluator) -> float | None:
    return searched.best_s if np.isfinite(searched.best_s) else None


def _even_split_s(mixing: Sequence[_Mixing]) -> float | None:
    """Of the last runtime that mixes types: FlagScale's meshes may have any even split."""
    for each in reversed(mixing):
        if each.finder is not None and len(each.finder.space.workload.task.cluster.pools) > 1:
            own = each.query
            return even_split_s(each.finder.space, own.stack, own.margin, each.finder.book)
    return None


def idle_gpus(query: Query, ranked: Sequence[PricedPlan]) -> dict[str, int]:
    """GPUs that the best plan leaves alone."""
    used = ranked[0].gpus if ranked else {}
    pools = query.cluster.pools
    idle = {pool.gpu.name: pool.count - used.get(pool.gpu.name, 0) for pool in pools}
    return {name: count for name, count in idle.items() if count}


def narrowed_by(runtime: str) -> tuple[str, ...]:
    """The dimensions of a mixed plan that can be narrowed."""
    return SEARCHED + (TURNS if runtime == "megatron" else ())


def mixed_space(space: Space) -> Space:
    """The space of mixed plans: context parallelism only where sequences are long, and none under
    FlagScale, which refuses it."""
    values = list(space.values("cp") or ())
    if space.workload.task.runtime == "flagscale":
        values = [cp for cp in values if cp == 1]
    elif "cp" not in space.settings:
        values = [cp for cp in values if cp * LONG <= space.workload.seq_len] or [1]
    return Space(space.workload, {**space.settings, "cp": tuple(values)})


def _holding(query: Query) -> tuple[MixedFinder, dict[str, Note]]:
    """A search without the types that cannot hold one layer, and what was left out and why."""
    finder, pools = _finder(query, mixed_space(query.space))
    space, ruled_out = _without(finder.space, pools, _lacking)
    if ruled_out:
        finder, _ = _finder(query, space)
    finder.price()
    space, too_small = _without(space, finder.able(), _too_small)
    if too_small:
        finder, _ = _finder(query, space)
        finder.price()
    return finder, ruled_out | too_small


def _finder(query: Query, space: Space) -> tuple[MixedFinder, set[int]]:
    """A search that knows its cells, and the types that the rules allow."""
    cluster = space.workload.task.cluster
    rules = (*query.rules, *host_rules(cluster, query.stack))
    finder = MixedFinder(space, rules, query.stack, query.margin, np.inf, query.exact)
    return finder, finder.allow(rules_for(space.workload.task.runtime))


def _too_small(pool: Pool, _: str) -> Note:
    return note(
        NoteCode.TYPE_TOO_SMALL, gpu=pool.gpu.name, usable_bytes=float(pool.gpu.usable_bytes)
    )


def _lacking(pool: Pool, precision: str) -> Note:
    """What a type lacks that all its plans would need."""
    gpu = pool.gpu
    if getattr(gpu, f"{precision}_flops_per_s") is not None:
        return note(NoteCode.TYPE_AGAINST_RULES, gpu=gpu.name)
    return note(
        NoteCode.TYPE_WITHOUT_UNITS,
        gpu=gpu.name,
        precision=precision,
        has_fp16=gpu.fp16_flops_per_s is not None,
    )


def _without(
    space: Space, kept: set[int], why: Callable[[Pool, str], Note]
) -> tuple[Space, dict[str, Note]]:
    """The space on these pools, and why not on the others; all where none would be left."""
    cluster = space.workload.task.cluster
    if not kept or len(kept) == len(cluster.pools):
        return space, {}
    pools = tuple(pool for row, pool in enumerate(cluster.pools) if row in kept)
    gone = [pool for row, pool in enumerate(cluster.pools) if row not in kept]
    smaller = msgspec.structs.replace(cluster, pools=pools)
    task = msgspec.structs.replace(space.workload.task, cluster=smaller)
    narrower = Space(replace(space.workload, task=task), space.settings)
    return narrower, {pool.gpu.name: why(pool, space.workload.precision) for pool in gone}


def _single(query: Query, name: str) -> Query:
    pools = tuple(pool for pool in query.cluster.pools if pool.gpu.name == name)
    return query.on(msgspec.structs.replace(query.cluster, pools=pools))


def _singles(query: Query, names: list[str], limits: Limits) -> dict[str, Evaluator]:
    """The best plan on each type; what the others found is where to look first."""
    found: dict[str, Evaluator] = {}
    for name in names:
        seeds = [plan for each in found.values() for *_, plan in each.objective.incumbents]
        found[name] = search_fastest(replace(_single(query, name), top=1), limits, seeds)
    return found


def _watched(done: Sequence[Funnel], limits: Limits) -> Progress:
    """Counts on from the searches that are done; stops where the limits say so."""
    before = sum(funnel.candidates for funnel in done)

    def watch(candidates: int) -> None:
        if limits.watch:
            limits.watch(before + candidates)
        limits.check()

    return watch


def _plans(singles: dict[str, Evaluator], query: Query) -> list[PricedPlan]:
    """The plans on one type, as plans on the whole cluster, that the rules accept there."""
    whole = [_whole(plan, query.cluster) for each in singles.values() for plan in each.plans()]
    if not whole:
        return []
    allowed = check(plans_of(whole), query.task, query.rules).allowed
    return price_plans([whole[row] for row in np.flatnonzero(allowed)], query.margin)


def _whole(plan: Plan, cluster: Cluster) -> Plan:
    return msgspec.structs.replace(plan, cluster=cluster)


def _nothing(query: Query, singles: dict[str, Evaluator], limits: Limits) -> NothingFits:
    """As of the type that comes closest to holding a plan."""
    name = min(singles, key=lambda each: singles[each].closest[0])
    why = nothing_fits(_single(query, name), singles[name], limits)
    return msgspec.structs.replace(
        why,
        reasons=(note(NoteCode.CLOSEST_TYPE, gpu=name), *why.reasons),
        suggestions=tuple(
            note(each.code, **(each.facts | {"gpu": name}))
            if each.code is NoteCode.TRY_GPUS
            else each
            for each in why.suggestions
        ),
    )
