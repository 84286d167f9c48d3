"""Seconds of one layer for every distinct way to shard it, timed once and gathered."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from astra.columns import factorized
from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.model.layer_kinds import LayerKind, layer_kinds
from astra.model.shape import Model
from astra.strategy.parameters_per_gpu import padded_vocab
from astra.strategy.plans import WORDS, Floats, Ints, Task
from astra.strategy.recompute import MODULES
from astra.strategy.stage_view import StageView
from astra.timing.constants import timing_constants
from astra.timing.device import Device, SourceUse
from astra.timing.ledger import Collective
from astra.timing.operators import (
    LayerShape,
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
)
from astra.timing.traffic import (
    Traffic,
    context_collectives,
    context_traffic,
    exchanging_halves,
    expert_collectives,
    expert_traffic,
    tensor_collectives,
    tensor_traffic,
)

Rows = NDArray[np.int32]  # of a cache
Keyed = tuple[dict[str, NDArray[Any]], Ints]  # distinct shapes, and which of them each slot has

# What the seconds of a layer depend on, beside the model and the sequence length.
SHAPE_COLUMNS = (
    "gpu",
    "segment_micro_batch",
    "seq_len",
    "tp",
    "cp",
    "sequence_parallel",
    "segment_ep",
    "segment_etp",
    "capacity_factor",
    "precision",
    "fp8_recipe",
    "attention",
    "overlap_tp",
    "overlap_ep",
    "dispatcher",
    "cp_comm_type",
    "cuda_graph",
    "domain",
    "node",
)
# Words and switches that decide on a layer's kernels, and those that decide on what goes with them.
KERNEL_COLUMNS = ("gpu", "precision", "fp8_recipe", "attention", "dispatcher")
TRAFFIC_COLUMNS = ("overlap_tp", "overlap_ep", "cp_comm_type", "cuda_graph")

SHAPES_PER_BLOCK = 1 << 16  # enough that what is done once for them does not count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LayerTime:
    """Seconds of one layer and micro-batch. Traffic is what of it is exposed."""

    forward_s: Floats
    backward_s: Floats
    tensor_forward_s: Floats
    tensor_backward_s: Floats
    context_forward_s: Floats
    context_backward_s: Floats
    expert_forward_s: Floats
    expert_backward_s: Floats

    module_s: dict[str, Floats]  # forward seconds of what selective recompute can repeat

    @property
    def whole_forward_s(self) -> Floats:
        """Compute and traffic: what full recompute repeats."""
        traffic = self.tensor_forward_s + self.context_forward_s + self.expert_forward_s
        return self.forward_s + traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """All layer times of a table of plans. (pipeline, slot, plan) each."""

    kinds: tuple[LayerTime, ...]
    head: LayerTime
    embedding: LayerTime
    rows: Rows  # in the cache
    used: SourceUse


class LayerCache:
    """Layer times worked out so far, for the many tables of one model in one stack.

    Shapes come back table after table; each is timed once. `used` tells of all of them together.
    """

    def __init__(self) -> None:
        self.gpus: dict[Gpu, int] = {}
        self.rows: dict[tuple[Any, ...], int] = {}
        self.columns: dict[str, dict[str, Floats]] = {}
        self.used = SourceUse()

    def rows_of(self, table: dict[str, NDArray[Any]], task: Task, stack: Stack) -> Rows:
        """The rows of these shapes, timed now where they are new."""
        shared = table["tp"] > 1  # one rank has no sequence to share, and no traffic to hide
        table = table | {name: table[name] & shared for name in ("sequence_parallel", "overlap_tp")}
        known = [self.gpus.setdefault(p.gpu, len(self.gpus)) for p in task.cluster.pools]
        columns = table | {"gpu": np.array(known)[table["gpu"]]}  # pools of other clusters too
        keys = list(zip(*(_key_values(columns[name]) for name in SHAPE_COLUMNS), strict=True))
        new = {key: place for place, key in enumerate(keys) if key not in self.rows}
        if new:
            keyed = {name: table[name][list(new.values())] for name in SHAPE_COLUMNS}
            added = _layer_times(keyed, task, stack, self.used)
            self._append(added)
            for key in new:
                self.rows[key] = len(self.rows)
        return np.array([self.rows[key] for key in keys], np.int32)

    def _append(self, added: dict[str, dict[str, Floats]]) -> None:
        for part, columns in added.items():
            known = self.columns.get(part)
            self.columns[part] = (
                columns
                if known is None
                else {
                    name: np.concatenate([known[name], column]) for name, column in columns.items()
                }
            )


def _key_values(column: NDArray[Any]) -> list[Any]:
    """The values of a column as they stand in keys: what is not set equals itself."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f":
        values = [None if value != value else value for value in values]
    return values


class Work(NamedTuple):
    """Of one micro-batch, both ways, for rows of a cache. [s]"""

    total_s: Floats  # all layers and ends of the model
    layer_s: Floats  # its lightest layer
    head_s: Floats


def work_of(cache: LayerCache, model: Model, rows: Rows) -> Work:
    """What these rows of a cache say of the whole model."""

    def both_ways_s(name: str) -> Floats:
        columns = cache.columns[name]
        return sum((columns[part][rows] for part in PARTS), np.zeros(1))

    counts = layer_kinds(model).counts
    each = [both_ways_s(str(kind)) for kind in range(len(counts))]
    head = both_ways_s("head")
    layers = sum((count * own for count, own in zip(counts, each, strict=True)), np.zeros(1))
    return Work(layers + head + both_ways_s("embedding"), np.min(each, axis=0), head)


def cached_layer_rows(
    views: Iterable[StageView], stack: Stack, cache: LayerCache
) -> Iterator[Rows]:
    """For every slot of each view, of one task, its row in the cache. (pipeline, slot, plan)

    Views are looked at one by one, for they may be large. The shapes of many are timed together:
    that costs less.
    """
    keyed: list[Keyed] = []
    for view in views:
        keyed.append(_distinct(view))
        if sum(len(table["tp"]) for table, _ in keyed) > SHAPES_PER_BLOCK:
            yield from _joined_rows(keyed, view.task, stack, cache)
            keyed = []
    if keyed:
        yield from _joined_rows(keyed, view.task, stack, cache)


def _joined_rows(keyed: list[Keyed], task: Task, stack: Stack, cache: LayerCache) -> Iterator[Rows]:
    tables = [table for table, _ in keyed]
    joined = {name: np.concatenate([table[name] for table in tables]) for name in SHAPE_COLUMNS}
    rows = cache.rows_of(joined, task, stack)
    ends = np.cumsum([len(table["tp"]) for table in tables])[:-1]
    for own, (_, back) in zip(np.split(rows, ends), keyed, strict=True):
        yield own[back]


def work_s(views: Sequence[StageView], stack: Stack, cache: LayerCache | None = None) -> list[Work]:
    """Of each slot of every plan of these views, of one task. (pipeline, slot, plan)"""
    own = cache or LayerCache()
    each = list(cached_layer_rows(views, stack, own))
    return [work_of(own, view.task.model, rows) for view, rows in zip(views, each, strict=True)]


def layers_of(view: StageView, stack: Stack, cache: LayerCache | None = None) -> Layers:
    """Time each distinct way to shard a layer once, and hand every slot its own.

    A `cache` keeps what was worked out for the next table of the same task in the same stack.
    """
    own = cache or LayerCache()
    table, back = _distinct(view)
    rows = own.rows_of(table, view.task, stack)[back]
    kinds = layer_kinds(view.task.model).kinds

    def gathered(name: str) -> LayerTime:
        columns = {part: column[rows] for part, column in own.columns[name].items()}
        modules = {module: columns.pop(module) for module in MODULES}
        return LayerTime(**columns, module_s=modules)

    return Layers(
        kinds=tuple(gathered(str(row)) for row in range(len(kinds))),
        head=gathered("head"),
        embedding=gathered("embedding"),
        rows=rows,
        used=own.used,
    )


def _layer_times(
    table: dict[str, NDArray[Any]], task: Task, stack: Stack, used: SourceUse
) -> dict[str, dict[str, Floats]]:
    """Layer times of these shapes: of every kind of layer, of the head and of the embedding."""
    count = len(table["tp"])
    kinds = layer_kinds(task.model).kinds
    found = {name: _empty(count) for name in (*map(str, range(len(kinds))), "head", "embedding")}
    for rows, shape, device, words in _same_kernels(table, task, stack, used):
        fused, dispatcher = words["attention"] == "flash", str(words["dispatcher"])
        for row, kind in enumerate(kinds):
            kernels = layer_operators(task.model, kind, shape, device, fused, dispatcher)
            for part, more in _groups(table, rows, TRAFFIC_COLUMNS):
                at = np.searchsorted(rows, part)
                own = [operator.take(at) for operator in kernels]
                layer = _layer(task, kind, _shapes(table, part), device, words | more, own)
                _store(found[str(row)], part, layer)
        vocab = padded_vocab(task, shape.tp)
        _store(found["head"], rows, _ends(head_operators(task.model, shape, device, vocab)))
        _store(found["embedding"], rows, _ends(embedding_operators(task.model, shape, device)))
    return found


def _same_kernels(
    table: dict[str, NDArray[Any]], task: Task, stack: Stack, used: SourceUse
) -> Iterator[tuple[Ints, LayerShape, Device, dict[str, Any]]]:
    """Shapes of a table with the same kernels: which they are, the device, the words they share."""
    for rows, words in _groups(table, np.arange(len(table["tp"])), KERNEL_COLUMNS):
        gpu, precision = task.cluster.pools[words["gpu"]].gpu, words["precision"]
        recipe = words["fp8_recipe"] if precision == "fp8" else None
        device = Device(gpu, precision, used, stack.on(gpu, precision, recipe), recipe)
        yield rows, _shapes(table, rows), device, words


class LayerLedger(NamedTuple):
    """What the seconds of a layer, of the head or of the embedding are counted from."""

    operators: list[Operator]
    collectives: list[Collective]


def layer_ledgers(
    view: StageView, stack: Stack, pipeline: int, stage: int
) -> dict[str, LayerLedger]:
    """Of every kind of layer by its row, of the head and of the embedding, as a stage of the first
    plan shards them.
    """
    table, back = _distinct(view)
    slot = min(view.stages.plan_slot[pipeline, stage, 0], back.shape[1] - 1)
    one = {name: column[back[pipeline, slot, :1]] for name, column in table.items()}
    ((_, shape, device, words),) = _same_kernels(one, view.task, stack, SourceUse())
    ((_, more),) = _groups(one, np.arange(1), TRAFFIC_COLUMNS)
    model, element = view.task.model, device.element_bytes
    fused, dispatcher = words["attention"] == "flash", str(words["dispatcher"])
    found = {}
    for row, kind in enumerate(layer_kinds(model).kinds):
        sent = tensor_collectives(model, kind, shape, element, device.gathered_fraction)
        sent += context_collectives(model, shape, more["cp_comm_type"], element)
        if kind.mlp == "moe":
            sent += expert_collectives(model, shape, dispatcher, element)
        kernels = layer_operators(model, kind, shape, device, fused, dispatcher)
        found[str(row)] = LayerLedger(kernels, sent)
    vocab = padded_vocab(view.task, shape.tp)
    found["head"] = LayerLedger(head_operators(model, shape, device, vocab), [])
    found["embedding"] = LayerLedger(embedding_operators(model, shape, device), [])
    return found


PARTS = tuple(field.name for field in fields(LayerTime) if field.name != "module_s")


def _empty(count: int) -> dict[str, Floats]:
    return {name: np.zeros(count) for name in (*PARTS, *MODULES)}


def _store(into: dict[str, Floats], rows: Ints, layer: LayerTime) -> None:
    for name in PARTS:
        into[name][rows] = getattr(layer, name)
    for module, column in layer.module_s.items():
        into[module][rows] = column


def _distinct(view: StageView) -> Keyed:
    """The distinct shapes of a table, and for every slot its row among them."""
    plans = view.plans
    shape = plans.stages.shape
    if view.stages.equal_settings:  # one cut for all slots
        shape = (shape[0], 1, shape[2])
    codes = np.zeros(shape, np.int64)
    values: dict[str, NDArray[Any]] = {}
    places = {"domain": view.domain, "node": view.node}
    for name in SHAPE_COLUMNS:
        column = places[name] if name in places else getattr(plans, name)
        column = column[:, : shape[1]] if column.ndim == 3 else column
        if column.ndim == 1:  # of the whole plan: looked at once, not slot by slot
            known, index = factorized(column)
        else:
            known, index = factorized(np.broadcast_to(column, shape))
        values[name] = known
        codes = codes * len(known) + index
    distinct, back = factorized(codes)
    rest = distinct
    table: dict[str, NDArray[Any]] = {}
    for name in reversed(SHAPE_COLUMNS):
        rest, index = np.divmod(rest, len(values[name]))
        table[name] = values[name][index]
    return table, back


def _groups(
    table: dict[str, NDArray[Any]], rows: Ints, names: Sequence[str]
) -> Iterator[tuple[Ints, dict[str, Any]]]:
    """Of these shapes, those that share words and switches."""
    columns = np.stack([table[name][rows].astype(np.int64) for name in names])
    distinct, back = np.unique(columns, axis=1, return_inverse=True)
    for group in range(distinct.shape[1]):
        values = dict(zip(names, (int(value) for value in distinct[:, group]), strict=True))
        words = {
            name: (WORDS[name][value] if value >= 0 else None) if name in WORDS else value
            for name, value in values.items()
        }
        yield rows[back.reshape(-1) == group], words


def _shapes(table: dict[str, NDArray[Any]], rows: Ints) -> LayerShape:
    def column(name: str) -> Floats:
        return table[name][rows].astype(np.float64)

    capacity = column("capacity_factor")
    tp = column("tp")
    return LayerShape(
        micro_batch=column("segment_micro_batch"),
        seq_len=column("seq_len"),
        tp=tp,
        cp=column("cp"),
        sp=np.where(table["sequence_parallel"][rows], tp, 1.0),
        ep=column("segment_ep"),
        etp=column("segment_etp"),
        capacity=np.where(np.isnan(capacity), 1.0, capacity),
        domain=column("domain"),
        node=column("node"),
    )


def _layer(
    task: Task,
    kind: LayerKind,
    shape: LayerShape,
    device: Device,
    words: dict[str, Any],
    operators: list[Operator],
) -> LayerTime:
    model, dispatcher = task.model, str(words["dispatcher"])
    gpu, element = device.gpu, device.element_bytes
    core = next(op for op in operators if op.module == "core_attn")
    nothing = Traffic(forward_s=np.zeros_like(shape.tp), backward_s=np.zeros_like(shape.tp))
    hides, own = bool(words["overlap_tp"]), device.stack
    longer = own.communication_factor * _tensor_factor(own, shape)
    waits, share = own.tensor_waits, device.gathered_fraction
    tensor = tensor_traffic(
        model, kind, shape, gpu, operators, hides, element, waits, longer, share
    )
    if own.layers != "fused":
        tensor = _with_copies(tensor, model, kind, shape, device)
    ringed = own.communication_factor * own.context_factor
    context = context_traffic(model, shape, gpu, core, words["cp_comm_type"], element, ringed)
    expert = nothing
    if kind.mlp == "moe":
        hides = bool(words["overlap_ep"])
        routed = own.communication_factor * own.dispatch_factor
        expert = expert_traffic(model, shape, gpu, operators, dispatcher, hides, element, routed)
    local = (
        np.maximum(model.moe.experts / shape.ep, 1.0) if model.moe and kind.mlp == "moe" else 0.0
    )
    host_forward_s, host_backward_s = host_s(device, str(words["cuda_graph"]), local)
    sent = tensor.forward_s + context.forward_s + expert.forward_s
    returned = tensor.backward_s + context.backward_s + expert.backward_s
    forward = np.sum([op.forward_s for op in operators], axis=0)
    backward = np.sum([op.backward_s for op in operators], axis=0)
    return LayerTime(
        forward_s=np.maximum(forward, host_forward_s - sent),
        backward_s=np.maximum(backward, host_backward_s - returned),
        tensor_forward_s=tensor.forward_s,
        tensor_backward_s=tensor.backward_s,
        context_forward_s=context.forward_s,
        context_backward_s=context.backward_s,
        expert_forward_s=expert.forward_s,
        expert_backward_s=expert.backward_s,
        module_s=_modules_s(operators, shape, by_operator=task.runtime == "fsdp"),
    )


def _with_copies(
    tensor: Traffic, model: Model, kind: LayerKind, shape: LayerShape, device: Device
) -> Traffic:
    """PyTorch's collectives work along the first axis, and sequences lie along the second: what is
    gathered is put in order by a copy, what is to be scattered too (torch/distributed/
    _functional_collectives.py). One of each forward for attention and for the MLP, and backward one
    more that is gathered again.
    """
    halves = exchanging_halves(model, kind)
    copy_s = np.where(shape.sp > 1, device.memory_s(4.0 * shape.tokens * model.hidden), 0.0)
    gathered_s = copy_s * device.gathered_fraction
    return Traffic(
        forward_s=tensor.forward_s + halves * (copy_s + gathered_s),
        backward_s=tensor.backward_s + halves * (copy_s + 2 * gathered_s),
    )


def _tensor_factor(stack: Stack, shape: LayerShape) -> Floats:
    """What a stack adds to tensor-parallel traffic over links: starting and joining its kernels.

    Through the host an exchange takes milliseconds, whoever asks for it: boards differ there.
    """
    hosted = np.minimum(shape.domain, shape.tp) < np.minimum(shape.node, shape.tp)
    return np.where(hosted, 1.0, stack.tensor_factor)


def host_s(device: Device, graph: str, experts: Floats | float) -> tuple[Floats, Floats]:
    """Seconds the CPU needs to start a layer's kernels, forward and backward.

    With the traffic, a layer takes no less; what it waits for the CPU counts as compute. A graph
    starts the kernels of a layer at once, but routing to experts and theirs stay outside of it
    unless the whole iteration is one graph.
    """
    stack, local = device.stack, np.asarray(experts, np.float64)
    if graph == "full_iteration":
        return 0.0 * local, 0.0 * local
    kernels = timing_constants().expert_kernels.of(device.precision, device.recipe)
    layer = (stack.host_forward_s, stack.host_backward_s) if graph == "none" else (0.0, 0.0)
    forward, backward = (
        stack.host_factor
        * (own + (local > 0) * stack.host_experts_s + local * count * stack.host_expert_kernel_s)
        for own, count in zip(layer, kernels, strict=True)
    )
    return forward, backward


MODULE_PARTS = {"moe": ("moe", "moe_act", "shared_experts")}  # what a module holds


def _modules_s(
    operators: list[Operator], shape: LayerShape, by_operator: bool
) -> dict[str, Floats]:
    """Forward seconds of every module.

    torchtitan's `selective` (core_attn by our name) chooses by operator: attention is kept, every
    second matrix product and all else is recomputed.
    """
    found = {module: _module_s(operators, module, shape) for module in MODULES}
    if by_operator:
        recomputed = [op for op in operators if op.module != "core_attn"]
        shares = [op.forward_s * (0.5 if op.wgrad_s is not None else 1.0) for op in recomputed]
        found["core_attn"] = np.sum(shares, axis=0)
    return found


def _module_s(operators: list[Operator], module: str, shape: LayerShape) -> Floats:
    """Forward seconds of a module."""
    parts = MODULE_PARTS.get(module, (module,))
    return sum((op.forward_s for op in operators if op.module in parts), np.zeros_like(shape.tp))


def _ends(operators: list[Operator]) -> LayerTime:
    """Embedding or head: compute only."""
    forward = np.sum([op.forward_s for op in operators], axis=0)
    backward = np.sum([op.backward_s for op in operators], axis=0)
    parts = {name: np.zeros(forward.shape) for name in PARTS}
    parts |= {"forward_s": forward, "backward_s": backward}
    return LayerTime(**parts, module_s={})
