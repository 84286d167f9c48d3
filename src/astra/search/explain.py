"""Why a plan is as fast as it is, what others lose, and what would change it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.errors import InputError
from astra.files import read_json
from astra.hardware.cluster import Gpu
from astra.hardware.stack import find_stack
from astra.hardware.topology import allowed_counts
from astra.search.breakdown import CLASSES, Detail, Exchange, detail_of, exchanges, parts_s
from astra.search.find import Best, Finder
from astra.search.price import MARGIN, price
from astra.search.priced import PlanMemory, Priced
from astra.strategy.advice import explain as rule_in_words
from astra.strategy.advice import refuse
from astra.strategy.own_rules import read_own_rules
from astra.strategy.plan import Plan
from astra.strategy.plan_file import read_plans
from astra.strategy.plans import plan_at, task_of
from astra.strategy.rules.book import broken_rules, rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.settle import Wish, settle
from astra.strategy.space import NAMES, Question, Space, parse_set

if TYPE_CHECKING:
    from astra.search.answer import Answer

BINDS = 0.1  # of the step: what costs less than this holds nothing up
NEXT = 20  # plans behind the explained one that are looked at
FEW = 4  # micro-batches for each stage of a pipeline; with fewer, filling it shows
GIB = 2**30
TRAFFIC = {  # parts of the step, and the groups that exchange something in them
    "tensor_comm": ("tp",),
    "context_comm": ("cp",),
    "expert_comm": ("ep", "etp"),
    "pipeline_comm": ("pp",),
    "data_comm": ("dp", "edp"),
}
MORE_MEMORY = "1.25 x the memory"
WISHES = tuple(Wish.__dataclass_fields__)
RATES = ("bf16", "fp16", "tf32", "fp8", "fp4", "fp32")

Say = Callable[[str], None]


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """What holds the step up, and what each constraint costs."""

    constraint: str  # memory, network, link, bubble, batch or compute
    sentence: str
    cost_s: dict[str, float]  # seconds of the step that each of them takes
    filled_fraction: float  # of the memory that a plan may take, on the fullest stage
    fullest_stage: int
    micro_batches: int  # per replica
    stages: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan beside the explained one."""

    rank: int
    summary: str
    gpus: dict[str, int]
    step_s: float
    slower_s: float
    parts_s: dict[str, float]  # what it takes more of each part; they sum to `slower_s`


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Why not the best plan with these settings."""

    settings: tuple[str, ...]
    outcome: str  # rules, memory, time or none
    sentence: str
    plan: Loss | None = None  # the best one that fits, else the one that comes closest
    rules: dict[str, int] = {}  # how many candidates each rule removes
    needed_bytes: float | None = None
    usable_bytes: float | None = None
    stage: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What would be if something were different."""

    what: str
    how: str  # repriced: the same plan; searched: the best plan there
    plan: Loss | None  # None: no plan fits
    same_plan: bool


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to say about one plan, in the words of the JSON."""

    rank: int
    summary: str
    model: str
    gpus: dict[str, int]
    step_s: float
    parts_pipeline: int
    parts_stage: int
    parts_s: dict[str, float]  # kernels by class and all else; they sum to `step_s`
    binding: Binding
    best: Loss | None  # rank 1, where another is explained
    next_plans: tuple[Loss, ...]
    against: Against | None
    changes: tuple[Change, ...]
    exchanges: tuple[Exchange, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the plans of a file were found for, as far as a plan does not say it itself."""

    settings: Sequence[str] = ()
    own_rules: Sequence[Rule] = ()
    margin: float = MARGIN
    use_all: bool = False
    searched: bool = False  # the plans are the best of a search
    notes: tuple[str, ...] = ()


def found_plans(
    source: "str | Path | Plan | Priced | Answer",
) -> tuple[list[Plan], Mapping[str, object], str]:
    """All plans of an answer or a file, what they were searched for, and the name of the place."""
    from astra.search.answer import Answer

    if isinstance(source, Plan):
        return [source], {}, "plan"
    if isinstance(source, Priced):
        return [source.plan], {}, "plan"
    if isinstance(source, Answer):
        return [priced.plan for priced in source.plans], source.request, "answer"
    path = Path(source)
    document = read_json(path)
    request = document.get("request") if isinstance(document, dict) else None
    return read_plans(path), request if isinstance(request, dict) else {}, str(path)


def asked_of(request: Mapping[str, object], plan: Plan, margin: float | None = None) -> Asked:
    """What the request of an answer adds to its plans: narrowed settings, rules, the margin."""
    settings, path, kept = (request.get(name) for name in ("set", "rules", "memory_margin"))
    notes: list[str] = []
    own: tuple[Rule, ...] = ()
    if isinstance(path, str) and Path(path).is_file():
        own = read_own_rules(Path(path), task_of(plan))
    elif path is not None:
        notes.append(f"the rules of {path} are not there any more, so nothing obeys them here")
    if margin is None:
        known = isinstance(kept, int | float) and 0 <= kept <= 0.9
        margin = float(kept) if known else MARGIN  # type: ignore[arg-type]
    return Asked(
        settings=tuple(map(str, settings)) if isinstance(settings, list) else (),
        own_rules=own,
        margin=margin,
        use_all=request.get("use_all") is True,
        searched=request.get("objective", "time") == "time" and bool(request),
        notes=tuple(notes),
    )


def explain_source(
    source: "str | Path | Plan | Priced | Answer",
    against: str | None = None,
    rank: int = 1,
    *,
    quick: bool = False,
    margin: float | None = None,
    say: Say | None = None,
) -> Explanation:
    """The plan of this rank in an answer or a file, checked against its runtime's rules."""
    plans, request, where = found_plans(source)
    if not plans:
        raise InputError(f"{where}: the search found no plan, so there is none to explain.")
    if not 1 <= rank <= len(plans):
        held = "1 plan" if len(plans) == 1 else f"{len(plans)} plans"
        raise InputError(f"{where}: there is no rank {rank}; it holds {held}.")
    for plan in plans:
        broken = broken_rules(plan)
        if broken:
            raise InputError(f"{where}: {refuse(plan, broken, None, None)}")
    asked = asked_of(request, plans[rank - 1], margin)
    return explain(plans, rank, against, asked, quick, say)


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The plan that is explained, priced and in detail."""

    plan: Plan
    priced: Priced
    detail: Detail
    parts_s: dict[str, float]
    asked: Asked
    say: Say = field(repr=False)


def explain(
    plans: Sequence[Plan],
    rank: int = 1,
    against: str | None = None,
    asked: Asked | None = None,
    quick: bool = False,
    say: Say | None = None,
) -> Explanation:
    """The plan of this rank among `plans`, best first.

    `against` are settings as people write them, `tp=4 pp=8`. `quick` leaves out what has to be
    searched for; `say` hears what is being worked on.
    """
    wanted = _settings(against) if against is not None else None
    subject = _subject(plans[rank - 1], asked or Asked(), say or (lambda _: None))
    alone = len(subject.plan.cluster.pools) == 1
    if wanted and not alone:
        raise InputError("--against searches, and the search takes one GPU type so far.")
    behind = enumerate(plans[rank : rank + NEXT], rank + 1)
    later = [_loss(plan, subject, place) for place, plan in behind]
    versus = _against(subject, wanted) if wanted else None
    changes = _repriced(subject)
    if alone and not quick:
        changes += _searched(subject)
    return Explanation(
        rank=rank,
        summary=subject.priced.summary,
        model=subject.plan.model.name,
        gpus=subject.priced.gpus,
        step_s=subject.priced.step_s,
        parts_pipeline=subject.detail.pipeline,
        parts_stage=subject.detail.stage,
        parts_s=subject.parts_s,
        binding=_binding(subject, changes),
        best=_loss(plans[0], subject, 1) if rank > 1 else None,
        next_plans=tuple(later),
        against=versus,
        changes=tuple(changes),
        exchanges=exchanges(subject.detail),
        notes=_notes(subject, quick and against is None),
    )


def _notes(subject: _Subject, plain: bool) -> tuple[str, ...]:
    """What a person should know about the searches."""
    notes = subject.asked.notes
    if len(subject.plan.cluster.pools) > 1:
        return (*notes, "a search takes one GPU type so far, so nothing was searched again")
    if subject.asked.settings and not plain:
        narrowed = " ".join(subject.asked.settings)
        return (*notes, f"searched again as narrowly as the file's own search: {narrowed}")
    return notes


def _subject(plan: Plan, asked: Asked, say: Say) -> _Subject:
    detail = detail_of(plan)
    return _Subject(
        plan=plan,
        priced=price(plan, margin=asked.margin),
        detail=detail,
        parts_s=parts_s(detail),
        asked=asked,
        say=say,
    )


def _loss(plan: Plan, subject: _Subject, rank: int = 0) -> Loss:
    """Another plan, part by part beside the explained one."""
    detail = detail_of(plan)
    step_s, parts = float(detail.step.step_s[0]), parts_s(detail)
    return Loss(
        rank=rank,
        summary=plan.summary(),
        gpus=plan.gpus,
        step_s=step_s,
        slower_s=step_s - subject.priced.step_s,
        parts_s={name: parts[name] - subject.parts_s[name] for name in parts},
    )


# ------------------------------------------------------------------ what binds


def _binding(subject: _Subject, changes: Sequence[Change]) -> Binding:
    """The dearest of memory, traffic and waiting where it costs a tenth of the step; else compute.

    Memory costs what is computed again, or what more of it would save by a search.
    """
    priced, parts = subject.priced, subject.parts_s
    pipeline = subject.plan.pipelines[subject.detail.pipeline]
    few = pipeline.stages > 1 and pipeline.micro_batches < FEW * pipeline.stages
    far = _far(subject.detail)
    cost = {
        "memory": max(parts["recompute"], _saved(changes, MORE_MEMORY)),
        "network": sum(parts[name] for name in far),
        "link": sum(parts[name] for name in TRAFFIC if name not in far),
        "batch" if few else "bubble": parts["bubble"],
    }
    dearest = max(cost, key=lambda name: cost[name])
    if cost[dearest] < BINDS * priced.step_s:
        dearest = "compute"
    if not priced.memory.fits:
        dearest = "memory"
    cost["compute"] = sum(parts[name] for name in CLASSES)
    allowed = priced.memory.usable_bytes * (1 - subject.asked.margin)
    filled = priced.memory.reserved_bytes / allowed
    return Binding(
        constraint=dearest,
        sentence=f"{_bound(dearest, cost, subject)}{_room(priced.memory, filled)}",
        cost_s=cost,
        filled_fraction=filled,
        fullest_stage=priced.memory.worst_stage,
        micro_batches=pipeline.micro_batches,
        stages=pipeline.stages,
    )


def _far(detail: Detail) -> list[str]:
    """Traffic of groups that reach over the network."""
    groups = {exchange.group for exchange in exchanges(detail) if exchange.over == "network"}
    return [name for name, own in TRAFFIC.items() if groups & set(own)]


def _saved(changes: Sequence[Change], what: str) -> float:
    """Seconds that a change would save."""
    found = [-change.plan.slower_s for change in changes if change.what == what and change.plan]
    return max([0.0, *found])


def _bound(what: str, cost: Mapping[str, float], subject: _Subject) -> str:
    """The binding constraint with its number."""
    priced, parts = subject.priced, subject.parts_s
    pipeline = subject.plan.pipelines[subject.detail.pipeline]
    share = f"{cost[what] / priced.step_s:.0%} of the step"
    if what == "memory" and not priced.memory.fits:
        return "Memory binds: the plan does not fit"
    if what == "memory" and parts["recompute"] >= cost[what]:
        return f"Memory binds: what is computed again to save it is {share}"
    if what == "memory":
        return f"Memory binds: a quarter more of it would save {share}"
    if what in ("network", "link"):
        far = _far(subject.detail)
        kinds = [name for name in TRAFFIC if (name in far) == (what == "network")]
        worst = max(kinds, key=lambda name: parts[name])
        most = f"{worst.removesuffix('_comm')}-parallel {parts[worst] / priced.step_s:.0%}"
        where = "The network" if what == "network" else "The link between GPUs"
        return f"{where} binds: its traffic that shows is {share} ({most})"
    if what == "batch":
        return (
            f"The batch binds: {pipeline.micro_batches} micro-batches per replica are few for "
            f"{pipeline.stages} stages, so waiting is {share}"
        )
    if what == "bubble":
        return f"Waiting between stages binds: the bubble is {share}"
    return f"Compute binds: kernels are {share}"


def _room(memory: PlanMemory, filled: float) -> str:
    """How full the fullest GPU is."""
    need, have = memory.reserved_bytes / GIB, memory.usable_bytes / GIB
    return (
        f"; the fullest stage, {memory.worst_stage}, needs {need:.1f} of {have:.1f} GiB, "
        f"{filled:.0%} of what a plan may take."
    )


# ------------------------------------------------------------------ the same question again


def _settings(text: str) -> tuple[str, ...]:
    """`tp=4 pp=8` as settings, checked as --set checks them."""
    words = tuple(text.split())
    if not words:
        raise InputError('--against "": give settings, --against "tp=4 pp=8".')
    try:
        parse_set(words)
    except InputError as error:
        raise InputError(str(error).replace("--set", "--against")) from None
    return words


def _space(subject: _Subject, settings: Sequence[str] = ()) -> Space:
    """The question that a plan answers, narrowed as its search was and by these settings."""
    plan, asked = subject.plan, subject.asked
    question = Question(
        task=task_of(plan),
        global_batch=plan.global_batch,
        seq_len=plan.seq_len,
        mtp_layers=plan.mtp_layers,
        precision=plan.precision,
        use_all=asked.use_all,
    )
    chosen = {**_fixed(plan), **parse_set(tuple(asked.settings)), **parse_set(tuple(settings))}
    return Space(question, chosen)


def _fixed(plan: Plan) -> dict[str, tuple[Any, ...]]:
    """What is never searched and was asked for in this plan: it stays."""
    first, second = plan.moment_dtypes
    plain = {field.name: field.default for field in msgspec.structs.fields(Plan)}
    plain |= {"first_moment_dtype": "fp32", "second_moment_dtype": "fp32"}
    own = {"first_moment_dtype": first, "second_moment_dtype": second}
    found: dict[str, tuple[Any, ...]] = {}
    for name, dimension in NAMES.items():
        value = own.get(name) or getattr(plan, name, None)
        if dimension.how == "asked" and value is not None and value != plain[name]:
            found[name] = (value,)
    return found


def _find(subject: _Subject, space: Space) -> Best:
    plan, asked = subject.plan, subject.asked
    rules = (*rules_for(plan.runtime), *asked.own_rules)
    return Finder(space, rules, find_stack(plan.stack), 1, asked.margin).run()


def _against(subject: _Subject, settings: tuple[str, ...]) -> Against:
    """The best plan with these settings: what rules it out, or what it loses."""
    said = " ".join(settings)
    subject.say(f"the best plan with {said}")
    space = _space(subject, settings)
    best, task = _find(subject, space), space.question.task
    if best.plans is not None:
        loss = _loss(plan_at(best.plans, 0, task), subject)
        text = f"The best plan with {said} {_slower(loss, subject)}."
        return Against(settings=settings, outcome="time", sentence=text, plan=loss)
    if best.closest is not None:
        return _too_large(subject, settings, plan_at(best.closest, 0, task), best)
    return _forbidden(subject, settings, space, best)


def _slower(loss: Loss, subject: _Subject) -> str:
    if abs(loss.slower_s) < 1e-9 * subject.priced.step_s:
        return "is as fast"
    more = "slower" if loss.slower_s > 0 else "faster"
    share = abs(loss.slower_s) / subject.priced.step_s
    return f"is {abs(loss.slower_s):.3g} s ({share:.1%}) {more}"


def _too_large(subject: _Subject, settings: tuple[str, ...], closest: Plan, best: Best) -> Against:
    memory = price(closest, margin=subject.asked.margin).memory
    usable = memory.usable_bytes * (1 - subject.asked.margin)
    needed = memory.reserved_bytes
    return Against(
        settings=settings,
        outcome="memory",
        sentence=(
            f"No plan with {' '.join(settings)} fits: the closest ({closest.summary()}) needs "
            f"{needed / GIB:.1f} GiB on stage {memory.worst_stage}, {usable / GIB:.1f} GiB are "
            f"usable, {(needed - usable) / GIB:.1f} GiB too much."
        ),
        plan=_loss(closest, subject),
        rules=best.funnel.removed_by_rule,
        needed_bytes=needed,
        usable_bytes=usable,
        stage=memory.worst_stage,
    )


def _forbidden(subject: _Subject, settings: tuple[str, ...], space: Space, best: Best) -> Against:
    """Rules that remove all such plans, or why there is none to begin with."""
    said, removed = " ".join(settings), best.funnel.removed_by_rule
    if not removed:
        why = _impossible(subject, space, settings)
        text = f"There is no plan with {said}: {why}"
        return Against(settings=settings, outcome="none", sentence=text)
    ordered = dict(sorted(removed.items(), key=lambda item: -item[1]))
    known = {rule.name: rule for rule in rules_for(subject.plan.runtime)}
    known |= {rule.name: rule for rule in subject.asked.own_rules}
    words = [f"{known[name].reason} [rule {name}, {n:,} candidates]" for name, n in ordered.items()]
    text = f"Rules forbid every plan with {said}: {'; '.join(words[:3])}."
    return Against(settings=settings, outcome="rules", sentence=text, rules=ordered)


def _impossible(subject: _Subject, space: Space, settings: tuple[str, ...]) -> str:
    """What is wrong with such a plan, as if a person had written it down."""
    plan, chosen = subject.plan, parse_set(settings)
    said = {name: values[0] for name, values in chosen.items() if name in WISHES}
    wish = Wish(**{"global_batch": plan.global_batch, "seq_len": plan.seq_len, **said})
    try:
        settled = settle(wish, plan.model, plan.cluster, plan.runtime, plan.stack).plan
    except InputError as error:
        return str(error)
    broken = broken_rules(settled)
    if broken:
        return f"{rule_in_words(settled, broken[0])}."
    values = [f"{name} {', '.join(map(str, space.values(name) or ()))}" for name in chosen]
    return f"the degrees divide neither the batch nor the GPUs ({'; '.join(values)})."


# ------------------------------------------------------------------ what would change


def _repriced(subject: _Subject) -> list[Change]:
    """The same plan on other hardware."""
    kinds: dict[str, Callable[[Gpu], Gpu]] = {
        "2 x the network": lambda gpu: _faster_nic(gpu, 2.0),
        "2 x the link between GPUs": lambda gpu: _faster_link(gpu, 2.0),
        "1.5 x the memory bandwidth": lambda gpu: msgspec.structs.replace(
            gpu, memory_bytes_per_s=1.5 * gpu.memory_bytes_per_s
        ),
        "1.5 x the compute": lambda gpu: _faster_compute(gpu, 1.5),
    }
    found = []
    for what, change in kinds.items():
        changed = _on(subject.plan, change)
        found.append(
            Change(what=what, how="repriced", plan=_loss(changed, subject), same_plan=True)
        )
    return found


def _faster_nic(gpu: Gpu, times: float) -> Gpu:
    node = msgspec.structs.replace(gpu.node, nic_bytes_per_s=times * gpu.node.nic_bytes_per_s)
    return msgspec.structs.replace(gpu, node=node)


def _faster_link(gpu: Gpu, times: float) -> Gpu:
    link = msgspec.structs.replace(
        gpu.link,
        bytes_per_s=times * gpu.link.bytes_per_s,
        peer_bytes_per_s=times * gpu.link.peer_bytes_per_s,
    )
    return msgspec.structs.replace(gpu, link=link)


def _faster_compute(gpu: Gpu, times: float) -> Gpu:
    rates = {f"{name}_flops_per_s": getattr(gpu, f"{name}_flops_per_s") for name in RATES}
    faster = {name: times * rate for name, rate in rates.items() if rate}
    return msgspec.structs.replace(gpu, **faster)


def _larger(gpu: Gpu, times: float) -> Gpu:
    return msgspec.structs.replace(
        gpu, memory_bytes=times * gpu.memory_bytes, usable_bytes=times * gpu.usable_bytes
    )


def _on(plan: Plan, change: Callable[[Gpu], Gpu]) -> Plan:
    """The plan on changed GPUs."""
    pools = [msgspec.structs.replace(pool, gpu=change(pool.gpu)) for pool in plan.cluster.pools]
    cluster = msgspec.structs.replace(plan.cluster, pools=tuple(pools))
    return msgspec.structs.replace(plan, cluster=cluster)


def _searched(subject: _Subject) -> list[Change]:
    """The best plans of the same question with something different."""
    plan = subject.plan
    spaces: dict[str, Space] = {}
    if not subject.asked.searched:
        spaces["the best plan as things are"] = _space(subject)
    spaces[MORE_MEMORY] = _space(replace(subject, plan=_on(plan, lambda gpu: _larger(gpu, 1.25))))
    for size in (plan.micro_batch // 2, plan.micro_batch * 2):
        if size and plan.global_batch % size == 0:
            spaces[f"micro-batch {size}"] = _space(subject, [f"micro_batch={size}"])
    count = _fewer(plan)
    if count:
        spaces[f"{count} GPUs"] = _space(replace(subject, plan=_with_count(plan, count)))
    return [_best_of(what, space, subject) for what, space in spaces.items()]


def _fewer(plan: Plan) -> int:
    """A tenth fewer GPUs than the plan runs on, in whole nodes; 0 where there are none."""
    (pool,), used = plan.cluster.pools, sum(plan.gpus.values())
    counts = [count for count in allowed_counts(pool) if count <= 0.9 * used]
    return max(counts, default=0)


def _with_count(plan: Plan, count: int) -> Plan:
    (pool,) = plan.cluster.pools
    pools = (msgspec.structs.replace(pool, count=count),)
    cluster = msgspec.structs.replace(plan.cluster, pools=pools, max_gpus=None)
    return msgspec.structs.replace(plan, cluster=cluster)


def _best_of(what: str, space: Space, subject: _Subject) -> Change:
    subject.say(f"the best plan with {what}")
    best = _find(subject, space)
    if best.plans is None:
        return Change(what=what, how="searched", plan=None, same_plan=False)
    plan = plan_at(best.plans, 0, space.question.task)
    same = msgspec.structs.replace(plan, cluster=subject.plan.cluster) == subject.plan
    return Change(what=what, how="searched", plan=_loss(plan, subject), same_plan=same)
