"""Why not the best plan with other settings."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from astra.errors import InputError
from astra.search.again import Again, check_narrowing, search_again
from astra.search.explained import Against, Loss, Subject, loss_of
from astra.search.host import too_small_ram
from astra.search.price import price
from astra.strategy.complete import PlanSettings, complete, fp8_recipe
from astra.strategy.plan import Plan
from astra.strategy.plans import task_of
from astra.strategy.rule_messages import rule_message as rule_in_words
from astra.strategy.rules.registry import broken_rules, rules_for
from astra.strategy.space import DIMENSION_BY_NAME, Question, Space, parse_set

# How a plan is told, and the setting it means.
TOLD = {
    r"\b(tp|pp|dp|vpp|cp|ep|etp|mb|recompute) (?=\S)": r"\1=",
    r"\bsharded (\w+)": r"sharding=\1",
    r"\bin groups of (\d+)": r"shard_group=\1",
    r"\bgroup (?=\d)": "microbatch_group=",
    r"\bep-overlap\b": "overlap_ep=true",
    r"\boffload optimizer\b": "offload_optimizer=1",
    r"\boffload ([\d.]+) optimizer\b": r"offload_optimizer=\1",
}
WISHES = tuple(PlanSettings.__dataclass_fields__)
GIB = 2**30


def settings_in(text: str) -> tuple[str, ...]:
    """`tp=4 pp=8`, or a plan as tables name it, as settings, checked as --set checks them.

    >>> settings_in("tp 4 pp 3 mb 1 sharded parameters ep-overlap offload optimizer")
    ('tp=4', 'pp=3', 'mb=1', 'sharding=parameters', 'overlap_ep=true', 'offload_optimizer=1')
    >>> settings_in("tp 4 pp 3 vpp 2 group 4")
    ('tp=4', 'pp=3', 'vpp=2', 'microbatch_group=4')
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
    plain["dispatcher"] = "alltoall" if plan.model.moe else None
    plain["fp8_recipe"] = fp8_recipe(plan.cluster) if plan.precision == "fp8" else None
    own = {"first_moment_dtype": first, "second_moment_dtype": second}
    found: dict[str, tuple[Any, ...]] = {}
    for name, dimension in DIMENSION_BY_NAME.items():
        value = own.get(name) or getattr(plan, name, None)
        if dimension.how == "asked" and value is not None and value != plain[name]:
            found[name] = (value,)
    return found


def against_of(subject: Subject, settings: tuple[str, ...]) -> Against:
    """The best plan with these settings: what rules it out, or what it loses."""
    said = " ".join(settings)
    space = space_of(subject, settings)
    check_narrowing(space, settings)
    subject.say(f"the best plan with {said}")
    best = search_again(subject, space)
    if best.plan is not None:
        return compared_with(best.plan, subject, settings, f"The best plan with {said}")
    if best.closest is not None:
        return _too_large(subject, settings, best.closest, best)
    return _forbidden(subject, settings, space, best)


def compared_with(
    plan: Plan, subject: Subject, settings: tuple[str, ...], name: str, rank: int = 0
) -> Against:
    """A plan that runs, beside the explained one."""
    loss = loss_of(plan, subject, rank)
    text = f"{name} {_slower(loss, subject)}."
    return Against(settings=settings, outcome="time", sentence=text, plan=loss)


def _slower(loss: Loss, subject: Subject) -> str:
    if abs(loss.slower_s) < 1e-9 * subject.priced.step_s:
        return "is as fast"
    more = "slower" if loss.slower_s > 0 else "faster"
    share = abs(loss.slower_s) / subject.priced.step_s
    return f"is {abs(loss.slower_s):.3g} s ({share:.1%}) {more}"


def _too_large(subject: Subject, settings: tuple[str, ...], closest: Plan, best: Again) -> Against:
    if best.host is not None:
        return _ram_too_small(subject, settings, closest, best)
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
        rules=best.removed_by_rule,
        needed_bytes=needed,
        usable_bytes=usable,
        stage=memory.worst_stage,
    )


def _ram_too_small(
    subject: Subject, settings: tuple[str, ...], closest: Plan, best: Again
) -> Against:
    """The GPUs hold such a plan; what it offloads is too much for the RAM of a node."""
    assert best.host is not None
    needed, usable = best.host
    return Against(
        settings=settings,
        outcome="memory",
        sentence=(
            f"No plan with {' '.join(settings)} fits: of the closest ({closest.summary()}), "
            f"{too_small_ram(needed, usable)}."
        ),
        plan=loss_of(closest, subject),
        rules=best.removed_by_rule,
        needed_bytes=needed,
        usable_bytes=usable,
    )


def _forbidden(subject: Subject, settings: tuple[str, ...], space: Space, best: Again) -> Against:
    """Rules that remove all such plans, or why there is none to begin with."""
    said, removed = " ".join(settings), best.removed_by_rule
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
    wish = PlanSettings(**{"global_batch": plan.global_batch, "seq_len": plan.seq_len, **said})
    try:
        settled = complete(wish, plan.model, plan.cluster, plan.runtime, plan.stack).plan
    except InputError as error:
        return str(error)
    broken = broken_rules(settled)
    if broken:
        return f"{rule_in_words(settled, broken[0])}."
    values = [f"{name} {', '.join(map(str, space.values(name) or ()))}" for name in chosen]
    return f"the degrees divide neither the batch nor the GPUs ({'; '.join(values)})."
