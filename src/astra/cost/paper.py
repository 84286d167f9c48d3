"""Plans by the pipeline formula of arXiv 2502.13480, beside what the simulator says of them."""

from collections.abc import Sequence

import msgspec
import numpy as np

from astra.cost.price import stage_parts
from astra.cost.result import PaperComparison, PricedPlan
from astra.cost.stages import times_of
from astra.cost.step import Step, simulated_step
from astra.hardware.stack import find_stack
from astra.notes import NoteCode, note
from astra.simulate.pipeline_columns import PipelineColumns
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, plans_of, task_of
from astra.strategy.stage_view import stage_view
from astra.timing.paper import paper_pipeline_s


def paper_end_s(pipes: PipelineColumns) -> Floats:
    """When each stage is through by the formula: all at once. (stage, plan)

    The first gather of parameters comes before; chunks of a stage count together.
    """
    rows = np.arange(pipes.forward_s.shape[1])[:, np.newaxis]
    used = rows >= len(rows) - pipes.stages
    stage_s = np.where(used, (pipes.forward_s + pipes.backward_s).sum(axis=0), 0.0)
    inner = used & (rows < len(rows) - 1)  # the last stage has no next one
    link_s = np.where(inner, pipes.forward_link_s + pipes.backward_link_s, 0.0)
    begin_s = np.where(used, pipes.first_gather_s.sum(axis=0), 0.0).max(axis=0)
    end_s = begin_s + paper_pipeline_s(stage_s, link_s, pipes.micro_batches)
    return np.where(used, end_s, 0.0)


def paper_step(plan: Plan) -> Step:
    """The step of one plan with the formula in the simulator's place."""
    table, stack = plans_of([plan]), find_stack(plan.stack)
    view = stage_view(table, task_of(plan), every_stage=True)
    return simulated_step(table, view.stages, times_of(view, stack), paper_end_s)


def by_paper(priced: PricedPlan) -> PricedPlan:
    """A priced plan with the formula's step; a note keeps the simulator's."""
    step = paper_step(priced.plan)
    step_s = float(step.step_s[0])
    ratio = step_s / priced.step_s
    said = note(NoteCode.PAPER_FORMULA, simulated_s=priced.step_s, excess_fraction=ratio - 1)
    return msgspec.structs.replace(
        priced,
        step_s=step_s,
        step_s_low=priced.step_s_low * ratio,
        step_s_high=priced.step_s_high * ratio,
        step_parts_s={name: float(part[0]) for name, part in step.parts_s.items()},
        parts_stage=int(step.parts_stage[0]),
        stage_parts_s=stage_parts(priced.memory.stages, 0, step),
        tokens_per_s=priced.tokens_per_s / ratio,
        tokens_per_s_per_gpu=priced.tokens_per_s_per_gpu / ratio,
        mfu_fraction=priced.mfu_fraction / ratio,
        notes=(*priced.notes, said),
    )


def compared(plans: Sequence[PricedPlan]) -> tuple[PaperComparison, ...]:
    """The plans of an answer by both."""
    found = []
    for priced in plans:
        paper_s = float(paper_step(priced.plan).step_s[0])
        found.append(
            PaperComparison(
                rank=priced.rank,
                summary=priced.summary,
                simulated_s=priced.step_s,
                paper_s=paper_s,
                error_fraction=paper_s / priced.step_s - 1,
            )
        )
    return tuple(found)
