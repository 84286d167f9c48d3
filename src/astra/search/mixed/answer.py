"""A question over several GPU types answered: mixed plans, and the best on each type alone."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from astra.hardware.cluster import Cluster, Pool
from astra.hardware.slowest import flops_per_s
from astra.hardware.vendors import vendor_note
from astra.search.alone import AloneFinder
from astra.search.answer import (
    Answer,
    Mixed,
    NothingFits,
    Wanted,
    nothing_fits,
    reaching,
    rules_of,
    search_of,
    summed,
)
from astra.search.by_stage import stages_of
from astra.search.find import Best, Funnel, Progress
from astra.search.host import host_rules
from astra.search.mixed.naive import even_split_s
from astra.search.mixed.solve import MixedFinder
from astra.search.mixed.uniform import UniformSearch
from astra.search.price import price_many
from astra.search.priced import Priced
from astra.search.vendors import answer_each_vendor
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plans import plan_at, plans_of, task_of
from astra.strategy.rules.book import judge, rules_for
from astra.strategy.space import Question, Space

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


def answer_mixed(
    wanted: Wanted, request: dict[str, object], progress: Progress | None = None
) -> Answer:
    """The best plans over several types: those on one type, uniform ones, and pipelines that mix
    types by the rules of each runtime that is asked.
    """
    if vendor_note(wanted.space.question.task.cluster):
        return answer_each_vendor(wanted, request, progress, answer_mixed)
    if "any" in wanted.asked_runtimes:
        from astra.search.makes.answer import answer_any

        return answer_any(wanted, request, progress)
    start, first = time.perf_counter(), wanted.asked_runtimes[0]
    mixing = {r: _mixing(as_runtime(wanted, r)) for r in wanted.asked_runtimes if r in MIXES}
    runtimes, wanted = wanted.asked_runtimes, as_runtime(wanted, first)
    left_out = _left_out(wanted, [each for each in mixing.values() if each.finder])
    singles = _singles(wanted, [n for n in _names(wanted) if n not in left_out], progress)
    funnels = [best.funnel for best in singles.values()]
    uniform = UniformSearch(wanted, singles, _after(progress, funnels)).run()
    funnels += uniform.funnels
    own = [] if wanted.space.question.use_all else _plans(singles, wanted)
    found = [*own, *uniform.found]
    steps_s = {runtime: _fastest_s(_launched_by(runtime, found)) for runtime in runtimes}
    for runtime, each in mixing.items():
        limit_s = min(steps_s[runtime], COMPARED * _fastest_s(found))
        pipelines = each.search(limit_s, _after(progress, funnels))
        steps_s[runtime] = min(steps_s[runtime], _fastest_s(pipelines))
        found += pipelines
        funnels.append(each.funnel)
    ranked = ranked_plans(found, wanted)
    slowest_s = COMPARED * _fastest_s(found)
    even_s = _even_split_s(list(mixing.values()))
    return Answer(
        request=request | {"notes": [*_notes(request), *_narrowed(mixing.values())]},
        search=search_of(summed(funnels), time.perf_counter() - start),
        plans=ranked,
        nothing_fits=None if ranked else _nothing(wanted, singles),
        mixed=Mixed(
            gap_fraction=_gap(ranked, [each.open_s for each in mixing.values()]),
            alone_step_s={name: _least_s(best) for name, best in singles.items()},
            uniform_step_s=min(
                (s for s in (uniform.step_s, even_s) if s is not None and s < np.inf), default=None
            ),
            even_split_step_s=even_s,
            runtimes_step_s={
                runtime: step_s if step_s < slowest_s else None
                for runtime, step_s in steps_s.items()
            },
            pipelines_of=tuple(runtime for runtime, each in mixing.items() if each.finder),
            idle=idle_gpus(wanted, ranked),
            left_out=tuple(left_out.values()),
            stages=stages_of(ranked[0], wanted.stack) if ranked else (),
        ),
    )


@dataclass(slots=True)
class _Mixing:
    """A search for pipelines over several types by the rules of one runtime."""

    wanted: Wanted
    finder: MixedFinder | None  # None: the space was narrowed in a way it does not know
    left_out: dict[str, str]  # words on types that it does not use

    def search(self, limit_s: float, progress: Progress | None) -> list[Priced]:
        """Pipelines of more than one type that are faster than the limit."""
        if self.finder is None or len(self.finder.space.question.task.cluster.pools) < 2:
            return []
        self.finder.limit_s, self.finder.progress = limit_s, progress
        task = self.wanted.space.question.task
        found = self.finder.run(rules_for(task.runtime))
        own = self.finder.space.question.task
        plans = [_whole(plan_at(each.plans, 0, own), task.cluster) for each in found]
        return price_many(plans, self.wanted.margin)

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


def _mixing(wanted: Wanted) -> _Mixing:
    if why_not_mixed(wanted.space):
        return _Mixing(wanted, None, {})
    return _Mixing(wanted, *_holding(wanted))


def why_not_mixed(space: Space) -> str | None:
    """Why no pipelines over several types are searched; None where they are."""
    runtime, names = space.question.task.runtime, narrowed_by(space.question.task.runtime)
    if runtime not in (*MIXES, "any"):
        return f"plans of {runtime} have no pipelines over several GPU types"
    cps = space.chosen.get("cp", (1,))
    if runtime == "flagscale" and 1 not in cps:
        return (
            f"cp={','.join(map(str, cps))} leaves no pipeline over several GPU types for "
            "flagscale, which excludes context parallelism there"
        )
    unknown = [name for name in space.chosen if name not in names]
    if not unknown:
        return None
    asked = " ".join(f"--set {name}" for name in unknown)
    excluded = "; FlagScale excludes interleaving there" if set(unknown) & set(TURNS) else ""
    return (
        f"{asked}: pipelines over several GPU types are not searched for {runtime}, where "
        f"{', '.join(names)} can be narrowed{excluded}"
    )


def _narrowed(mixing: Iterable[_Mixing]) -> list[str]:
    """Words on pipelines that are not searched for."""
    return [said for each in mixing if (said := why_not_mixed(each.wanted.space))]


def _notes(request: dict[str, object]) -> list[str]:
    said = request.get("notes")
    return [*said] if isinstance(said, list) else []


def _left_out(wanted: Wanted, mixing: Sequence[_Mixing]) -> dict[str, str]:
    """Types that lack units for the format, or that no search for pipelines can use."""
    question = wanted.space.question
    found = {
        pool.gpu.name: f"{pool.gpu.name} is left out: {_why(pool, question)}"
        for pool in question.task.cluster.pools
        if not flops_per_s(pool.gpu, question.precision)
    }
    for name, words in (mixing[0].left_out if mixing else {}).items():
        if all(name in each.left_out for each in mixing):
            found.setdefault(name, words)
    return found


def _names(wanted: Wanted) -> list[str]:
    return [pool.gpu.name for pool in wanted.space.question.task.cluster.pools]


def _launched_by(runtime: Runtime, priced: Sequence[Priced]) -> list[Priced]:
    """Of these plans those that the rules of a runtime accept."""
    if not priced:
        return []
    task = msgspec.structs.replace(task_of(priced[0].plan), runtime=runtime)
    allowed = judge(plans_of([each.plan for each in priced]), task, rules_for(runtime)).allowed
    return [each for each, held in zip(priced, allowed, strict=True) if held]


def ranked_plans(priced: Sequence[Priced], wanted: Wanted) -> tuple[Priced, ...]:
    """The fastest first; what two runtimes launch alike is told once, of the first."""
    kept: dict[Plan, Priced] = {}
    for each in sorted(priced, key=lambda each: each.step_s):
        kept.setdefault(msgspec.structs.replace(each.plan, runtime="any"), each)
    places = enumerate(list(kept.values())[: wanted.top], 1)
    return tuple(msgspec.structs.replace(each, rank=place) for place, each in places)


def _gap(ranked: Sequence[Priced], bounds_s: Sequence[float]) -> float:
    """How much faster a pipeline may be than the best plan, at most."""
    open_s = min(bounds_s, default=np.inf)
    return max(ranked[0].step_s / open_s - 1, 0.0) if ranked and np.isfinite(open_s) else 0.0


def _fastest_s(plans: Sequence[Priced]) -> float:
    return min((plan.step_s for plan in plans), default=np.inf)


def _least_s(best: Best) -> float | None:
    return float(best.step_s[0]) if best.plans is not None else None


def _even_split_s(mixing: Sequence[_Mixing]) -> float | None:
    """Of the last runtime that mixes types: FlagScale's meshes may have any even split."""
    for each in reversed(mixing):
        if each.finder is not None and len(each.finder.space.question.task.cluster.pools) > 1:
            own = each.wanted
            return even_split_s(each.finder.space, own.stack, own.margin, each.finder.book)
    return None


def idle_gpus(wanted: Wanted, ranked: Sequence[Priced]) -> dict[str, int]:
    """GPUs that the best plan leaves alone."""
    used = ranked[0].gpus if ranked else {}
    pools = wanted.space.question.task.cluster.pools
    idle = {pool.gpu.name: pool.count - used.get(pool.gpu.name, 0) for pool in pools}
    return {name: count for name, count in idle.items() if count}


def as_runtime(wanted: Wanted, runtime: Runtime) -> Wanted:
    """The same question for plans of one runtime."""
    question = wanted.space.question
    task = msgspec.structs.replace(question.task, runtime=runtime)
    space = Space(replace(question, task=task), wanted.space.chosen)
    return replace(wanted, space=space, runtimes=(runtime,))


def fewest_mixed(
    wanted: Wanted, request: dict[str, object], tokens_per_s: float, progress: Progress | None
) -> Answer:
    """The best plans on the fewest GPUs of all types that fit, or that reach a throughput.

    More GPUs never take longer, so the least total is found by halving.
    """
    best = answer_mixed(wanted, request, progress)

    def used(found: Answer) -> int | None:
        enough = [plan for plan in found.plans if plan.tokens_per_s >= tokens_per_s]
        return min((sum(plan.gpus.values()) for plan in enough), default=None)

    high, low = used(best), 0  # the most that is enough, and one that is not
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        found = answer_mixed(_capped(wanted, middle), request, progress)
        now = used(found)
        low, high = (low, now) if now is not None else (middle, high)
    if high is not None:
        best = answer_mixed(_capped(wanted, high), request, progress)
    total = sum(pool.count for pool in wanted.space.question.task.cluster.pools)
    return reaching(best, tokens_per_s, total)


def _capped(wanted: Wanted, gpus: int) -> Wanted:
    cluster = wanted.space.question.task.cluster
    return replace(wanted, space=_on(wanted.space, msgspec.structs.replace(cluster, max_gpus=gpus)))


def narrowed_by(runtime: str) -> tuple[str, ...]:
    """The dimensions of a mixed plan that can be narrowed."""
    return SEARCHED + (TURNS if runtime == "megatron" else ())


def mixed_space(space: Space) -> Space:
    """The space of mixed plans: context parallelism only where sequences are long, and none under
    FlagScale, which refuses it."""
    values = list(space.values("cp") or ())
    if space.question.task.runtime == "flagscale":
        values = [cp for cp in values if cp == 1]
    elif "cp" not in space.chosen:
        values = [cp for cp in values if cp * LONG <= space.question.seq_len] or [1]
    return Space(space.question, {**space.chosen, "cp": tuple(values)})


def _holding(wanted: Wanted) -> tuple[MixedFinder, dict[str, str]]:
    """A search without the types that cannot hold one layer, and what was left out and why."""
    finder, pools = _finder(wanted, mixed_space(wanted.space))
    space, ruled_out = _without(finder.space, pools, _why)
    if ruled_out:
        finder, _ = _finder(wanted, space)
    finder.price()
    space, too_small = _without(space, finder.able(), _too_small)
    if too_small:
        finder, _ = _finder(wanted, space)
        finder.price()
    return finder, ruled_out | too_small


def _finder(wanted: Wanted, space: Space) -> tuple[MixedFinder, set[int]]:
    """A search that knows its cells, and the types that the rules allow."""
    cluster = space.question.task.cluster
    rules = (*rules_of(wanted), *host_rules(cluster, wanted.stack))
    finder = MixedFinder(space, rules, wanted.stack, wanted.margin, np.inf, wanted.exact)
    return finder, finder.allow(rules_for(space.question.task.runtime))


def _too_small(pool: Pool, _: Question) -> str:
    return f"{pool.gpu.usable_bytes / 2**30:.0f} GiB cannot hold one layer"


def _why(pool: Pool, question: Question) -> str:
    """What a type lacks that all its plans would need."""
    precision, gpu = question.precision, pool.gpu
    if getattr(gpu, f"{precision}_flops_per_s") is not None:
        return "the rules allow no plan on it"
    other = "; --precision fp16 would use it" if gpu.fp16_flops_per_s is not None else ""
    return f"it has no {precision} units{other}"


def _without(
    space: Space, kept: set[int], why: Callable[[Pool, Question], str]
) -> tuple[Space, dict[str, str]]:
    """The space on these pools, and words on the others; all of them where none would be left."""
    cluster = space.question.task.cluster
    if not kept or len(kept) == len(cluster.pools):
        return space, {}
    pools = tuple(pool for row, pool in enumerate(cluster.pools) if row in kept)
    gone = [pool for row, pool in enumerate(cluster.pools) if row not in kept]
    smaller = msgspec.structs.replace(cluster, pools=pools)
    words = {
        pool.gpu.name: f"{pool.gpu.name} is left out: {why(pool, space.question)}" for pool in gone
    }
    return _on(space, smaller), words


def _on(space: Space, cluster: Cluster) -> Space:
    task = msgspec.structs.replace(space.question.task, cluster=cluster)
    return Space(replace(space.question, task=task), space.chosen)


def _single(wanted: Wanted, name: str) -> Wanted:
    cluster = wanted.space.question.task.cluster
    pools = tuple(pool for pool in cluster.pools if pool.gpu.name == name)
    return replace(wanted, space=_on(wanted.space, msgspec.structs.replace(cluster, pools=pools)))


def _singles(wanted: Wanted, names: list[str], progress: Progress | None) -> dict[str, Best]:
    """The best plan on each type."""
    found: dict[str, Best] = {}
    for name in names:
        one = _single(wanted, name)
        finder = AloneFinder(one.space, rules_of(one), one.stack, 1, one.margin, one.fold)
        known = [best.plans for best in found.values() if best.plans is not None]
        done = [best.funnel for best in found.values()]
        found[name] = finder.seeded(known, _after(progress, done))
    return found


def _after(progress: Progress | None, done: Sequence[Funnel]) -> Progress | None:
    """The same, counting on from the searches that are done."""
    before = sum(funnel.candidates for funnel in done)
    return (lambda count: progress(before + count)) if progress else None


def _plans(singles: dict[str, Best], wanted: Wanted) -> list[Priced]:
    """The plans on one type, as plans on the whole cluster, that the rules accept there."""
    task, whole = wanted.space.question.task, []
    for name, best in singles.items():
        own = _single(wanted, name).space.question.task
        rows = range(len(best.plans)) if best.plans is not None else ()
        for row in rows:
            assert best.plans is not None
            whole.append(_whole(plan_at(best.plans, row, own), task.cluster))
    if not whole:
        return []
    allowed = judge(plans_of(whole), task, rules_of(wanted)).allowed
    return price_many([whole[row] for row in np.flatnonzero(allowed)], wanted.margin)


def _whole(plan: Plan, cluster: Cluster) -> Plan:
    return msgspec.structs.replace(plan, cluster=cluster)


def _nothing(wanted: Wanted, singles: dict[str, Best]) -> NothingFits:
    """As of the type that comes closest to holding a plan."""
    name = min(singles, key=lambda each: singles[each].closest_filled)
    why = nothing_fits(_single(wanted, name), singles[name])
    return msgspec.structs.replace(
        why,
        binding=f"no mixed plan fits, nor any on one type; closest is {name}: {why.binding}",
        tries=tuple(text.replace(" GPUs", f" {name}") for text in why.tries),
    )
