"""The question that a plan answers, searched again with something different."""

from dataclasses import dataclass

from astra.errors import InputError
from astra.hardware.stack import find_stack
from astra.search.explained import Subject
from astra.search.find import Finder
from astra.search.host import pool_room_bytes
from astra.strategy.plan import Plan
from astra.strategy.plans import plan_at
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space, parse_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What a search found: the best plan, or the one that comes closest to fitting."""

    plan: Plan | None
    closest: Plan | None
    removed_by_rule: dict[str, int]
    host: tuple[float, float] | None = None  # needed and usable RAM, where that alone binds [bytes]


def search_again(subject: Subject, space: Space) -> Again:
    """On one GPU type or over several, with the rules and the margin of the plan's own search."""
    several = len(space.question.task.cluster.pools) > 1
    return _mixed(subject, space) if several else _alone(subject, space)


def _alone(subject: Subject, space: Space) -> Again:
    plan, asked, task = subject.plan, subject.asked, space.question.task
    rules = (*rules_for(plan.runtime), *asked.own_rules)
    best = Finder(space, rules, find_stack(plan.stack), 1, asked.margin).run()
    need, hosted = best.least_host
    closest = best.closest if hosted is None else hosted
    return Again(
        plan=None if best.plans is None else plan_at(best.plans, 0, task),
        closest=None if closest is None else plan_at(closest, 0, task),
        removed_by_rule=best.funnel.removed_by_rule,
        host=None if hosted is None else (need, pool_room_bytes(task.cluster.pools)),
    )


def _mixed(subject: Subject, space: Space) -> Again:
    from astra.search.answer import Wanted
    from astra.search.mixed.answer import answer_mixed

    asked = subject.asked
    wanted = Wanted(
        space=space,
        stack=find_stack(subject.plan.stack),
        own_rules=asked.own_rules,
        top=1,
        margin=asked.margin,
    )
    found = answer_mixed(wanted, {})
    nothing = found.nothing_fits
    return Again(
        plan=found.best.plan if found.best else None,
        closest=nothing.closest.plan if nothing and nothing.closest else None,
        removed_by_rule=found.search.removed_by_rule,
    )


def check_narrowing(space: Space, settings: tuple[str, ...]) -> None:
    """What cannot be narrowed over several GPU types, in the words of --against."""
    from astra.search.mixed.answer import narrowed_by

    if len(space.question.task.cluster.pools) == 1:
        return
    known = narrowed_by(space.question.task.runtime)
    for name in parse_set(settings):
        if name not in known:
            raise InputError(
                f"--against {' '.join(settings)}: over several GPU types {name} cannot be told "
                f"apart; {', '.join(known)} can, or a plan of the file as its table names it."
            )
