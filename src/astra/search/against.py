"""Why not the best plan with other settings."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from astra.errors import InputError
from astra.hardware.stack import find_stack
from astra.search.explained import Against, Loss, Subject, loss_of
from astra.search.find import Best, Finder
from astra.search.price import price
from astra.strategy.advice import explain as rule_in_words
from astra.strategy.plan import Plan
from astra.strategy.plans import plan_at, task_of
from astra.strategy.rules.book import broken_rules, rules_for
from astra.strategy.settle import Wish, settle
from astra.strategy.space import NAMES, Question, Space, parse_set

# How a plan is told, and the setting it means.
TOLD = {
    r"\b(tp|pp|dp|vpp|cp|ep|etp|mb|recompute) (?=\S)": r"\1=",
    r"\bsharded (\w+)": r"sharding=\1",
    r"\bin groups of (\d+)": r"shard_group=\1",
    r"\bep-overlap\b": "overlap_ep=true",
    r"\boffload optimizer\b": "offload_optimizer=1",
    r"\boffload ([\d.]+) optimizer\b": r"offload_optimizer=\1",
}
WISHES = tuple(Wish.__dataclass_fields__)
GIB = 2**30


def settings_in(text: str) -> tuple[str, ...]:
    """`tp=4 pp=8`, or a plan as tables name it, as settings, checked as --set checks them.

    >>> settings_in("tp 4 pp 2 mb 1 sharded parameters ep-overlap offload optimizer")
    ('tp=4', 'pp=2', 'mb=1', 'sharding=parameters', 'overlap_ep=true', 'offload_optimizer=1')
    """
    for told, meant in TOLD.items():
        text = re.sub(told, meant, text)
    words = tuple(text.split())
    if not words:
        raise InputError('--against "": give settings, --against "tp=4 pp=8".')
    try:
        parse_set(words)
    except InputError as error:
        raise InputError(str(error).replace("--set", "--against")) from None
    return words


def space_of(subject: Subject, settings: Sequence[str] = ()) -> Space:
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


def find_in(subject: Subject, space: Space) -> Best:
    plan, asked = subject.plan, subject.asked
    rules = (*rules_for(plan.runtime), *asked.own_rules)
    return Finder(space, rules, find_stack(plan.stack), 1, asked.margin).run()


def against_of(subject: Subject, settings: tuple[str, ...]) -> Against:
    """The best plan with these settings: what rules it out, or what it loses."""
    said = " ".join(settings)
    subject.say(f"the best plan with {said}")
    space = space_of(subject, settings)
    best, task = find_in(subject, space), space.question.task
    if best.plans is not None:
        loss = loss_of(plan_at(best.plans, 0, task), subject)
        text = f"The best plan with {said} {_slower(loss, subject)}."
        return Against(settings=settings, outcome="time", sentence=text, plan=loss)
    if best.closest is not None:
        return _too_large(subject, settings, plan_at(best.closest, 0, task), best)
    return _forbidden(subject, settings, space, best)


def _slower(loss: Loss, subject: Subject) -> str:
    if abs(loss.slower_s) < 1e-9 * subject.priced.step_s:
        return "is as fast"
    more = "slower" if loss.slower_s > 0 else "faster"
    share = abs(loss.slower_s) / subject.priced.step_s
    return f"is {abs(loss.slower_s):.3g} s ({share:.1%}) {more}"


def _too_large(subject: Subject, settings: tuple[str, ...], closest: Plan, best: Best) -> Against:
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
        plan=loss_of(closest, subject),
        rules=best.funnel.removed_by_rule,
        needed_bytes=needed,
        usable_bytes=usable,
        stage=memory.worst_stage,
    )


def _forbidden(subject: Subject, settings: tuple[str, ...], space: Space, best: Best) -> Against:
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


def _impossible(subject: Subject, space: Space, settings: tuple[str, ...]) -> str:
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
