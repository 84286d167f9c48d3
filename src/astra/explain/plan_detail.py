"""One plan in detail: its busiest stage, and the seconds of that by kind of work."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from astra.cost.stages import times_of
from astra.cost.step import Step, simulated_step
from astra.hardware.stack import Stack, find_stack
from astra.strategy.plan import Pipeline, Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.layer import LayerLedger, layer_ledgers
from astra.timing.stage_work import layer_counts

CLASSES = ("matrix_products", "attention", "elementwise", "experts", "head", "launch")
CLASS_OF_MODULE = {"core_attn": "attention", "head": "head"} | dict.fromkeys(
    ("moe", "moe_act", "shared_experts"), "experts"
)


@dataclass(frozen=True, kw_only=True)
class PlanDetail:
    """One plan at its busiest stage."""

    plan: Plan
    stack: Stack
    view: StageView
    step: Step

    @property
    def place(self) -> tuple[int, int]:
        """Pipeline and stage."""
        return int(self.step.parts_pipeline[0]), int(self.step.parts_stage[0])

    @property
    def stage(self) -> int:
        return self.place[1]

    @property
    def pipeline(self) -> Pipeline:
        return self.plan.pipelines[self.place[0]]

    @property
    def gpu(self) -> str:
        return self.pipeline.segment_at(self.stage).gpu

    @property
    def last(self) -> bool:
        return self.stage == self.pipeline.stages - 1

    @property
    def stage_kind(self) -> tuple[bool, bool, str]:
        """What its place in the pipeline gives the stage to do: embedding, head, and its GPU."""
        return self.stage == 0, self.last, self.gpu

    def at(self, column: ArrayLike, stage: int | None = None) -> Any:
        """What a (pipeline, stage, plan) column holds of it, or of another stage beside it."""
        place = (self.place[0], self.stage if stage is None else stage, 0)
        return np.broadcast_to(column, self.view.stages.plan_slot.shape)[place]

    @cached_property
    def ledgers(self) -> list[tuple[int, LayerLedger]]:
        """Every kind of layer, the head and the embedding: how many of each the stage runs, and
        what their seconds are counted from.
        """
        counts, found = layer_counts(self.view), layer_ledgers(self.view, self.stack, *self.place)
        return [(int(self.at(counts[name])), ledger) for name, ledger in found.items()]

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Seconds of the stage: kernels by class, and all other parts; they sum to the step.

        Kernels are told as the stack runs them; what is missing, they wait for the CPU.
        """
        parts = {name: float(part[0]) for name, part in self.step.parts_s.items()}
        kernels = parts.pop("forward") + parts.pop("backward")
        classes: dict[str, float] = {}
        for count, ledger in self.ledgers:
            for operator in ledger.operators:
                other = "elementwise" if operator.wgrad_s is None else "matrix_products"
                name = CLASS_OF_MODULE.get(operator.module, other)
                seconds = float(operator.forward_s[0] + operator.backward_s[0])
                done = count * seconds * self.pipeline.micro_batches
                classes[name] = classes.get(name, 0.0) + done
        classes["launch"] = max(kernels - sum(classes.values()), 0.0)
        return {**{name: classes.get(name, 0.0) for name in CLASSES}, **parts}


def detail_of(plan: Plan) -> PlanDetail:
    """The plan through the simulator, stage by stage."""
    table, stack = plans_of([plan]), find_stack(plan.stack)
    view = stage_view(table, task_of(plan), every_stage=True)
    step = simulated_step(table, view.stages, times_of(view, stack))
    return PlanDetail(plan=plan, stack=stack, view=view, step=step)
