"""Why a plan is as fast as it is, what others lose, and what would change it."""

from collections.abc import Sequence

from astra.cost.stages import stage_summaries
from astra.explain.binding import binding
from astra.explain.compare import alternative
from astra.explain.explained_plan import ExplainedPlan, Say, query_of_plan
from astra.explain.ledger import exchanges_of
from astra.explain.result import ExplanationDocument
from astra.explain.what_if import repriced, searched
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
) -> ExplanationDocument:
    """The plan of this rank among `plans`, best first.

    `asked` is the question that they were found for, where it is known. `against` are settings as
    people write them, `tp=4 pp=8`. `quick` leaves out what has to be searched for; `say` hears
    what is being worked on.
    """
    plan = plans[rank - 1]
    query = query_of_plan(plan, asked, margin)
    is_best = asked is not None and asked.objective == query.objective
    explained = ExplainedPlan(plan=plan, query=query, is_best=is_best, say=say)
    priced, detail = explained.priced, explained.detail
    other = None if against is None else alternative(plans, explained, against)
    behind = enumerate(plans[rank : rank + MAX_NEXT_PLANS], rank + 1)
    changes = repriced(explained) + ([] if quick else searched(explained))
    exchanges = exchanges_of(detail)
    over_types = len(plan.gpus) > 1 or len(plan.pipelines) > 1
    return ExplanationDocument(
        rank=rank,
        summary=priced.summary,
        model=plan.model.name,
        gpus=priced.gpus,
        step_s=priced.step_s,
        objective=query.objective,
        measure=explained.measure,
        parts_pipeline=detail.place[0],
        parts_stage=detail.stage,
        parts_s=detail.parts_s,
        binding=binding(explained, changes, exchanges),
        best=explained.beside(plans[0], 1) if rank > 1 else None,
        next_plans=tuple(explained.beside(each, place) for place, each in behind),
        against=other,
        changes=tuple(changes),
        exchanges=exchanges,
        stages=stage_summaries(priced, detail.stack) if over_types else (),
        remarks=_notes(explained, quick and against is None),
    )


def _notes(explained: ExplainedPlan, unsearched: bool) -> tuple[Note, ...]:
    """What a person should know about the plan and about the searches."""
    query = explained.query
    known = [each for each in explained.priced.notes if each.code is NoteCode.RAM_TOO_SMALL]
    known += [each for each in query.notes if each.code is NoteCode.RULES_GONE]
    if query.set_words and not unsearched:
        known.append(note(NoteCode.SEARCHED_AS_NARROWLY, settings=list(query.set_words)))
    return tuple(known)
