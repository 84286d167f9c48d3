"""A question over several GPU types answered: mixed plans, and the best on each type alone."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np

from astra.errors import InputError
from astra.hardware.cluster import Cluster, Pool
from astra.search.alone import AloneFinder
from astra.search.answer import (
    Answer,
    Mixed,
    NothingFits,
    Search,
    Wanted,
    nothing_fits,
    reaching,
    rules_of,
)
from astra.search.by_stage import stages_of
from astra.search.find import Best, Progress
from astra.search.host import host_rules
from astra.search.mixed.naive import even_split_s
from astra.search.mixed.solve import MixedFinder
from astra.search.price import price_many
from astra.search.priced import Priced
from astra.strategy.plan import Plan
from astra.strategy.plans import plan_at, plans_of
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
LONG = 4096  # tokens of a GPU, below which context parallelism is not tried unless asked for


def answer_mixed(
    wanted: Wanted, request: dict[str, object], progress: Progress | None = None
) -> Answer:
    """The best plans over several types; the first is proven, or its gap is told."""
    start = time.perf_counter()
    check_space(wanted.space)
    if wanted.space.question.task.runtime == "any":
        from astra.search.makes.answer import answer_any

        return answer_any(wanted, request, progress)
    finder, left_out = _holding(wanted)
    space = finder.space
    pools = [pool.gpu.name for pool in space.question.task.cluster.pools]
    singles = _singles(wanted, pools, progress)
    own = [] if space.question.use_all else _plans(singles, wanted)
    finder.limit_s = min((plan.step_s for plan in own), default=np.inf)
    finder.progress = _after(progress, singles)
    found = finder.run(rules_for(space.question.task.runtime)) if len(pools) > 1 else []
    task = wanted.space.question.task
    plans = [_whole(plan_at(each.plans, 0, space.question.task), task.cluster) for each in found]
    priced = sorted([*own, *price_many(plans, wanted.margin)], key=lambda each: each.step_s)
    ranked = [
        msgspec.structs.replace(each, rank=place)
        for place, each in enumerate(priced[: wanted.top], 1)
    ]
    tally = finder.tally
    funnels = [best.funnel for best in singles.values()]
    removed: Counter[str] = Counter()
    for counts in (*(funnel.removed_by_rule for funnel in funnels), tally.removed_by_rule):
        removed.update(counts)
    mixed = _compared(wanted, finder, singles, ranked, left_out)
    return Answer(
        request=request,
        search=Search(
            candidates=sum(f.candidates for f in funnels) + tally.labels + tally.listed,
            removed_by_rule=dict(removed),
            bounded=sum(f.bounded for f in funnels) + tally.bounded,
            out_of_memory=sum(f.out_of_memory for f in funnels) + tally.out_of_memory,
            priced=sum(f.priced for f in funnels) + tally.simulated,
            simulated=sum(f.simulated for f in funnels) + tally.simulated,
            seconds=round(time.perf_counter() - start, 3),
        ),
        plans=tuple(ranked),
        nothing_fits=None if ranked else _nothing(wanted, singles),
        mixed=mixed,
    )


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


def check_space(space: Space) -> None:
    """What the search over several types does not take, in words."""
    task = space.question.task
    if task.runtime not in ("flagscale", "megatron", "any"):
        raise InputError(
            f"--runtime {task.runtime}: over several GPU types plans are searched for flagscale "
            "and megatron, and with any for replicas of different make. Leave --runtime out, or "
            "give one type."
        )
    searched = narrowed_by(task.runtime)
    for name in space.chosen:
        if name not in searched:
            why = " Interleaving is for --runtime megatron; FlagScale excludes it here."
            raise InputError(
                f"--set {name}: over several GPU types {', '.join(searched)} can be narrowed."
                f"{why if name in TURNS else ''}"
            )


def mixed_space(space: Space) -> Space:
    """The space of mixed plans: context parallelism only where sequences are long."""
    if "cp" in space.chosen:
        return space
    values = [cp for cp in space.values("cp") or () if cp * LONG <= space.question.seq_len]
    return Space(space.question, {**space.chosen, "cp": tuple(values) or (1,)})


def _holding(wanted: Wanted) -> tuple[MixedFinder, tuple[str, ...]]:
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
    return finder, (*ruled_out, *too_small)


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
) -> tuple[Space, tuple[str, ...]]:
    """The space on these pools, and words on the others; all of them where none would be left."""
    cluster = space.question.task.cluster
    if not kept or len(kept) == len(cluster.pools):
        return space, ()
    pools = tuple(pool for row, pool in enumerate(cluster.pools) if row in kept)
    gone = [pool for row, pool in enumerate(cluster.pools) if row not in kept]
    smaller = msgspec.structs.replace(cluster, pools=pools)
    words = (f"{pool.gpu.name} is left out: {why(pool, space.question)}" for pool in gone)
    return _on(space, smaller), tuple(words)


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
        found[name] = finder.seeded(known, _after(progress, found))
    return found


def _after(progress: Progress | None, done: dict[str, Best]) -> Progress | None:
    """The same, counting on from the searches that are done."""
    before = sum(best.funnel.candidates for best in done.values())
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


def _compared(
    wanted: Wanted,
    finder: MixedFinder,
    singles: dict[str, Best],
    ranked: list[Priced],
    left_out: tuple[str, ...],
) -> Mixed:
    """What the best plan is worth beside the others one might have taken."""
    alone = {
        name: float(best.step_s[0]) if best.plans is not None else None
        for name, best in singles.items()
    }
    best = ranked[0] if ranked else None
    caps = {pool.gpu.name: pool.count for pool in wanted.space.question.task.cluster.pools}
    used = best.gpus if best else {}
    idle = {name: count - used.get(name, 0) for name, count in caps.items()}
    open_s, space = finder.tally.open_s, finder.space
    gap = max(best.step_s / open_s - 1, 0.0) if best and np.isfinite(open_s) else 0.0
    return Mixed(
        gap_fraction=gap,
        alone_step_s=alone,
        even_split_step_s=even_split_s(space, wanted.stack, wanted.margin, finder.book),
        idle={name: count for name, count in idle.items() if count},
        left_out=left_out,
        stages=stages_of(best, wanted.stack) if best else (),
    )
