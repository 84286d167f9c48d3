"""Why not another plan: one of the file, or the best one with other settings."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from astra.errors import InputError
from astra.explain.explained_plan import ExplainedPlan
from astra.explain.result import Alternative, PlanDifference
from astra.notes import NoteCode, note
from astra.search.query import Query
from astra.search.solve import solve
from astra.strategy.mixed_space import narrowed_by
from astra.strategy.plan import Plan
from astra.strategy.rule_messages import why_impossible
from astra.strategy.space import parse_set, settings_in_summary


def alternative(plans: Sequence[Plan], explained: ExplainedPlan, against: str) -> Alternative:
    """A plan of the file by its name, or the best one with these settings: what rules it out, or
    what it loses.
    """
    for place, plan in enumerate(plans, 1):
        if plan.summary() == " ".join(against.split()):
            other = explained.beside(plan, place)
            return Alternative(settings=(against,), outcome="time", plan=other)
    settings = settings_in_summary(against)
    if not settings:
        raise InputError('--against "": give settings, --against "tp=4 pp=8".')
    chosen = parse_set(settings, option="--against")
    query = explained.narrowed(chosen)
    _check_narrowing(query, settings, chosen)
    explained.say(note(NoteCode.THESE_SETTINGS, settings=list(settings)))
    found = solve(query)
    if found.best is not None:
        other = explained.beside(found.best.plan)
        return Alternative(settings=settings, outcome="time", plan=other)
    nearest = _nearest(explained, settings)
    removed, nothing = found.funnel.removed_by_rule, found.nothing_fits
    assert nothing is not None
    if nothing.closest is not None:  # it needs more memory than its GPUs or its nodes have
        why = nothing.reason
        return Alternative(
            settings=settings,
            outcome="memory",
            plan=explained.beside(nothing.closest.plan),
            rules=removed,
            needed_bytes=why.facts["needed_bytes"],
            usable_bytes=why.facts["usable_bytes"],
            stage=why.facts.get("stage"),
            why=why,
            nearest=nearest,
        )
    if not removed:  # there is none to begin with
        why = note(
            NoteCode.SETTINGS_IMPOSSIBLE, reason=why_impossible(explained.plan, query.space, chosen)
        )
        return Alternative(settings=settings, outcome="none", why=why, nearest=nearest)
    ordered = dict(sorted(removed.items(), key=lambda item: -item[1]))
    reasons = {rule.name: rule.reason for rule in query.rules if rule.name in ordered}
    why = note(NoteCode.SETTINGS_FORBIDDEN, reasons=reasons, removed=ordered)
    return Alternative(settings=settings, outcome="rules", rules=ordered, why=why, nearest=nearest)


def _nearest(explained: ExplainedPlan, settings: Sequence[str]) -> PlanDifference | None:
    """The best plan with all of these settings but one."""
    kept = [[other for other in settings if other != each] for each in settings]
    asked = [explained.narrowed(parse_set(each, option="--against")) for each in kept]
    found = [best for query in asked if (best := solve(replace(query, suggest=False)).best)]
    return explained.beside(min(found, key=lambda each: each.step_s).plan) if found else None


def _check_narrowing(query: Query, settings: Sequence[str], names: Iterable[str]) -> None:
    """What cannot be narrowed over several GPU types, in the words of --against."""
    known = narrowed_by(query.runtime)
    unknown = [name for name in names if name not in known]
    if len(query.cluster.pools) > 1 and unknown:
        raise InputError(
            f'--against "{" ".join(settings)}": over several GPU types {unknown[0]} cannot be told '
            f"apart; {', '.join(known)} can, or a plan of the file as its table names it."
        )
