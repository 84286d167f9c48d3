"""Why a plan: of an answer, of a priced or a bare plan, or of a file with any of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.inputs import settings_texts
from astra.api.saving import Saved
from astra.api.sources import PlanSource
from astra.api.words import in_python_words, python_words
from astra.cost.result import PricedPlan
from astra.errors import InputError, shorten
from astra.explain.explain import explain_plan
from astra.explain.result import ExplanationDocument
from astra.files import convert, read_json
from astra.report.document import AnswerDocument
from astra.report.explain import explanation_page
from astra.report.explanation_words import explanation_with_words
from astra.report.html import charts_html, page_html
from astra.report.request import read_request
from astra.report.words import search_words
from astra.strategy.outside_space import outside_space, own_space
from astra.strategy.plan import Plan
from astra.strategy.plan_file import plans_of_document
from astra.strategy.rule_messages import refused_plan
from astra.strategy.rules.registry import broken_rules
from astra.strategy.space import Space

if TYPE_CHECKING:
    from astra.money.price_sensitivity import Choice
    from astra.notes import Note
    from astra.search.query import Query


class Explanation(ExplanationDocument, Saved, frozen=True, kw_only=True):
    """All that is to say about one plan, in the words of the JSON.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> round(sum(priced.explain(quick=True).parts_s.values()) / priced.step_s, 6)
    1.0
    """

    def __repr__(self) -> str:
        return f"Explanation({explanation_page(self)[0]} {self.binding.sentence})"

    def _repr_html_(self) -> str:
        return page_html(explanation_page(self), python_words) + charts_html(self.to_dict())

    @in_python_words
    def plot(self, path: str | Path) -> Path:
        """Its charts, as .svg, .png or .html."""
        from astra.api.pictures import save_picture

        return save_picture(self, path)


def explain_answer(
    source: "PlanSource",
    against: str | Mapping[str, Any] | None = None,
    rank: int = 1,
    *,
    quick: bool = False,
    margin: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Explanation:
    """The plan of this rank in an answer or a file, checked against its runtime's rules."""
    if against is not None and not isinstance(against, str):
        against = " ".join(settings_texts(against, {}))
    plans, request, where = _plans_of(source)
    if not plans:
        raise InputError(f"{where}: the search found no plan, so there is none to explain.")
    if not 1 <= rank <= len(plans):
        count = "1 plan" if len(plans) == 1 else f"{len(plans)} plans"
        raise InputError(f"{where}: there is no rank {rank}; it holds {count}.")
    for plan in plans:
        broken = broken_rules(plan)
        if broken:
            raise refused_plan(plan, broken, where=f"{where}: ")
    query = read_request(request, plans[rank - 1], where) if request else None

    def tell(what: "Note") -> None:
        if say:
            say(search_words(what))

    explanation = explain_plan(
        plans, rank, against, asked=query, margin=margin, quick=quick, say=tell
    )
    outside = _outside(plans[rank - 1], query)
    explanation = msgspec.structs.replace(explanation, remarks=(*explanation.remarks, *outside))
    if query is not None and query.is_for_money:
        from astra.money.price_sensitivity import money_differences

        others = money_differences(_choices(source, "plans"), rank)
        explanation = msgspec.structs.replace(explanation, money=others)
    if not quick and query is not None and query.is_for_money:
        explanation = _with_prices(
            explanation, read_request(request, plans[0], where), source, tell
        )
    return Explanation(**msgspec.structs.asdict(explanation_with_words(explanation)))


def _outside(plan: Plan, query: "Query | None") -> "tuple[Note, ...]":
    """What of a plan the search that it is asked about does not hold."""
    space = own_space(plan)
    if query is not None:
        workload = replace(space.workload, use_all=query.use_all)
        space = Space(workload, dict(query.settings))
    return outside_space(plan, space)


def _plans_of(
    source: "PlanSource",
) -> tuple[list[Plan], Mapping[str, object], str]:
    """All plans of an answer or a file, what they were searched for, and the name of the place."""
    if isinstance(source, Plan):
        return [source], {}, "plan"
    if isinstance(source, AnswerDocument):
        request = msgspec.to_builtins(source.request)
        return [priced.plan for priced in source.plans], request, "answer"
    if isinstance(source, PricedPlan):
        return [source.plan], {}, "plan"
    if not isinstance(source, str | Path | Mapping):
        raise InputError(f"plan = {shorten(source)}: an answer, a plan or a file is needed.")
    document, where = _document(source)
    saved = document.get("request") if isinstance(document, dict) else None
    return plans_of_document(document, where), saved if isinstance(saved, dict) else {}, where


def _document(source: str | Path | Mapping[str, Any]) -> tuple[Any, str]:
    """What a file holds, or what was given of one; and the name of the place."""
    if isinstance(source, Mapping):
        return source, "plan"
    return read_json(Path(source)), str(Path(source))


def _with_prices(
    explanation: ExplanationDocument,
    query: "Query",
    source: "PlanSource",
    say: "Callable[[Note], None]",
) -> ExplanationDocument:
    from astra.explain.price_sensitivity import price_sensitivity

    mixed = [each for each in _choices(source, "frontier") if len(each.gpus) > 1]
    moves, notes = price_sensitivity(query, say, mixed)
    return msgspec.structs.replace(
        explanation, prices=moves, remarks=(*explanation.remarks, *notes)
    )


def _choices(source: "PlanSource", name: str) -> "list[Choice]":
    """Plans or frontier, in hours and dollars, out of an answer about money or its file."""
    from astra.money.price_sensitivity import Choice

    saved, where = None, "answer"  # type: Any, str
    if isinstance(source, AnswerDocument):
        saved = msgspec.to_builtins(getattr(source, name))
    elif isinstance(source, str | Path | Mapping):
        document, where = _document(source)
        saved = document.get(name) if isinstance(document, dict) else None
    return convert(saved or [], list[Choice], f"{where}: {name}")
