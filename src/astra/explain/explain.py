"""Why a plan is as fast as it is, what others lose, and what would change it."""

from collections.abc import Sequence

from astra.cost.result import MixedStage, PricedPlan
from astra.cost.stages import stage_summaries
from astra.explain.binding import binding
from astra.explain.compare import alternative, settings_in
from astra.explain.explained_plan import ExplainedPlan, Say, difference, explained_plan
from astra.explain.ledger import exchanges_of
from astra.explain.result import Alternative, Explanation
from astra.explain.what_if import repriced, searched
from astra.hardware.stack import find_stack
from astra.notes import Note, NoteCode, note
from astra.search.query import Query
from astra.strategy.plan import Plan

MAX_NEXT_PLANS = 20  # behind the explained one that are looked at


def explain_plan(
    plans: Sequence[Plan],
    rank: int = 1,
    against: str | None = None,
    *,
    asked: Query | None = None,
    margin: float | None = None,
    quick: bool = False,
    say: Say = lambda _: None,
) -> Explanation:
    """The plan of this rank among `plans`, best first.

    `asked` is the question that they were found for, where it is known. `against` are settings as
    people write them, `tp=4 pp=8`. `quick` leaves out what has to be searched for; `say` hears
    what is being worked on.
    """
    explained = explained_plan(plans[rank - 1], asked, margin, say)
    other = None if against is None else _against(plans, explained, against)
    behind = enumerate(plans[rank : rank + MAX_NEXT_PLANS], rank + 1)
    later = [difference(plan, explained, place) for place, plan in behind]
    changes = repriced(explained) + ([] if quick else searched(explained))
    exchanges = exchanges_of(explained.detail)
    return Explanation(
        rank=rank,
        summary=explained.priced.summary,
        model=explained.plan.model.name,
        gpus=explained.priced.gpus,
        step_s=explained.priced.step_s,
        parts_pipeline=explained.detail.pipeline,
        parts_stage=explained.detail.stage,
        parts_s=explained.parts_s,
        binding=binding(explained, changes, exchanges),
        best=difference(plans[0], explained, 1) if rank > 1 else None,
        next_plans=tuple(later),
        against=other,
        changes=tuple(changes),
        exchanges=exchanges,
        stages=_stages(explained.priced),
        remarks=_notes(explained, quick and against is None),
    )


def _against(plans: Sequence[Plan], explained: ExplainedPlan, against: str) -> Alternative:
    """A plan of the file by its name, or the best one with these settings."""
    for place, plan in enumerate(plans, 1):
        if plan.summary() == " ".join(against.split()):
            other = difference(plan, explained, place)
            return Alternative(settings=(against,), outcome="time", plan=other)
    return alternative(explained, settings_in(against))


def _stages(priced: PricedPlan) -> tuple[MixedStage, ...]:
    """Over several GPU types, who does what."""
    plan = priced.plan
    if len(plan.gpus) == 1 and len(plan.pipelines) == 1:
        return ()
    return stage_summaries(priced, find_stack(plan.stack))


def _notes(explained: ExplainedPlan, unsearched: bool) -> tuple[Note, ...]:
    """What a person should know about the plan and about the searches."""
    query = explained.query
    known = [each for each in explained.priced.notes if each.code is NoteCode.RAM_TOO_SMALL]
    known += [each for each in query.notes if each.code is NoteCode.RULES_GONE]
    if query.set_words and not unsearched:
        known.append(note(NoteCode.SEARCHED_AS_NARROWLY, settings=list(query.set_words)))
    return tuple(known)
