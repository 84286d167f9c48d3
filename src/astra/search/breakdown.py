"""One plan in detail: seconds of its busiest stage by kind of work, and what its groups exchange.

Bytes are those that the seconds are counted from: payload of every exchange, and how often a
step has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack, find_stack
from astra.model.kinds import layer_kinds
from astra.search.step import Step, simulated_step
from astra.strategy.held import padded_vocab
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.view import View, view_of
from astra.timing import ledger as timed
from astra.timing.data_parallel import data_parallel_collectives
from astra.timing.device import Device
from astra.timing.layer import layer_collectives, layer_shape
from astra.timing.operators import (
    LayerShape,
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
)
from astra.timing.stage import stage_times
from astra.timing.stage_work import StageSends, arrival_gather, stage_sends, tied_sends

CLASSES = ("matrix_products", "attention", "elementwise", "experts", "head", "launch")
EXPERT_MODULES = ("moe", "moe_act", "shared_experts")
SENT: dict[
    str, Callable[[int], float]
] = {  # what one of n ranks sends of a payload, by a ring or directly
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "send": lambda _: 1.0,
}


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of traffic of one GPU of the busiest stage."""

    group: str  # tp, cp, ep, etp, pp, dp, edp (replicas of an expert) or make (of other makes)
    operation: str
    what: str
    ranks: int  # of the group
    payload_bytes: float  # the whole tensor of one exchange
    count: float  # exchanges in a step
    total_bytes: float  # payload x count
    sent_bytes: float  # what one GPU sends of it in a step
    crosses_nodes: bool
    over: str  # link: inside a link domain or node; network: over NICs


@dataclass(frozen=True, kw_only=True)
class Detail:
    """One plan at its busiest stage."""

    plan: Plan
    stack: Stack
    view: View
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
        return int(self.view.stages.slot[self.pipeline, self.stage, 0])

    def own(self, column: str) -> int:
        """A setting of the stage's segment."""
        return int(getattr(self.view.plans, column)[self.pipeline, self.slot, 0])

    def at(self, column: ArrayLike, stage: int | None = None) -> Any:
        """What a (pipeline, stage, plan) column holds of it, or of another stage beside it."""
        place = (self.pipeline, self.stage if stage is None else stage, 0)
        return np.broadcast_to(column, self.view.stages.slot.shape)[place]

    @cached_property
    def gpu(self) -> Gpu:
        return self.plan.cluster.pools[self.own("gpu")].gpu

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
    def shares(self) -> tuple[int, int]:
        """GPUs of the job in each link domain, and in each node."""
        at = (self.pipeline, self.slot, 0)
        return int(self.view.domain[at]), int(self.view.node[at])

    @cached_property
    def cut(self) -> tuple[LayerShape, Device]:
        """How the stage cuts a layer, and what runs it."""
        return layer_shape(self.view, self.stack, self.pipeline, self.slot)


def detail_of(plan: Plan) -> Detail:
    """The plan through the simulator, stage by stage."""
    table, stack = plans_of([plan]), find_stack(plan.stack)
    view = view_of(table, task_of(plan), every_stage=True)
    step = simulated_step(table, view.stages, stage_times(view, stack))
    return Detail(plan=plan, stack=stack, view=view, step=step)


# ------------------------------------------------------------------ seconds


def parts_s(detail: Detail) -> dict[str, float]:
    """Seconds of the busiest stage: kernels by class, and all other parts; they sum to the step."""
    parts = {name: float(part[0]) for name, part in detail.step.parts_s.items()}
    kernels = parts.pop("forward") + parts.pop("backward")
    classes = _classes_s(detail)
    classes["launch"] = max(kernels - sum(classes.values()), 0.0)
    return {**{name: classes.get(name, 0.0) for name in CLASSES}, **parts}


def _classes_s(detail: Detail) -> dict[str, float]:
    """Kernels of one step as the stack runs them; what is missing, they wait for the CPU."""
    plan, model = detail.plan, detail.plan.model
    keys, device = detail.cut
    fused, dispatcher = plan.attention == "flash", str(plan.dispatcher)
    work: list[tuple[int, Operator]] = []
    for row, kind in enumerate(layer_kinds(model).kinds):
        operators = layer_operators(model, kind, keys, device, fused, dispatcher)
        work += [(detail.layers[row], operator) for operator in operators]
    if detail.last:
        rows = padded_vocab(detail.view.task, keys.tp)
        work += [(1 + plan.mtp_layers, op) for op in head_operators(model, keys, device, rows)]
    if detail.stage == 0:
        work += [(1, op) for op in embedding_operators(model, keys, device)]
    found: dict[str, float] = {}
    scale = detail.micro_batches
    for count, operator in work:
        seconds = float(operator.forward_s[0] + operator.backward_s[0])
        name = _class(operator)
        found[name] = found.get(name, 0.0) + count * seconds * scale
    return found


def _class(operator: Operator) -> str:
    if operator.module == "core_attn":
        return "attention"
    if operator.module in EXPERT_MODULES:
        return "experts"
    if operator.module == "head":
        return "head"
    return "elementwise" if operator.wgrad_s is None else "matrix_products"


# ------------------------------------------------------------------ bytes


def exchanges(detail: Detail) -> tuple[Exchange, ...]:
    """All traffic of one GPU of the busiest stage in one step, as its seconds are counted."""
    found = [*_layers(detail), *_pipeline(detail), *_copies(detail)]
    return tuple(exchange for exchange in found if exchange.ranks > 1 and exchange.count > 0)


def _exchange(detail: Detail, each: timed.Collective, count: float) -> Exchange:
    group = each.group
    ranks, domain, node = (int(detail.at(c)) for c in (group.ranks, group.domain, group.node))
    payload, sent = float(detail.at(each.payload_bytes)), SENT[each.operation](ranks)
    return Exchange(
        group=group.name,
        operation=each.operation,
        what=each.what,
        ranks=ranks,
        payload_bytes=payload,
        count=count,
        total_bytes=payload * count,
        sent_bytes=payload * count * sent,
        crosses_nodes=node < ranks,
        over="link" if max(domain, node) >= ranks else "network",
    )


def _layers(detail: Detail) -> list[Exchange]:
    """Of all layers; those that are recomputed whole run forward twice. What layers of several
    kinds exchange alike is told once.
    """
    plan, (keys, device) = detail.plan, detail.cut
    forward = 1 + float(detail.at(detail.view.recomputed[0]))
    found: dict[tuple[str, str, str], Exchange] = {}
    for row, kind in enumerate(layer_kinds(plan.model).kinds):
        layers = detail.micro_batches * detail.layers[row]
        for each in layer_collectives(
            plan.model, kind, keys, device, plan.cp_comm_type, str(plan.dispatcher)
        ):
            count = layers * np.asarray(forward * each.forward + each.backward).item()
            known = found.get((each.group.name, each.operation, each.what))
            one = _exchange(detail, each, count + (known.count if known else 0))
            found[one.group, one.operation, one.what] = one
    return list(found.values())


def _pipeline(detail: Detail) -> list[Exchange]:
    """Activations to the next stage and gradients to the one before, chunk by chunk."""
    plan, view, stack = detail.plan, detail.view, detail.stack
    stages, first = plan.pipelines[detail.pipeline].stages, detail.stage == 0
    if stages == 1:
        return []
    sends, tied = stage_sends(view, stack), tied_sends(view, stack)
    before = (detail.stage - 1) % stages
    down = detail.micro_batches * (plan.vpp - detail.last)
    back = detail.micro_batches * (plan.vpp - first)
    found = [
        _send(detail, sends, detail.stage, "activations to the next stage", down),
        _send(detail, sends, before, "gradients to the stage before", back),
        _send(detail, tied, detail.stage, "tied embedding gradients", 1),
        _exchange(detail, arrival_gather(view, stack), down + back),
    ]
    return [exchange for exchange in found if exchange.payload_bytes]


def _send(detail: Detail, sends: StageSends, stage: int, what: str, count: int) -> Exchange:
    """Over the link that leads on from a stage: from this one, or from the one before it."""
    ends = (detail.view.stages.of(detail.view.plans.gpu), sends.there)
    here, there = (detail.plan.cluster.pools[int(detail.at(end, stage))].gpu for end in ends)
    payload = float(detail.at(sends.payload_bytes, stage))
    return Exchange(
        group="pp",
        operation="send",
        what=what,
        ranks=detail.plan.pipelines[detail.pipeline].stages,
        payload_bytes=payload,
        count=count,
        total_bytes=payload * count,
        sent_bytes=payload * count,
        crosses_nodes=here != there or not detail.at(sends.node, stage),
        over="link" if here == there and detail.at(sends.near, stage) else "network",
    )


def _copies(detail: Detail) -> list[Exchange]:
    """Gradients and parameters among the copies of dense weights, and of experts."""
    found = []
    for each in data_parallel_collectives(detail.view, detail.stack):
        forward, backward, once = (detail.at(c) for c in (each.forward, each.backward, each.once))
        count = detail.micro_batches * float(forward + backward) + float(once)
        found.append(_exchange(detail, each, count))
    return found
