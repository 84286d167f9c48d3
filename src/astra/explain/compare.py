"""Why not the best plan with other settings."""

import re

from astra.errors import InputError
from astra.explain.explained_plan import ExplainedPlan, difference
from astra.explain.result import Alternative
from astra.notes import NoteCode, note
from astra.search.query import Query
from astra.search.result import NothingFits, Result
from astra.search.solve import solve
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.mixed_space import narrowed_by
from astra.strategy.rule_messages import rule_message as rule_in_words
from astra.strategy.rules.registry import broken_rules
from astra.strategy.space import parse_set

# How a plan's summary says it, and the setting it means.
SUMMARY_WORDS = {
    r"\b(tp|pp|dp|vpp|cp|ep|etp|mb|recompute) (?=\S)": r"\1=",
    r"\bsharded (\w+)": r"sharding=\1",
    r"\bin groups of (\d+)": r"shard_group=\1",
    r"\bgroup (?=\d)": "microbatch_group=",
    r"\bep-overlap\b": "overlap_ep=true",
    r"\boffload optimizer\b": "offload_optimizer=1",
    r"\boffload ([\d.]+) optimizer\b": r"offload_optimizer=\1",
}
PLAN_SETTINGS = tuple(PlanSettings.__dataclass_fields__)


def settings_in(text: str) -> tuple[str, ...]:
    """`tp=4 pp=8`, or a plan as tables name it, as settings, checked as --set checks them.

    >>> settings_in("tp 4 pp 3 mb 1 sharded parameters ep-overlap offload optimizer")
    ('tp=4', 'pp=3', 'mb=1', 'sharding=parameters', 'overlap_ep=true', 'offload_optimizer=1')
    >>> settings_in("tp 4 pp 3 vpp 2 group 4")
    ('tp=4', 'pp=3', 'vpp=2', 'microbatch_group=4')
    """
    for said, meant in SUMMARY_WORDS.items():
        text = re.sub(said, meant, text)
    words = tuple(text.split())
    if not words:
        raise InputError('--against "": give settings, --against "tp=4 pp=8".')
    parse_set(words, option="--against")
    return words


def alternative(explained: ExplainedPlan, settings: tuple[str, ...]) -> Alternative:
    """The best plan with these settings: what rules it out, or what it loses."""
    query = explained.narrowed(settings)
    _check_narrowing(query, settings)
    explained.say(note(NoteCode.THESE_SETTINGS, settings=list(settings)))
    found = solve(query)
    if found.best is not None:
        plan = difference(found.best.plan, explained)
        return Alternative(settings=settings, outcome="time", plan=plan)
    assert found.nothing_fits is not None
    if found.nothing_fits.closest is not None:
        return _too_large(explained, settings, found, found.nothing_fits)
    return _forbidden(explained, settings, query, found)


def _check_narrowing(query: Query, settings: tuple[str, ...]) -> None:
    """What cannot be narrowed over several GPU types, in the words of --against."""
    if len(query.cluster.pools) == 1:
        return
    known = narrowed_by(query.runtime)
    for name in parse_set(settings):
        if name not in known:
            raise InputError(
                f"--against {' '.join(settings)}: over several GPU types {name} cannot be told "
                f"apart; {', '.join(known)} can, or a plan of the file as its table names it."
            )


def _too_large(
    explained: ExplainedPlan, settings: tuple[str, ...], found: Result, nothing: NothingFits
) -> Alternative:
    """The closest plan needs more memory than there is, of its GPUs or of its nodes."""
    assert nothing.closest is not None
    why, memory = nothing.reason, nothing.closest.memory
    of_host = why.code is NoteCode.RAM_TOO_SMALL
    usable = memory.usable_bytes * (1 - explained.query.margin)
    return Alternative(
        settings=settings,
        outcome="memory",
        plan=difference(nothing.closest.plan, explained),
        rules=found.funnel.removed_by_rule,
        needed_bytes=why.facts["needed_bytes"] if of_host else memory.reserved_bytes,
        usable_bytes=why.facts["usable_bytes"] if of_host else usable,
        stage=None if of_host else memory.worst_stage,
        why=why,
    )


def _forbidden(
    explained: ExplainedPlan, settings: tuple[str, ...], query: Query, found: Result
) -> Alternative:
    """Rules that remove all such plans, or why there is none to begin with."""
    removed = found.funnel.removed_by_rule
    if not removed:
        reason = _impossible(explained, query, settings)
        why = note(NoteCode.SETTINGS_IMPOSSIBLE, reason=reason)
        return Alternative(settings=settings, outcome="none", why=why)
    ordered = dict(sorted(removed.items(), key=lambda item: -item[1]))
    reasons = {rule.name: rule.reason for rule in query.rules if rule.name in ordered}
    why = note(NoteCode.SETTINGS_FORBIDDEN, reasons=reasons, removed=ordered)
    return Alternative(settings=settings, outcome="rules", rules=ordered, why=why)


def _impossible(explained: ExplainedPlan, query: Query, settings: tuple[str, ...]) -> str:
    """What is wrong with such a plan, as the error says that a person would get for it."""
    plan, chosen = explained.plan, parse_set(settings)
    said = {name: values[0] for name, values in chosen.items() if name in PLAN_SETTINGS}
    wish = PlanSettings(**{"global_batch": plan.global_batch, "seq_len": plan.seq_len, **said})
    try:
        settled = complete(wish, plan.model, plan.cluster, plan.runtime, plan.stack).plan
    except InputError as error:
        return str(error)
    broken = broken_rules(settled)
    if broken:
        return f"{rule_in_words(settled, broken[0])}."
    space = query.space
    values = [f"{name} {', '.join(map(str, space.values(name) or ()))}" for name in chosen]
    return f"the degrees divide neither the batch nor the GPUs ({'; '.join(values)})."
