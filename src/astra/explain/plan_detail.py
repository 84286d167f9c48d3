"""One plan in detail: its busiest stage, and the seconds of that by kind of work."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from astra.cost.step import Step, simulated_step
from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack, find_stack
from astra.model.layer_kinds import layer_kinds
from astra.strategy.parameters_per_gpu import padded_vocab
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.device import Device
from astra.timing.layer import layer_shape
from astra.timing.operators import (
    LayerShape,
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
)
from astra.timing.stage import stage_times

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
    def pipeline(self) -> int:
        return int(self.step.parts_pipeline[0])

    @property
    def stage(self) -> int:
        return int(self.step.parts_stage[0])

    @property
    def last(self) -> bool:
        return self.stage == self.plan.pipelines[self.pipeline].stages - 1

    @property
    def slot(self) -> int:
        return int(self.view.stages.plan_slot[self.pipeline, self.stage, 0])

    def segment_setting(self, column: str) -> int:
        """A setting of the stage's segment."""
        return int(getattr(self.view.plans, column)[self.pipeline, self.slot, 0])

    def at(self, column: ArrayLike, stage: int | None = None) -> Any:
        """What a (pipeline, stage, plan) column holds of it, or of another stage beside it."""
        place = (self.pipeline, self.stage if stage is None else stage, 0)
        return np.broadcast_to(column, self.view.stages.plan_slot.shape)[place]

    @cached_property
    def gpu(self) -> Gpu:
        return self.plan.cluster.pools[self.segment_setting("gpu")].gpu

    @cached_property
    def micro_batches(self) -> int:
        return self.plan.pipelines[self.pipeline].micro_batches

    @cached_property
    def layers(self) -> dict[int, int]:
        """Layers of each kind; multi-token prediction adds to the last one."""
        held = self.view.stages.kind_layers[:, self.pipeline, self.stage, 0]
        found = {row: int(count) for row, count in enumerate(held)}
        if self.last and self.plan.model.mtp_layers:
            found[layer_kinds(self.plan.model).of_layer[-1]] += self.plan.mtp_layers
        return found

    @cached_property
    def layer_shape(self) -> tuple[LayerShape, Device]:
        """How the stage cuts a layer, and what runs it."""
        return layer_shape(self.view, self.stack, self.pipeline, self.slot)


def detail_of(plan: Plan) -> PlanDetail:
    """The plan through the simulator, stage by stage."""
    table, stack = plans_of([plan]), find_stack(plan.stack)
    view = stage_view(table, task_of(plan), every_stage=True)
    step = simulated_step(table, view.stages, stage_times(view, stack))
    return PlanDetail(plan=plan, stack=stack, view=view, step=step)


def parts_s(detail: PlanDetail) -> dict[str, float]:
    """Seconds of the busiest stage: kernels by class, and all other parts; they sum to the step."""
    parts = {name: float(part[0]) for name, part in detail.step.parts_s.items()}
    kernels = parts.pop("forward") + parts.pop("backward")
    classes = _classes_s(detail)
    classes["launch"] = max(kernels - sum(classes.values()), 0.0)
    return {**{name: classes.get(name, 0.0) for name in CLASSES}, **parts}


def _classes_s(detail: PlanDetail) -> dict[str, float]:
    """Kernels of one step as the stack runs them; what is missing, they wait for the CPU."""
    plan, model = detail.plan, detail.plan.model
    shape, device = detail.layer_shape
    fused, dispatcher = plan.attention == "flash", str(plan.dispatcher)
    work: list[tuple[int, Operator]] = []
    for row, kind in enumerate(layer_kinds(model).kinds):
        operators = layer_operators(model, kind, shape, device, fused, dispatcher)
        work += [(detail.layers[row], operator) for operator in operators]
    if detail.last:
        rows = padded_vocab(detail.view.task, shape.tp)
        work += [(1 + plan.mtp_layers, op) for op in head_operators(model, shape, device, rows)]
    if detail.stage == 0:
        work += [(1, op) for op in embedding_operators(model, shape, device)]
    found: dict[str, float] = {}
    scale = detail.micro_batches
    for count, operator in work:
        seconds = float(operator.forward_s[0] + operator.backward_s[0])
        name = _class(operator)
        found[name] = found.get(name, 0.0) + count * seconds * scale
    return found


def _class(operator: Operator) -> str:
    other = "elementwise" if operator.wgrad_s is None else "matrix_products"
    return CLASS_OF_MODULE.get(operator.module, other)
