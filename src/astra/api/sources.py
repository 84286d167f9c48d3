"""The plan that somebody named: itself, priced, in an answer or in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from astra.errors import InputError
from astra.values import whole_number

if TYPE_CHECKING:
    from astra.cost.result import PricedPlan
    from astra.report.document import AnswerDocument
    from astra.strategy.plan import Plan

PlanSource: TypeAlias = "str | Path | Mapping[str, Any] | Plan | PricedPlan | AnswerDocument"


def checked_plan(source: "PlanSource", rank: int = 1) -> "Plan":
    """A plan that its runtime's rules allow; of an answer or a file that of this rank."""
    from astra.strategy.rule_messages import refused_plan
    from astra.strategy.rules.registry import broken_rules

    found = _plan_of(source, whole_number(rank, "--rank"))
    broken = broken_rules(found)
    if broken:
        where = str(source) if isinstance(source, str | Path) else "plan"
        raise refused_plan(found, broken, where=f"{where}: ")
    return found


def _plan_of(source: "PlanSource", rank: int) -> "Plan":
    from astra.cost.result import PricedPlan
    from astra.report.document import AnswerDocument
    from astra.strategy.plan import Plan
    from astra.strategy.plan_file import plans_of_document, read_plan

    if isinstance(source, Plan):
        return source
    if isinstance(source, PricedPlan):
        return source.plan
    if isinstance(source, AnswerDocument):
        if rank > len(source.plans):
            count = "1 plan" if len(source.plans) == 1 else f"{len(source.plans) or 'no'} plans"
            raise InputError(f"answer: there is no rank {rank}; it holds {count}.")
        return source.plans[rank - 1].plan
    if isinstance(source, Mapping):
        return plans_of_document(source, "plan", rank)[0]
    return read_plan(source, rank)
