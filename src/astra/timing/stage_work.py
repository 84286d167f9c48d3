"""What a stage takes before recompute and offload."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.model.layer_kinds import layer_kinds
from astra.strategy.offload import offloaded_values
from astra.strategy.parameters_per_gpu import padded_vocab
from astra.strategy.plans import Flags, Floats, Ints
from astra.strategy.recompute import MODULES
from astra.strategy.replica_groups import replicas_of_segment
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView
from astra.timing.collectives import p2p_s
from astra.timing.constants import timing_constants
from astra.timing.data_parallel import DataParallelTime, data_parallel_time, slots_by_gpu
from astra.timing.layer import PARTS, Layers
from astra.timing.layer_offload import over_host_link_s
from astra.timing.ledger import Collective, RankGroup


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageWork:
    """Seconds of one stage of each slot and one micro-batch. (pipeline, slot, plan)

    Traffic counts as far as it is exposed. What goes between stages and replicas is worked out when
    asked for.
    """

    view: StageView
    stack: Stack
    forward_s: Floats  # compute
    backward_s: Floats
    tensor_forward_s: Floats
    tensor_backward_s: Floats
    context_forward_s: Floats
    context_backward_s: Floats
    expert_forward_s: Floats
    expert_backward_s: Floats
    head_forward_s: Floats  # part of `forward_s`: lies on the last chunk
    head_backward_s: Floats
    embedding_forward_s: Floats  # part of `forward_s`: lies on the first chunk
    embedding_backward_s: Floats
    layers_forward_s: Floats  # layers and their traffic: what full recompute repeats
    module_s: dict[str, Floats]  # what selective recompute of a module repeats
    offload_forward_s: Floats  # activations to the host, as far as compute does not hide them
    offload_backward_s: Floats  # and back

    @cached_property
    def data_parallel(self) -> DataParallelTime:
        """Traffic between replicas, and the optimizer's step."""
        return data_parallel_time(self.view, self.stack)

    @cached_property
    def _both_link_s(self) -> tuple[Floats, Floats]:
        return link_seconds(self.view, self.stack)

    @property
    def link_s(self) -> Floats:
        """To the next stage, one way."""
        return self._both_link_s[0]

    @property
    def blocking_send_s(self) -> Floats:
        """Part of `link_s`: neither stage works meanwhile."""
        return self._both_link_s[1]

    @cached_property
    def tied_s(self) -> Floats:
        """Per step: gradients of tied embeddings between the ends of the pipeline."""
        return tied_seconds(self.view, self.stack)


def summed_work(view: StageView, layers: Layers, stack: Stack) -> StageWork:
    """Layers of every kind and the ends, summed over each stage."""
    shape = view.stages.count.shape
    sums = {name: np.zeros(shape) for name in (*PARTS, *MODULES)}
    for row, kind in enumerate(layers.kinds):
        count = _kind_layers(row, view)
        for name in PARTS:
            sums[name] += count * view.stages.of(getattr(kind, name))
        for name, column in kind.module_s.items():
            sums[name] += count * view.stages.of(column)
    modules = {name: sums.pop(name) for name in MODULES}
    downward = [name for name in PARTS if name.endswith("forward_s")]
    layers_forward = np.sum([sums[name] for name in downward], axis=0)
    ends = _ends(view, layers)
    sums["forward_s"] = sums["forward_s"] + ends["head_forward_s"] + ends["embedding_forward_s"]
    sums["backward_s"] = sums["backward_s"] + ends["head_backward_s"] + ends["embedding_backward_s"]
    moved = _offload_s(view)
    return StageWork(
        view=view,
        stack=stack,
        **sums,
        **ends,
        layers_forward_s=layers_forward,
        module_s=modules,
        offload_forward_s=np.maximum(moved - sums["forward_s"], 0.0),
        offload_backward_s=np.maximum(moved - sums["backward_s"], 0.0),
    )


def _kind_layers(row: int, view: StageView) -> Floats:
    """Layers of a kind in one stage; multi-token prediction adds to the last one."""
    layers = view.stages.kind_layers[row].astype(np.float64)
    if view.task.model.mtp_layers and row == layer_kinds(view.task.model).of_layer[-1]:
        return layers + np.where(view.stages.head, view.plans.mtp_layers, 0)
    return layers


def layer_counts(view: StageView) -> dict[str, Floats | Ints]:
    """What a stage runs of all that `layer_ledgers` names."""
    heads, starts = _end_counts(view)
    kinds = range(len(layer_kinds(view.task.model).kinds))
    layers = {str(row): _kind_layers(row, view) for row in kinds}
    return {**layers, "head": heads, "embedding": starts}


def _end_counts(view: StageView) -> tuple[Ints, Ints]:
    """Heads and embeddings where they lie; multi-token prediction runs the head once more each."""
    stages = view.stages
    return np.where(stages.head, 1 + view.plans.mtp_layers, 0), np.where(stages.embedding, 1, 0)


def _ends(view: StageView, layers: Layers) -> dict[str, Floats]:
    stages, (heads, starts) = view.stages, _end_counts(view)
    return {
        "head_forward_s": heads * stages.of(layers.head.forward_s),
        "head_backward_s": heads * stages.of(layers.head.backward_s),
        "embedding_forward_s": starts * stages.of(layers.embedding.forward_s),
        "embedding_backward_s": starts * stages.of(layers.embedding.backward_s),
    }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StageSends:
    """What one GPU of a stage sends to its partner in another one. (pipeline, slot, plan)"""

    payload_bytes: Floats
    there: Ints  # pool of the partner
    node: Flags  # all partners on one GPU type share a node
    near: Flags  # or a link domain


def tied_sends(view: StageView, stack: Stack) -> StageSends:
    """First and last stage exchange the gradients of an embedding they both hold; else no bytes."""
    plans, stages, model = view.plans, view.stages, view.task.model
    ends = (stages.embedding | stages.head) & (plans.pp[:, np.newaxis] > 1)
    wide = np.where(is_word(plans, "grad_reduce_dtype", "fp32"), 4.0, 2.0)
    wide = np.where(is_word(plans, "precision", "fp32"), wide, stack.tied_bytes or wide)
    tp, width = stages.of(plans.tp), model.embedding_dim or model.hidden
    payload = padded_vocab(view.task, tp) * width / tp * wide
    pools = np.broadcast_to(stages.of(plans.gpu), ends.shape)
    first, last = (
        np.where(end, pools, 0).sum(axis=1, keepdims=True)
        for end in (stages.embedding, stages.head)
    )
    domain, node = stages.of(view.domain), stages.of(view.node)
    return StageSends(
        payload_bytes=np.where(ends & model.tied_embeddings, payload, 0.0),
        there=np.where(stages.embedding, last, first),
        node=plans.gpus <= node,
        near=plans.gpus <= np.maximum(domain, node),
    )


def tied_seconds(view: StageView, stack: Stack) -> Floats:
    """What such an exchange takes. [s]"""
    if not view.task.model.tied_embeddings:
        return np.zeros(view.stages.count.shape)
    sends = tied_sends(view, stack)
    return np.where(sends.payload_bytes > 0, _sent_s(view, stack, sends), 0.0)


def _sent_s(view: StageView, stack: Stack, sends: StageSends) -> Floats:
    """Between two GPU types they cross the slower of two NICs. [s]"""
    found, payload = np.zeros(view.stages.count.shape), sends.payload_bytes
    senders = view.stages.of(view.plans.tp * view.plans.cp * replicas_of_segment(view.plans))
    for gpu, here in slots_by_gpu(view):
        factor = _send_factor(stack, gpu)
        found = np.where(here, p2p_s(payload, sends.near, gpu, senders=senders) * factor, found)
        for row, pool in enumerate(view.task.cluster.pools):
            leaves = here & (sends.there == row)
            if pool.gpu != gpu and leaves.any():
                seconds = p2p_s(payload, False, gpu, pool.gpu, senders) * factor
                found = np.where(leaves, seconds, found)
    return found


def _send_factor(stack: Stack, gpu: Gpu) -> float:
    here = stack.on(gpu)
    return here.communication_factor * here.pipeline_factor


def _offload_s(view: StageView) -> Floats:
    """Offloaded activations of one micro-batch over PCIe, one way. [s]"""
    total = np.zeros(view.stages.count.shape)
    if not view.plans.offload_activations.any():
        return total
    element = np.where(is_word(view.plans, "precision", "fp32"), 4.0, 2.0)
    for row, kind in enumerate(layer_kinds(view.task.model).kinds):
        total += _kind_layers(row, view) * offloaded_values(view, kind) * element
    return over_host_link_s(view, total)


def stage_sends(view: StageView, stack: Stack) -> StageSends:
    """Activations of a chunk to the next stage, and their gradients back.

    Where stages are sharded differently, the GPU with the larger part sets the pace.
    """
    plans, stages = view.plans, view.stages
    payload = _activation_bytes(view) / _senders_share(view, stack)
    following = stages.of(plans.gpu)
    if not stages.equal_settings:
        leaves = stages.count == 1
        payload = np.where(leaves, np.maximum(payload, _next(view, payload)), payload)
        following = np.where(leaves, _next(view, following), following)
    domain, node = stages.of(view.domain), stages.of(view.node)
    near = _beside_next(view, np.maximum(domain, node))
    return StageSends(payload, following, _beside_next(view, node), near)


def _beside_next(view: StageView, domain: Ints) -> Flags:
    """Whether a stage and the next lie in one domain of so many GPUs; else some sends leave it.

    Stages fill a pipeline's GPUs of each type in turn, so of two stages to a domain the first sends
    inside and the second across; the last one sends its chunks to the first. A slot of several
    stages counts as inside where any of them may be: only bounds look at such slots.
    """
    plans, stages = view.plans, view.stages
    gpus = stages.of(plans.tp * plans.cp * replicas_of_segment(plans))
    start, following = stages.index * gpus, gpus
    if not stages.equal_settings:
        gpus, pools = (np.broadcast_to(c, start.shape) for c in (gpus, stages.of(plans.gpu)))
        following = _next(view, gpus)
        for row in range(len(view.task.cluster.pools)):
            here = pools == row
            taken = np.where(here, stages.count * gpus, 0)
            start = np.where(here, np.cumsum(taken, axis=1) - taken, start)
    begin = np.where(stages.head, 0, start)
    end = start + gpus + np.where(stages.head, 0, following)
    beside: Flags = np.where(
        stages.count > 1, 2 * gpus <= domain, begin // domain == (end - 1) // domain
    )
    return beside


def arrival_gather(view: StageView, stack: Stack) -> Collective:
    """Stacks that send shares of what every rank holds whole gather them on arrival, inside the
    tensor-parallel group. Others gather nothing.
    """
    plans, stages = view.plans, view.stages
    tp = stages.of(plans.tp)
    domain, node = stages.of(view.domain), stages.of(view.node)
    group = RankGroup.of("tp", tp, np.ones_like(tp), domain, node)
    shared = (stack.name in timing_constants().sends.shared) & ~plans.sequence_parallel
    whole = np.where(shared, _activation_bytes(view), 0.0)
    return Collective(group, "all-gather", "activations between stages", whole)


def _activation_bytes(view: StageView) -> Floats:
    """Of one micro-batch between two layers, before sequence parallelism shares them."""
    plans, stages = view.plans, view.stages
    element = np.where(is_word(plans, "precision", "fp32"), 4.0, 2.0)
    tokens = stages.of(plans.segment_micro_batch) * plans.seq_len / plans.cp
    return tokens * view.task.model.hidden * element


def _senders_share(view: StageView, stack: Stack) -> Ints:
    """Ranks that send a part each of what one of them would."""
    tp = view.stages.of(view.plans.tp)
    shared = view.plans.sequence_parallel | (stack.name in timing_constants().sends.shared)
    return np.where(shared, tp, 1)


def link_seconds(view: StageView, stack: Stack) -> tuple[Floats, Floats]:
    """To the next stage, and how much of it blocks both stages.

    Where sends are waited for, NCCL's buffer takes a small message and lets the stages go; a larger
    one moves only while both ends are there. What is gathered blocks the receiver alone: half of
    it each.
    """
    sends, joins = stage_sends(view, stack), view.plans.pp[:, np.newaxis] > 1
    found = np.where(joins, _sent_s(view, stack, sends), 0.0)
    gathered = np.zeros(found.shape)
    if stack.name in timing_constants().sends.shared:
        arrival = arrival_gather(view, stack)
        for gpu, here in slots_by_gpu(view):
            gathered = np.where(here & joins, arrival.one_s(gpu), gathered)
    blocking = np.zeros(found.shape)
    if stack.holds_sends:
        large = sends.payload_bytes > timing_constants().sends.buffer_bytes
        blocking = np.where(large, found, 0.0) + gathered / 2
    return found + gathered, blocking


def _next(view: StageView, column: NDArray[Any]) -> NDArray[Any]:
    """What the stage that comes after each slot has; after the last, what the first one has."""
    count = view.stages.count
    values = np.broadcast_to(column, count.shape)
    found = np.empty(count.shape, values.dtype)
    after = values[:, 0]
    for slot in reversed(range(count.shape[1])):
        found[:, slot] = after
        after = np.where(count[:, slot] > 0, values[:, slot], after)
    return found
