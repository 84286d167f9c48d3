"""An explanation with its sentences: what binds, why not another plan, what would change."""

from msgspec.structs import replace

from astra.explain.result import Alternative, Binding, ExplanationDocument, PlanDifference, WhatIf
from astra.notes import NoteCode
from astra.report.words import GIB, all_words, words
from astra.search.objectives import OBJECTIVES


def explanation_with_words(explanation: ExplanationDocument) -> ExplanationDocument:
    """All of it, from codes and numbers."""
    binding, against = explanation.binding, explanation.against
    sentence = f"{_binding(explanation)}{_memory(binding)}"
    return replace(
        explanation,
        binding=replace(binding, sentence=sentence),
        best=_difference(explanation.best),
        next_plans=tuple(map(_difference, explanation.next_plans)),
        against=against and _alternative(against, explanation),
        changes=tuple(map(_change, explanation.changes)),
        notes=all_words(explanation.remarks),
    )


def _change(change: WhatIf) -> WhatIf:
    plan, note = change.plan, change.change
    return replace(
        change,
        what=words(note),
        plan=_difference(plan),
        key=str(note.code),
        factor=note.facts.get("factor"),
        step_s=None if plan is None else plan.step_s,
        delta_s=None if plan is None else plan.slower_s,
    )


def _difference(plan: PlanDifference | None) -> PlanDifference | None:
    return plan and replace(plan, busiest=_busiest(plan))


def _busiest(plan: PlanDifference) -> str:
    if plan.stages == 1:
        return f"its one stage, on {plan.busiest_gpu}"
    first, last = plan.parts_stage == 0, plan.parts_stage == plan.stages - 1
    ends = ", the first" if first else ", the last" if last else ""
    return f"stage {plan.parts_stage} of {plan.stages} on {plan.busiest_gpu}{ends}"


def _binding(explanation: ExplanationDocument) -> str:
    """The binding constraint with its number."""
    binding, what = explanation.binding, explanation.binding.constraint
    cost = f"{binding.cost_s[what] / explanation.step_s:.0%}"
    share, measure = f"{cost} of the step", OBJECTIVES[explanation.objective].measure
    saved = f"{cost} of the {measure.noun}" if measure else share
    if what == "plan":
        better = next(
            c.plan for c in explanation.changes if c.change.code is NoteCode.AS_IS and c.plan
        )
        return f"The plan itself binds: {better.summary} would save {saved}"
    if what == "memory":
        return f"Memory binds: {_memory_cost(explanation, share, saved)}"
    if what in ("network", "link"):
        assert binding.traffic is not None
        kind = binding.traffic.removesuffix("_comm")
        most = f"{kind}-parallel {explanation.parts_s[binding.traffic] / explanation.step_s:.0%}"
        where = "The network" if what == "network" else "The link between GPUs"
        return f"{where} binds: its traffic that shows is {share} ({most})"
    if what == "batch":
        return (
            f"The batch binds: {binding.micro_batches} micro-batches per replica are few for "
            f"{binding.stages} stages, so waiting is {share}"
        )
    if what == "bubble":
        return f"Waiting between stages binds: the bubble is {share}"
    return f"Compute binds: kernels are {share}"


def _memory_cost(explanation: ExplanationDocument, share: str, saved: str) -> str:
    if not explanation.binding.fits:
        return "the plan does not fit"
    if not explanation.binding.fits_ram:
        return "what the plan offloads does not fit the RAM of its nodes"
    if explanation.parts_s["recompute"] >= explanation.binding.cost_s["memory"]:
        return f"what is computed again to save it is {share}"
    return f"a quarter more of it would save {saved}"


def _memory(binding: Binding) -> str:
    """How full the fullest GPU is."""
    need, have = binding.needed_bytes / GIB, binding.usable_bytes / GIB
    return (
        f"; the fullest stage, {binding.fullest_stage}, needs {need:.1f} of {have:.1f} GiB, "
        f"{binding.filled_fraction:.0%} of what a plan may take."
    )


def _alternative(other: Alternative, explained: ExplanationDocument) -> Alternative:
    return replace(
        other,
        plan=_difference(other.plan),
        nearest=_difference(other.nearest),
        sentence=_outcome(other, explained),
    )


def _outcome(other: Alternative, explained: ExplanationDocument) -> str:
    settings, plan, why = " ".join(other.settings), other.plan, other.why
    if other.outcome == "time":
        assert plan is not None
        name = f"Plan {plan.rank}" if plan.rank else f"The best plan with {settings}"
        return f"{name} {_slower(plan, explained)}."
    assert why is not None
    if other.outcome == "memory":
        assert plan is not None and other.needed_bytes and other.usable_bytes
        if why.code is NoteCode.RAM_TOO_SMALL:
            return f"No plan with {settings} fits: of the closest ({plan.summary}), {words(why)}."
        over = other.needed_bytes - other.usable_bytes
        return (
            f"No plan with {settings} fits: the closest ({plan.summary}) needs "
            f"{other.needed_bytes / GIB:.1f} GiB on stage {other.stage}, "
            f"{other.usable_bytes / GIB:.1f} GiB are usable, {over / GIB:.1f} GiB too much."
        )
    if other.outcome == "none":
        return f"There is no plan with {settings}: {words(why)}"
    return f"Rules forbid every plan with {settings}: {words(why)}."


def _slower(plan: PlanDifference, explained: ExplanationDocument) -> str:
    measure, share = OBJECTIVES[explained.objective].measure, abs(plan.more_fraction)
    if share < 1e-9:
        return f"takes as much {measure.noun}" if measure else "is as fast"
    if measure:
        return f"takes {share:.1%} {'more' if plan.more_fraction > 0 else 'less'} {measure.noun}"
    more = "slower" if plan.slower_s > 0 else "faster"
    return f"is {abs(plan.slower_s):.3g} s ({share:.1%}) {more}"
