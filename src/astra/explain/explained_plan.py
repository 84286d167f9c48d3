"""The plan that is explained, priced and in detail; the question it answers; others beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from astra.cost.price import MARGIN, price_plan
from astra.cost.result import PricedPlan
from astra.explain.plan_detail import PlanDetail, detail_of, parts_s
from astra.explain.result import PlanDifference
from astra.hardware.stack import find_stack
from astra.notes import Note
from astra.search.query import Query
from astra.strategy.complete import fp8_recipe
from astra.strategy.plan import Plan
from astra.strategy.space import DIMENSION_BY_NAME, parse_set

Say = Callable[[Note], None]  # hears what is being worked on


@dataclass(frozen=True, kw_only=True)
class ExplainedPlan:
    """The plan in question."""

    plan: Plan
    priced: PricedPlan
    detail: PlanDetail
    parts_s: dict[str, float]
    query: Query  # of which this plan is an answer
    is_best: bool  # it was found by a search for the fastest
    say: Say = field(repr=False)

    def narrowed(self, settings: Sequence[str]) -> Query:
        """Its question with further settings, `tp=4`."""
        chosen = {**self.query.settings, **parse_set(tuple(settings))}
        return replace(self.query, settings=chosen)


def explained_plan(
    plan: Plan, asked: Query | None, margin: float | None, say: Say
) -> ExplainedPlan:
    """`asked`: the question that a search found the plan for, where it is known."""
    query = fastest_plan_query(plan, asked, margin)
    detail = detail_of(plan)
    return ExplainedPlan(
        plan=plan,
        priced=price_plan(plan, margin=query.margin),
        detail=detail,
        parts_s=parts_s(detail),
        query=query,
        is_best=asked is not None and asked.objective == "time",
        say=say,
    )


def fastest_plan_query(plan: Plan, asked: Query | None, margin: float | None) -> Query:
    """The fastest plan for the same job on the same machines and by the same runtime.

    Of the question that was asked it keeps what narrowed it: settings, rules, the margin and
    `--use-all`; not its goal, its money nor its other runtimes.
    """
    known = MARGIN if asked is None else asked.margin
    return Query(
        model=plan.model,
        cluster=plan.cluster,
        stack=find_stack(plan.stack),
        global_batch=plan.global_batch,
        seq_len=plan.seq_len,
        runtimes=(plan.runtime,),
        precision=plan.precision,
        mtp_layers=plan.mtp_layers,
        use_all=asked is not None and asked.use_all,
        settings={**_asked_settings(plan), **(asked.settings if asked else {})},
        set_words=asked.set_words if asked else (),
        user_rules=asked.user_rules if asked else (),
        margin=known if margin is None else margin,
        top=1,
        fold=False,
        suggest=False,
        notes=asked.notes if asked else (),
    )


def _asked_settings(plan: Plan) -> dict[str, tuple[Any, ...]]:
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


def difference(plan: Plan, explained: ExplainedPlan, rank: int = 0) -> PlanDifference:
    """Another plan, part by part beside the explained one."""
    detail = detail_of(plan)
    step_s, parts = float(detail.step.step_s[0]), parts_s(detail)
    return PlanDifference(
        rank=rank,
        summary=plan.summary(),
        gpus=plan.gpus,
        step_s=step_s,
        slower_s=step_s - explained.priced.step_s,
        parts_s={name: parts[name] - explained.parts_s[name] for name in parts},
        parts_stage=detail.stage,
        other_place=_place(detail) != _place(explained.detail),
        busiest_gpu=detail.gpu.name,
        stages=plan.pipelines[detail.pipeline].stages,
    )


def _place(detail: PlanDetail) -> tuple[bool, bool, str]:
    """What its place in the pipeline gives a stage to do: embedding, head, and its GPU."""
    return detail.stage == 0, detail.last, detail.gpu.name
