"""A question answered: the best plans, the funnel, or why nothing fits."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from astra.errors import either
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts
from astra.search.find import Best, Finder, Funnel, Progress
from astra.search.host import pool_room_bytes, too_small_ram
from astra.search.price import MARGIN, price_many
from astra.search.priced import Compared, Priced
from astra.strategy.enumerate import enumerate_layouts
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plans import Task, plan_at
from astra.strategy.rules.registry import rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Question, Space

if TYPE_CHECKING:
    from astra.search.explained import Explanation

GROWTH = (2, 4, 8, 16, 32, 64)  # times as many GPUs that are tried when nothing fits
FRUGAL: dict[str, tuple[Any, ...]] = {  # what needs the least memory
    "micro_batch": (1,),
    # groups of N layers: checkpoints of L / N and N layers at work, least at N near sqrt(L)
    "recompute": tuple(f"full:uniform:{layers}" for layers in range(1, 13)),
    "offload_optimizer_fraction": (1.0,),
    "overlap_ep": (False,),
}


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The funnel: how many candidates there were and what became of them."""

    candidates: int
    removed_by_rule: dict[str, int]
    bounded: int  # their layout alone takes longer than the best plans
    out_of_memory: int
    priced: int
    simulated: int
    seconds: float


class NothingFits(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no plan, the closest one, and what would help."""

    closest: Priced | None
    binding: str
    tries: tuple[str, ...] = msgspec.field(name="try")


class MixedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline over several GPU types."""

    pipeline: int = 0
    gpu: str
    layers: int
    tp: int
    recompute: str
    busy_s: float  # of a step, its micro-batches alone
    filled_fraction: float  # of its GPUs' memory
    chunks: tuple[int, ...] = ()  # layers of each, where stages take turns on several


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    """What the best plan over several GPU types is worth."""

    gap_fraction: float  # proven: no pipeline over several types is faster by more; 0: none is
    alone_step_s: dict[str, float | None]  # the best on each type; None: nothing fits there
    uniform_step_s: float | None = None  # the best uniform plan over several types
    even_split_step_s: float | None  # all GPUs, one tp, equal layers
    runtimes_step_s: dict[str, float | None] = {}  # the best of each; None: over 30 % slower
    pipelines_of: tuple[str, ...] = ()  # runtimes whose pipelines over several types were searched
    idle: dict[str, int]  # GPUs that the best plan leaves alone
    left_out: tuple[str, ...]
    stages: tuple[MixedStage, ...]
    launched_step_s: float | None = (
        None  # with runtime any: the best that a public runtime launches
    )


class Wished(msgspec.Struct, frozen=True, kw_only=True):
    """A wish about money, and what comes of it."""

    what: str  # within budget, within deadline, within both
    possible: bool
    rank: int  # place in the frontier: the answer, or what comes nearest
    gap_usd: float | None = None  # that the nearest costs more than the budget
    gap_hours: float | None = None  # that it takes longer than the deadline
    also_rank: int | None = None  # nearest the other way, where both cannot be had
    also_gap_usd: float | None = None
    also_gap_hours: float | None = None
    tokens: float | None = None  # of the nearest that keep all goals; None where they are met


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """The best plan in another place."""

    cloud: str
    region: str
    instance: str
    spot: bool
    price_date: str
    network_certainty: str
    usd_per_hour: float
    hours: float
    usd: float


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of machine that was compared, and the cheapest place to rent it."""

    gpu: str
    node_gpus: int
    nic_bytes_per_s: float
    most_gpus: int
    cloud: str
    region: str
    instance: str
    usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None
    network_certainty: str
    points: int  # of the frontier that it has


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The answer if something were different."""

    what: str
    plan: Priced | None  # None: nothing fits then
    same_plan: bool  # on as many GPUs
    usd_change: float = 0.0
    hours_change: float = 0.0
    possible: bool = True  # whether the goals can be met then


class Market(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the frontier's plans are worth naming: places in the frontier, fastest first,
    counted from 1. A plan's own rank is its place among the plans of the answer.
    """

    tokens: float
    budget_usd: float | None
    deadline_hours: float | None
    order: str  # throughput or cost: which of two plans that meet all wishes comes first
    fastest: int
    cheapest: int
    knee: int
    wished: Wished | None
    chosen: int  # the answer
    next_saves_hours: tuple[float, ...]  # from each point to the next faster one
    next_costs_usd: tuple[float, ...]
    elsewhere: tuple[Elsewhere, ...]  # the chosen plan at other clouds
    beaten: tuple[tuple[float, float], ...]  # hours and dollars of plans simulated, not kept
    machines: tuple[Machines, ...]
    longest_hours: float  # plans that take longer were left out
    conditions: dict[str, object]
    what_if: WhatIf | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a search says, in the words of the JSON."""

    request: dict[str, object]
    search: Search
    plans: tuple[Priced, ...]
    nothing_fits: NothingFits | None = None
    mixed: Mixed | None = None  # over several GPU types
    paper: tuple[Compared, ...] | None = None  # by the paper's pipeline formula, where asked for
    frontier: tuple[Priced, ...] = ()  # of hours and dollars, fastest first, where asked
    market: Market | None = None  # what the money buys

    @property
    def best(self) -> Priced | None:
        return self.plans[0] if self.plans else None

    def explain(
        self, rank: int = 1, against: str | None = None, quick: bool = False
    ) -> "Explanation":
        """Why the plan of this rank, and why not those of these settings (`"tp=4 pp=8"`)."""
        from astra.search.explain import explain_source

        return explain_source(self, against, rank, quick=quick)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A question with all that the search obeys."""

    space: Space
    stack: Stack
    own_rules: Sequence[Rule] = ()
    top: int = 10
    margin: float = MARGIN
    fold: bool = True  # near-identical plans as one
    exact: bool = False  # over several GPU types: look far longer for a proof
    runtimes: tuple[Runtime, ...] = ()  # over several GPU types: asked in turn; the task's alone

    @property
    def asked_runtimes(self) -> tuple[Runtime, ...]:
        return self.runtimes or (self.space.question.task.runtime,)


def answer(wanted: Wanted, request: dict[str, object], progress: Progress | None = None) -> Answer:
    """The best plans of a space, proven: no plan of it has a shorter simulated step."""
    start = time.perf_counter()
    best = _best(wanted, wanted.space, progress)
    task = wanted.space.question.task
    priced = price_many(_plans(best, task), wanted.margin)
    ranked = [msgspec.structs.replace(p, rank=place) for place, p in enumerate(priced, 1)]
    nothing = None if ranked else nothing_fits(wanted, best)
    return Answer(
        request=request,
        search=search_of(best.funnel, time.perf_counter() - start),
        plans=tuple(ranked),
        nothing_fits=nothing,
    )


def search_of(funnel: Funnel, seconds: float) -> Search:
    """Where the candidates of a search went, for people."""
    return Search(
        candidates=funnel.candidates,
        removed_by_rule=funnel.removed_by_rule,
        bounded=funnel.bounded,
        out_of_memory=funnel.out_of_memory,
        priced=funnel.priced,
        simulated=funnel.simulated,
        seconds=round(seconds, 3),
    )


def summed(parts: Sequence[Funnel | Search]) -> Funnel:
    """Where the candidates of several searches went."""
    removed: Counter[str] = Counter()
    for part in parts:
        removed.update(part.removed_by_rule)
    return Funnel(
        candidates=sum(part.candidates for part in parts),
        removed_by_rule=dict(removed),
        bounded=sum(part.bounded for part in parts),
        out_of_memory=sum(part.out_of_memory for part in parts),
        priced=sum(part.priced for part in parts),
        simulated=sum(part.simulated for part in parts),
    )


def _best(wanted: Wanted, space: Space, progress: Progress | None = None) -> Best:
    return _finder(wanted, space).run(progress)


def _finder(wanted: Wanted, space: Space) -> Finder:
    return Finder(space, rules_of(wanted), wanted.stack, wanted.top, wanted.margin, wanted.fold)


def rules_of(wanted: Wanted) -> tuple[Rule, ...]:
    return (*rules_for(wanted.space.question.task.runtime), *wanted.own_rules)


def fewest_gpus(
    wanted: Wanted, request: dict[str, object], tokens_per_s: float, progress: Progress | None
) -> Answer:
    """The best plans on the fewest GPUs that fit the model, or that reach a throughput.

    More GPUs never take longer, so the least count is found by halving.
    """
    question = wanted.space.question
    pool = question.task.cluster.pools[0]
    cap = min(pool.count, question.task.cluster.max_gpus or pool.count)
    counts = [count for count in allowed_counts(pool) if count <= cap]
    tokens = question.global_batch * question.seq_len
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        best = _best(replace(wanted, top=1), _with_gpus(wanted.space, counts[middle]), progress)
        reached = best.plans is not None and tokens / best.step_s[0] >= tokens_per_s
        low, high = (low, middle) if reached else (middle + 1, high)
    found = answer(replace(wanted, space=_with_gpus(wanted.space, counts[low])), request, progress)
    return reaching(found, tokens_per_s, cap)


def reaching(found: Answer, tokens_per_s: float, cap: int) -> Answer:
    """Without the plans that stay below; all of them, with a word, where none reaches it."""
    enough = tuple(plan for plan in found.plans if plan.tokens_per_s >= tokens_per_s)
    if enough or not found.plans:
        return msgspec.structs.replace(found, plans=enough)
    said = found.request.get("notes")
    notes = [*(said if isinstance(said, list) else [])]
    notes.append(f"no plan on up to {cap:,} GPUs reaches {tokens_per_s:,.0f} tokens/s; the fastest")
    return msgspec.structs.replace(found, request=found.request | {"notes": notes})


def _plans(best: Best, task: Task) -> list[Plan]:
    if best.plans is None:
        return []
    return [plan_at(best.plans, row, task) for row in range(len(best.plans))]


def nothing_fits(wanted: Wanted, best: Best) -> NothingFits:
    """The binding constraint: the space is empty, rules empty it, or memory does."""
    task = wanted.space.question.task
    need, hosted = best.least_host
    if hosted is not None:
        (closest,) = price_many([plan_at(hosted, 0, task)], wanted.margin)
        binding = too_small_ram(need, pool_room_bytes(task.cluster.pools))
        return NothingFits(closest=closest, binding=binding, tries=_more(wanted))
    if best.closest is None:
        return _emptied(wanted, best.funnel)
    (closest,) = price_many([plan_at(best.closest, 0, task)], wanted.margin)
    memory = closest.memory
    usable = memory.usable_bytes * (1 - wanted.margin) / 2**30
    binding = (
        f"memory of stage {memory.worst_stage} on {memory.worst.gpu}: "
        f"{memory.reserved_bytes / 2**30:.1f} GiB needed, {usable:.1f} GiB usable"
    )
    return NothingFits(closest=closest, binding=binding, tries=_more(wanted))


def _emptied(wanted: Wanted, funnel: Funnel) -> NothingFits:
    """No plan was left to price: what the rule that removes most of them speaks of may change."""
    if not funnel.candidates:
        return _contradiction(wanted.space)
    removed = sorted(funnel.removed_by_rule.items(), key=lambda item: -item[1])
    names = ", ".join(f"{name} ({count:,})" for name, count in removed[:3])
    rules = {rule.name: rule for rule in rules_of(wanted)}
    first = rules[removed[0][0]]
    return NothingFits(
        closest=None,
        binding=f"{first.reason}; rules remove every plan: {names}",
        tries=(f"another {either(first.settings)}", "fewer --set or --rules"),
    )


def _contradiction(space: Space) -> NothingFits:
    """No combination of degrees exists: the settings that leave none, each tried without."""
    question = space.question
    asked = [f"{name}={','.join(map(str, values))}" for name, values in space.settings.items()]
    held = " ".join(f"--set {text}" for text in asked) or "the degrees there are"
    tries = []
    for name, text in zip(space.settings, asked, strict=True):
        rest = {key: values for key, values in space.settings.items() if key != name}
        if any(len(layouts) for layouts in enumerate_layouts(Space(question, rest))):
            values = Space(question).values(name)
            known = f" ({name} {either(values)} are searched)" if values else ""
            tries.append(f"without --set {text}{known}")
    gpus = sum(pool.count for pool in question.task.cluster.pools)
    return NothingFits(
        closest=None,
        binding=f"{held} leaves no plan for batch {question.global_batch} on up to {gpus} GPUs",
        tries=tuple(tries) or ("another --global-batch or GPU count", "fewer --set"),
    )


def _more(wanted: Wanted) -> tuple[str, ...]:
    """The smallest changes that help, found by looking for a plan that fits."""
    found = [*_without_one(wanted), *_more_gpus(wanted)]
    length = wanted.space.question.seq_len
    while length > 1024:
        length //= 2
        if _fits(wanted, _with_length(wanted.space, length)):
            found.append(f"--seq-len {length}")
            break
    return tuple(found) or ("a GPU with more memory, or a smaller model",)


def _without_one(wanted: Wanted) -> list[str]:
    """Settings that were asked for, each left out: what is the best plan then? If no single one
    helps, all of them.
    """
    space = wanted.space
    some: list[tuple[str, ...]] = [(name,) for name in space.settings]
    if len(some) > 1:
        some.append(tuple(space.settings))
    found: list[str] = []
    for names in some:
        rest = {name: values for name, values in space.settings.items() if name not in names}
        if len(names) == 1 or not found:
            best = _best(replace(wanted, top=1), Space(space.question, rest))
            for plan in _plans(best, space.question.task):
                left = " ".join(f"--set {name}" for name in names)
                found.append(f"without {left} ({plan.summary()} fits)")
    return found


def _more_gpus(wanted: Wanted) -> list[str]:
    """The fewest GPUs that hold a plan: doubled until one fits, then halved in between."""
    pool = wanted.space.question.task.cluster.pools[0]

    def enough(count: int) -> bool:
        return _fits(wanted, _with_gpus(wanted.space, count))

    last = pool.count
    for times in GROWTH:
        if not enough(pool.count * times):
            last = pool.count * times
            continue
        most = msgspec.structs.replace(pool, count=pool.count * times)
        counts = [count for count in allowed_counts(most) if count > last]
        low, high = 0, len(counts) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(counts[middle]) else (middle + 1, high)
        return [f"{counts[low]} GPUs"]
    return []


def _fits(wanted: Wanted, space: Space) -> bool:
    """Whether a plan fits, with all that saves memory turned on unless asked otherwise."""
    frugal_ways = FRUGAL
    if np.isfinite(pool_room_bytes(space.question.task.cluster.pools)):
        frugal_ways = FRUGAL | {"offload_optimizer_fraction": (0.0, 1.0)}  # RAM may be too small
    saving = {
        name: value
        for name, value in frugal_ways.items()
        if name not in space.settings and set(value) <= set(space.values(name) or value)
    }
    frugal = Space(space.question, {**space.settings, **saving})
    return _finder(replace(wanted, top=1), frugal).any_fits()


def _with_gpus(space: Space, count: int) -> Space:
    question = space.question
    pool = msgspec.structs.replace(question.task.cluster.pools[0], count=count)
    cluster = msgspec.structs.replace(question.task.cluster, pools=(pool,), max_gpus=None)
    task = msgspec.structs.replace(question.task, cluster=cluster)
    return Space(_changed(question, task=task), space.settings)


def _with_length(space: Space, seq_len: int) -> Space:
    return Space(_changed(space.question, seq_len=seq_len), space.settings)


def _changed(question: Question, **changes: object) -> Question:
    return replace(question, **changes)  # type: ignore[arg-type]
