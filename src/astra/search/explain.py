"""Why a plan is as fast as it is, what others lose, and what would change it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from astra.errors import InputError
from astra.files import read_json
from astra.hardware.stack import find_stack
from astra.search.against import against_of, compared_with, settings_in
from astra.search.answer import MixedStage
from astra.search.breakdown import CLASSES, Detail, exchanges
from astra.search.by_stage import stages_of
from astra.search.explained import (
    Against,
    Asked,
    Binding,
    Change,
    Explanation,
    Say,
    Subject,
    loss_of,
    subject_of,
)
from astra.search.price import MARGIN
from astra.search.priced import PlanMemory, Priced
from astra.search.what_if import AS_IS, MORE_MEMORY, repriced, searched
from astra.strategy.plan import Plan
from astra.strategy.plan_file import read_plans
from astra.strategy.plans import task_of
from astra.strategy.rule_messages import refusal_message
from astra.strategy.rules.registry import broken_rules
from astra.strategy.rules.rule import Rule
from astra.strategy.user_rules import read_user_rules

if TYPE_CHECKING:
    from astra.search.answer import Answer
    from astra.search.price_moves import Choice

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
        own = read_user_rules(Path(path), task_of(plan))
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
            raise InputError(f"{where}: {refusal_message(plan, broken, None, None)}")
    asked = asked_of(request, plans[rank - 1], margin)
    found = explain(plans, rank, against, asked, quick, say)
    if quick or not isinstance(request.get("money"), dict):
        return found
    from astra.search.price_moves import asked_again, price_moves

    moves, notes = price_moves(
        asked_again(request, plans[0], where), say or (lambda _: None), _mixed_choices(source)
    )
    return msgspec.structs.replace(found, prices=moves, notes=(*found.notes, *notes))


def _mixed_choices(source: "str | Path | Plan | Priced | Answer") -> "list[Choice]":
    """The points of a frontier that mix GPU types, out of an answer or its file."""
    from astra.search.answer import Answer
    from astra.search.price_moves import choice_in, choice_of

    if isinstance(source, Answer):
        return [choice_of(point) for point in source.frontier if len(point.gpus) > 1]
    if isinstance(source, Plan | Priced):
        return []
    document = read_json(Path(source))
    points = document.get("frontier") if isinstance(document, dict) else None
    found = [choice_in(point, str(source)) for point in points or ()]
    return [choice for choice in found if len(choice.gpus) > 1]


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
    subject = subject_of(plans[rank - 1], asked or Asked(), say or (lambda _: None))
    versus = _versus(plans, subject, against) if against is not None else None
    behind = enumerate(plans[rank : rank + NEXT], rank + 1)
    later = [loss_of(plan, subject, place) for place, plan in behind]
    changes = repriced(subject)
    if not quick:
        changes += searched(subject)
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
        best=loss_of(plans[0], subject, 1) if rank > 1 else None,
        next_plans=tuple(later),
        against=versus,
        changes=tuple(changes),
        exchanges=exchanges(subject.detail),
        stages=_stages(subject),
        notes=_notes(subject, quick and against is None),
    )


def _versus(plans: Sequence[Plan], subject: Subject, against: str) -> Against:
    """A plan of the file by its name, or the best one with these settings."""
    for place, plan in enumerate(plans, 1):
        if plan.summary() == " ".join(against.split()):
            return compared_with(plan, subject, (against,), f"Plan {place}", place)
    return against_of(subject, settings_in(against))


def _stages(subject: Subject) -> tuple[MixedStage, ...]:
    """Over several GPU types, who does what."""
    plan = subject.plan
    if len(plan.gpus) == 1 and len(plan.pipelines) == 1:
        return ()
    return stages_of(subject.priced, find_stack(plan.stack))


def _notes(subject: Subject, plain: bool) -> tuple[str, ...]:
    """What a person should know about the searches."""
    notes = subject.asked.notes
    if subject.asked.settings and not plain:
        narrowed = " ".join(subject.asked.settings)
        return (*notes, f"searched again as narrowly as the file's own search: {narrowed}")
    return notes


def _binding(subject: Subject, changes: Sequence[Change]) -> Binding:
    """The dearest of memory, traffic and waiting where it costs a tenth of the step; else compute.

    Memory costs what is computed again, or what more of it would save by a search. Before all of
    them comes the plan itself, where a search finds one that saves more than any of them costs.
    """
    priced, parts = subject.priced, subject.parts_s
    pipeline = subject.plan.pipelines[subject.detail.pipeline]
    few = pipeline.stages > 1 and pipeline.micro_batches < FEW * pipeline.stages
    far = _far(subject.detail)
    better_s = _saved(changes, AS_IS)
    cost = {
        "plan": better_s,
        "memory": max(parts["recompute"], _saved(changes, MORE_MEMORY) - better_s),
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
        sentence=f"{_bound(dearest, cost, subject, changes)}{_room(priced.memory, filled)}",
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


def _bound(
    what: str, cost: Mapping[str, float], subject: Subject, changes: Sequence[Change]
) -> str:
    """The binding constraint with its number."""
    priced, parts = subject.priced, subject.parts_s
    pipeline = subject.plan.pipelines[subject.detail.pipeline]
    share = f"{cost[what] / priced.step_s:.0%} of the step"
    if what == "plan":
        better = next(change.plan for change in changes if change.what == AS_IS and change.plan)
        return f"The plan itself binds: {better.summary} would save {share}"
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
