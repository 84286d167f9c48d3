"""The plan that is explained, priced and in detail; the question it answers; others beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from astra.cost.price import price_plan
from astra.cost.result import PricedPlan
from astra.explain.plan_detail import PlanDetail, detail_of
from astra.explain.result import PlanDifference
from astra.hardware.stack import find_stack
from astra.notes import Note
from astra.search.objectives import OBJECTIVES
from astra.search.query import Query
from astra.strategy.enumerate import usual_settings
from astra.strategy.plan import Plan
from astra.strategy.space import DIMENSION_BY_NAME

Say = Callable[[Note], None]  # hears what is being worked on
# Of what was asked.
KEPT = ("use_all", "settings", "set_words", "user_rules", "margin", "risk", "notes")
GOAL = ("objective", "money")  # kept where plans are ordered by a measure of their own


@dataclass(frozen=True, kw_only=True)
class ExplainedPlan:
    """The plan in question."""

    plan: Plan
    query: Query  # of which this plan is an answer
    is_best: bool  # it was found by a search for the same
    say: Say = field(repr=False)

    @cached_property
    def priced(self) -> PricedPlan:
        return price_plan(self.plan, margin=self.query.margin)

    @cached_property
    def detail(self) -> PlanDetail:
        return detail_of(self.plan)

    @cached_property
    def measure(self) -> float | None:
        return self.measure_of(self.plan)

    def measure_of(self, plan: Plan) -> float | None:
        """What a step of a plan takes of what plans are ordered by; None: that is the step."""
        measure = OBJECTIVES[self.query.objective].measure
        priced = measure and measure.filled(price_plan(plan), self.query.money)
        return measure.of(priced) if measure and priced else None

    def narrowed(self, chosen: Mapping[str, tuple[Any, ...]]) -> Query:
        """Its question with further settings."""
        return replace(self.query, settings={**self.query.settings, **chosen})

    def beside(self, plan: Plan, rank: int = 0) -> PlanDifference:
        """Another plan, part by part beside this one."""
        detail = detail_of(plan)
        step_s, parts_s = float(detail.step.step_s[0]), self.detail.parts_s
        measure = self.measure_of(plan)
        ratio = measure / self.measure if measure and self.measure else step_s / self.priced.step_s
        return PlanDifference(
            rank=rank,
            summary=plan.summary(),
            gpus=plan.gpus,
            step_s=step_s,
            slower_s=step_s - self.priced.step_s,
            measure=measure,
            more_fraction=ratio - 1,
            parts_s={name: part - parts_s[name] for name, part in detail.parts_s.items()},
            parts_stage=detail.stage,
            other_place=detail.stage_kind != self.detail.stage_kind,
            busiest_gpu=detail.gpu,
            stages=detail.pipeline.stages,
        )


def query_of_plan(plan: Plan, asked: Query | None, margin: float | None) -> Query:
    """The best plan for the same job on the same machines and by the same runtime.

    Of the question that was asked it keeps what narrowed it (settings, rules, the margin and
    `--use-all`) and a measure of its plans; not its other goals nor its other runtimes.
    """
    names = (*KEPT, *(GOAL if asked and OBJECTIVES[asked.objective].measure else ()))
    kept: dict[str, Any] = {"risk": "normal"}
    if asked:
        kept = {name: getattr(asked, name) for name in names}
    query = Query(
        model=plan.model,
        cluster=plan.cluster,
        stack=find_stack(plan.stack),
        global_batch=plan.global_batch,
        seq_len=plan.seq_len,
        runtimes=(plan.runtime,),
        precision=plan.precision,
        mtp_layers=plan.mtp_layers,
        top=1,
        fold=False,
        suggest=False,
        **kept,
    )
    settings = {**_asked_settings(plan, usual_settings(query.space.workload)), **query.settings}
    margin = query.margin if margin is None else margin
    return replace(query, settings=settings, margin=margin)


def _asked_settings(plan: Plan, usual: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """What is never searched and was asked for in this plan: it stays."""
    first, second = plan.moment_dtypes
    own = msgspec.structs.asdict(plan)
    own |= {"first_moment_dtype": first, "second_moment_dtype": second}
    names = [name for name in usual if DIMENSION_BY_NAME[name].how == "asked"]
    return {name: (own[name],) for name in names if own[name] not in (None, usual[name])}
