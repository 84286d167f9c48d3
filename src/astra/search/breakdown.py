"""One plan in detail: seconds of its busiest stage by kind of work, and what its groups exchange.

Bytes are those that the seconds are counted from: payload of every exchange, and how often a
step has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack, find_stack
from astra.hardware.topology import ranks_per_domain
from astra.model.kinds import layer_kinds
from astra.search.step import Step, simulated_step
from astra.strategy.makes import copies_of, makes
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, plans_of, task_of
from astra.strategy.view import View, view_of
from astra.timing.device import Device, Used
from astra.timing.facts import facts
from astra.timing.operators import (
    Keys,
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
)
from astra.timing.stage import stage_times

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
    between_s: Floats  # gradients between makes, (pipeline, stage, plan)

    @property
    def across_s(self) -> float:
        return float(self.between_s[self.pipeline, self.stage, 0])

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
    def element_bytes(self) -> float:
        return 4.0 if self.plan.precision == "fp32" else 2.0

    @cached_property
    def tokens(self) -> float:
        """Of one micro-batch on one GPU, before sequence parallelism shares them."""
        return self.own("segment_micro_batch") * self.plan.seq_len / self.plan.cp


def detail_of(plan: Plan) -> Detail:
    """The plan through the simulator, stage by stage."""
    table, stack = plans_of([plan]), find_stack(plan.stack)
    view = view_of(table, task_of(plan), every_stage=True)
    times = stage_times(view, stack)
    step = simulated_step(table, view.stages, times)
    between = np.broadcast_to(times.across_s(), view.stages.slot.shape)
    return Detail(plan=plan, stack=stack, view=view, step=step, between_s=between)


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
    own = detail.stack.on(detail.gpu, plan.precision, plan.fp8_recipe)
    keys = _keys(detail)
    recipe = plan.fp8_recipe if plan.precision == "fp8" else None
    device = Device(detail.gpu, plan.precision, Used(), own, recipe)
    fused, dispatcher = plan.attention == "flash", str(plan.dispatcher)
    work: list[tuple[int, Operator]] = []
    for row, kind in enumerate(layer_kinds(model).kinds):
        operators = layer_operators(model, kind, keys, device, fused, dispatcher)
        work += [(detail.layers[row], operator) for operator in operators]
    if detail.last:
        work += [(1 + plan.mtp_layers, op) for op in head_operators(model, keys, device)]
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


def _keys(detail: Detail) -> Keys:
    plan, tp = detail.plan, detail.own("tp")
    domain, node = detail.shares

    def column(value: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.array([float(value)])

    return Keys(
        micro_batch=column(detail.own("segment_micro_batch")),
        seq_len=column(plan.seq_len),
        tp=column(tp),
        cp=column(plan.cp),
        sp=column(tp if plan.sequence_parallel else 1),
        ep=column(detail.own("segment_ep")),
        etp=column(detail.own("segment_etp")),
        capacity=column(plan.capacity_factor or 1.0),
        domain=column(domain),
        node=column(node),
    )


# ------------------------------------------------------------------ bytes


@dataclass(frozen=True, slots=True)
class _Group:
    """One kind of group: its ranks and the distance between neighbours."""

    name: str
    ranks: int
    stride: int


def exchanges(detail: Detail) -> tuple[Exchange, ...]:
    """All traffic of one GPU of the busiest stage in one step."""
    found = [*_tensor(detail), *_context(detail), *_experts(detail)]
    found += [*_pipeline(detail), *_data(detail)]
    return tuple(exchange for exchange in found if exchange.ranks > 1 and exchange.count > 0)


def _exchange(
    detail: Detail, group: _Group, operation: str, what: str, payload: float, count: float
) -> Exchange:
    domain, node = detail.shares
    ranks = max(group.ranks, 1)
    in_node = int(ranks_per_domain(ranks, group.stride, node)) == ranks
    in_domain = int(ranks_per_domain(ranks, group.stride, domain)) == ranks
    return Exchange(
        group=group.name,
        operation=operation,
        what=what,
        ranks=ranks,
        payload_bytes=payload,
        count=count,
        total_bytes=payload * count,
        sent_bytes=payload * count * SENT[operation](ranks),
        crosses_nodes=not in_node,
        over="link" if in_node or in_domain else "network",
    )


def _passes(detail: Detail, layers: float) -> tuple[float, float]:
    """Layers that run forward in a step, recomputed ones twice, and backward."""
    fraction = float(detail.view.recomputed[0][detail.pipeline, _run(detail), 0])
    total = detail.micro_batches * layers
    return total * (1 + fraction), total


def _run(detail: Detail) -> int:
    """The row of the stage in a column that may have one row for all stages."""
    rows = detail.view.recomputed[0].shape[1]
    return min(detail.stage, rows - 1)


def _tensor(detail: Detail) -> list[Exchange]:
    """Around attention and MLP of every layer (Korthikanti et al. 2022, section 4.2.2).

    With sequence parallelism, forward two gathers and two scatters; backward the saved inputs
    are gathered once more. Without, two all-reduces in either pass.
    """
    group = _Group("tp", detail.own("tp"), 1)
    forward, backward = _passes(detail, sum(detail.layers.values()))
    payload = detail.tokens * detail.plan.model.hidden * detail.element_bytes
    what = "activations of a layer"
    if not detail.plan.sequence_parallel:
        return [_exchange(detail, group, "all-reduce", what, payload, 2 * (forward + backward))]
    return [
        _exchange(detail, group, "all-gather", what, payload, 2 * forward + 4 * backward),
        _exchange(detail, group, "reduce-scatter", what, payload, 2 * (forward + backward)),
    ]


def _context(detail: Detail) -> list[Exchange]:
    """Keys and values: around a ring, gathered, or exchanged for heads."""
    plan, model, tp = detail.plan, detail.plan.model, detail.own("tp")
    group = _Group("cp", plan.cp, tp)
    forward, backward = _passes(detail, sum(detail.layers.values()))
    if model.mla is not None:
        queries = model.heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim) / tp
        cut = queries
    else:
        cut = model.kv_heads * model.head_dim / min(tp, model.kv_heads)
        queries = model.heads * model.head_dim / tp
    block = 2 * detail.tokens * cut * detail.element_bytes
    what = "keys and values"
    if plan.cp_comm_type == "p2p":
        hops = (plan.cp - 1) * (forward + 2 * backward)
        return [_exchange(detail, group, "send", what, block, hops)]
    if plan.cp_comm_type == "allgather":
        whole = block * plan.cp
        return [
            _exchange(detail, group, "all-gather", what, whole, forward + backward),
            _exchange(detail, group, "reduce-scatter", f"gradients of {what}", whole, backward),
        ]
    moved = detail.tokens * (2 * queries + 2 * cut) * detail.element_bytes
    return [_exchange(detail, group, "all-to-all", "heads", moved, forward + backward)]


def _experts(detail: Detail) -> list[Exchange]:
    """Tokens to their experts and back, in either pass."""
    plan, moe = detail.plan, detail.plan.model.moe
    if moe is None:
        return []
    kinds = layer_kinds(plan.model).kinds
    routed = sum(count for row, count in detail.layers.items() if kinds[row].mlp == "moe")
    passes = sum(_passes(detail, routed))
    ep, etp, tp = (detail.own(name) for name in ("segment_ep", "segment_etp", "tp"))
    arriving = detail.tokens / (tp if plan.sequence_parallel else 1)
    one = arriving * plan.model.hidden * detail.element_bytes
    sent = one * moe.top_k * (plan.capacity_factor or 1.0)
    both = _Group("ep", ep * etp, 1)
    if plan.dispatcher == "allgather":
        return [
            _exchange(detail, both, operation, "tokens", one * ep * etp, passes)
            for operation in ("all-gather", "reduce-scatter")
        ]
    if plan.dispatcher in ("deepep", "hybridep"):
        near = int(ranks_per_domain(ep, etp, detail.shares[0]))
        sent *= _sent_once(ep / near if ep > near else ep, moe.top_k)
    inner = _Group("etp", etp, 1)
    return [
        _exchange(detail, _Group("ep", ep, etp), "all-to-all", "tokens", sent, 2 * passes),
        _exchange(detail, inner, "all-gather", "tokens", sent * etp, passes),
        _exchange(detail, inner, "reduce-scatter", "tokens", sent * etp, passes),
    ]


def _sent_once(places: float, top_k: int) -> float:
    """A token goes to a place once, however many of its experts are there."""
    return places * (1 - (1 - 1 / places) ** top_k) / top_k


def _pipeline(detail: Detail) -> list[Exchange]:
    """Activations to the next stage and gradients to the one before, chunk by chunk."""
    plan, tp = detail.plan, detail.own("tp")
    stages = plan.pipelines[detail.pipeline].stages
    if stages == 1:
        return []
    neighbours = _Group("pp", 2, tp * plan.cp * detail.own("dp"))
    payload = detail.tokens * plan.model.hidden * detail.element_bytes
    cut = plan.sequence_parallel or detail.stack.name in facts().sends.shared
    payload /= tp if cut else 1
    down = detail.micro_batches * (plan.vpp - detail.last)
    back = detail.micro_batches * (plan.vpp - (detail.stage == 0))
    found = [
        _exchange(detail, neighbours, "send", "activations to the next stage", payload, down),
        _exchange(detail, neighbours, "send", "gradients to the stage before", payload, back),
    ]
    if plan.model.tied_embeddings and (detail.last or detail.stage == 0):
        wide = 4.0 if plan.grad_reduce_dtype == "fp32" else 2.0
        tied = plan.model.vocab * plan.model.hidden / tp * wide
        found.append(_exchange(detail, neighbours, "send", "tied embedding gradients", tied, 1))
    types = [s.gpu for s in plan.pipelines[detail.pipeline].segments for _ in range(s.stages)]
    to = [types[(detail.stage + 1) % stages], types[detail.stage - 1], types[0]]
    return [
        msgspec.structs.replace(
            exchange,
            ranks=stages,
            crosses_nodes=exchange.crosses_nodes or there != detail.gpu.name,
            over="network" if there != detail.gpu.name else exchange.over,
        )
        for exchange, there in zip(found, to, strict=False)
    ]


def _data(detail: Detail) -> list[Exchange]:
    """Gradients and parameters among the copies of dense weights, and of experts."""
    plan, tp, copied = detail.plan, detail.own("tp"), copies_of(detail.view.plans)
    dp = int(copied[detail.pipeline, detail.slot, 0])
    at = (detail.pipeline, min(detail.stage, detail.view.held.dense.shape[1] - 1), 0)
    copies = dp * plan.cp
    groups = [(_Group("dp", copies, tp), float(detail.view.held.dense[at]))]
    if plan.model.moe is not None:
        cut = detail.own("segment_ep") * detail.own("segment_etp")
        experts = _Group("edp", max(tp * copies // cut, 1), cut)
        groups.append((experts, float(detail.view.held.experts[at])))
    found: list[Exchange] = []
    for group, parameters in groups:
        first = int(copied[0, 0, 0]) * plan.cp  # whose copies `shard_group` counts
        shards = max(int(group.ranks * plan.shard_group / max(first, 1)), 1)
        found += _synchronised(detail, group, shards, parameters)
        found += _between_makes(detail, parameters / group.ranks)
    return found


def _between_makes(detail: Detail, parameters: float) -> list[Exchange]:
    """Pieces of the gradients that one GPU is left with, summed over makes cut differently."""
    ranks = int(makes(detail.view.plans)[0])
    if not detail.across_s:
        return []
    piece = parameters * (4.0 if detail.plan.grad_reduce_dtype == "fp32" else 2.0)
    return [
        Exchange(
            group="make",
            operation="all-reduce",
            what="gradients of other makes",
            ranks=ranks,
            payload_bytes=piece,
            count=1,
            total_bytes=piece,
            sent_bytes=piece * SENT["all-reduce"](ranks),
            crosses_nodes=True,
            over="network",
        )
    ]


def _synchronised(detail: Detail, group: _Group, shards: int, parameters: float) -> list[Exchange]:
    """Once a step; with sharded parameters in every micro-batch, gathered in either pass."""
    plan = detail.plan
    gradients = parameters * (4.0 if plan.grad_reduce_dtype == "fp32" else 2.0)
    if plan.sharding == "none":
        return [_exchange(detail, group, "all-reduce", "gradients", gradients, 1)]
    often = detail.micro_batches if plan.sharding == "parameters" else 1
    gathers = often * (2 if plan.sharding == "parameters" else 1)
    inside = _Group(group.name, shards, group.stride)
    across = _Group(group.name, max(group.ranks // shards, 1), group.stride * shards)
    return [
        _exchange(detail, inside, "reduce-scatter", "gradients", gradients, often),
        _exchange(detail, across, "all-reduce", "gradients", gradients / shards, often),
        _exchange(detail, inside, "all-gather", "parameters", parameters * 2.0, gathers),
    ]
