"""Seconds of every stage: its layers and ends per micro-batch, and what it does once per step."""

from dataclasses import dataclass

import numpy as np

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.hardware.topology import ranks_per_domain
from astra.model.kinds import layer_kinds
from astra.strategy.held import held_parameters
from astra.strategy.plans import Flags, Floats, Ints, Plans, Task
from astra.strategy.rules.rule import is_word
from astra.strategy.stages import Stages, recomputed_fraction
from astra.timing.collectives import all_gather_s, all_reduce_s, p2p_s, reduce_scatter_s
from astra.timing.layer import Layers, LayerTime, places_of
from astra.timing.links import overlap_slowdown

ADAM_BYTES = (
    30.0  # per parameter: master, moments and gradient read, master, moments, weight written
)
CLIP_BYTES = 8.0  # gradient norm and scaling: read twice
DATA_OVERLAP_SHOWS = 0.1  # of bucketed reductions: the last bucket and gaps; guessed


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage of each run. (pipeline, run, plan)

    Per micro-batch, unless it says per step. Traffic counts as far as it shows.
    """

    forward_s: Floats  # compute
    backward_s: Floats
    recompute_s: Floats
    tensor_forward_s: Floats
    tensor_backward_s: Floats
    context_forward_s: Floats
    context_backward_s: Floats
    expert_forward_s: Floats
    expert_backward_s: Floats
    gather_forward_s: Floats  # parameters gathered for every micro-batch (FSDP)
    gather_backward_s: Floats
    link_s: Floats  # to the next stage, one way
    first_extra_s: Floats  # per step: parameter gather that the first micro-batch cannot hide
    last_extra_s: Floats  # per step: gradient reduction that the last one cannot hide
    optimizer_s: Floats  # per step
    other_s: Floats  # per step
    head_forward_s: Floats  # part of `forward_s`: lies on the last chunk
    head_backward_s: Floats
    embedding_forward_s: Floats  # part of `forward_s`: lies on the first chunk
    embedding_backward_s: Floats

    @property
    def whole_forward_s(self) -> Floats:
        """All that a micro-batch takes on its way down."""
        traffic = self.tensor_forward_s + self.context_forward_s + self.expert_forward_s
        return self.forward_s + traffic + self.gather_forward_s

    @property
    def whole_backward_s(self) -> Floats:
        """All that it takes on its way back."""
        traffic = self.tensor_backward_s + self.context_backward_s + self.expert_backward_s
        return self.backward_s + self.recompute_s + traffic + self.gather_backward_s


def stage_times(
    plans: Plans, stages: Stages, task: Task, layers: Layers, stack: Stack
) -> StageTime:
    """Seconds of every run of a table of plans."""
    sums = {name: _over_kinds(name, stages, task, plans, layers) for name in LayerTime.__slots__}
    again = _recompute(plans, stages, task, layers)
    ends = _ends(plans, stages, layers)
    forward = sums["forward_s"] + ends["head_forward_s"] + ends["embedding_forward_s"]
    backward = sums["backward_s"] + ends["head_backward_s"] + ends["embedding_backward_s"]
    gathers = _fsdp(plans, stages, task, forward, backward + again, stack)
    first, last = _data_parallel(plans, stages, task, forward, backward + again, stack)
    return StageTime(
        forward_s=forward,
        backward_s=backward,
        recompute_s=again,
        tensor_forward_s=sums["tensor_forward_s"],
        tensor_backward_s=sums["tensor_backward_s"],
        context_forward_s=sums["context_forward_s"],
        context_backward_s=sums["context_backward_s"],
        expert_forward_s=sums["expert_forward_s"],
        expert_backward_s=sums["expert_backward_s"],
        gather_forward_s=gathers[0],
        gather_backward_s=gathers[1],
        link_s=_links(plans, stages, task, stack),
        first_extra_s=first,
        last_extra_s=last,
        optimizer_s=_optimizer(plans, stages, task, stack),
        other_s=np.where(stages.count > 0, stack.step_s, 0.0),
        **ends,
    )


def _kind_layers(row: int, stages: Stages, task: Task, plans: Plans) -> Floats:
    """Layers of a kind in one stage; multi-token prediction adds to the last one."""
    last = layer_kinds(task.model).of_layer[-1]
    extra = np.where(stages.head & (row == last), plans.mtp_layers, 0)
    return (stages.kind_layers[row] + extra).astype(np.float64)


def _over_kinds(name: str, stages: Stages, task: Task, plans: Plans, layers: Layers) -> Floats:
    total = np.zeros(stages.count.shape)
    for row, kind in enumerate(layers.kinds):
        total += _kind_layers(row, stages, task, plans) * stages.of(getattr(kind, name))
    return total


def _ends(plans: Plans, stages: Stages, layers: Layers) -> dict[str, Floats]:
    """Embedding and head where they lie; multi-token prediction runs the head once more each."""
    heads = np.where(stages.head, 1 + plans.mtp_layers, 0)
    starts = np.where(stages.embedding, 1, 0)
    return {
        "head_forward_s": heads * stages.of(layers.head.forward_s),
        "head_backward_s": heads * stages.of(layers.head.backward_s),
        "embedding_forward_s": starts * stages.of(layers.embedding.forward_s),
        "embedding_backward_s": starts * stages.of(layers.embedding.backward_s),
    }


def _recompute(plans: Plans, stages: Stages, task: Task, layers: Layers) -> Floats:
    """Selected modules of every layer, or whole layers with their traffic."""
    fraction, _ = recomputed_fraction(plans, stages)
    total = np.zeros(stages.count.shape)
    for row, kind in enumerate(layers.kinds):
        again = stages.of(kind.recompute_s) + fraction * stages.of(kind.whole_forward_s)
        total += _kind_layers(row, stages, task, plans) * again
    return total


def _by_gpu(stages: Stages, plans: Plans, task: Task) -> list[tuple[Gpu, Flags]]:
    """Each GPU type and the runs that lie on it."""
    rows = stages.of(plans.gpu)
    return [
        (pool.gpu, (rows == row) & (stages.count > 0))
        for row, pool in enumerate(task.cluster.pools)
    ]


def _links(plans: Plans, stages: Stages, task: Task, stack: Stack) -> Floats:
    """Activations to the next stage; between types the slower NIC rules."""
    tp = stages.of(plans.tp)
    shared = np.where(plans.sequence_parallel, tp, 1)
    element = np.where(is_word(plans, "precision", "fp32"), 4.0, 2.0)
    tokens = stages.of(plans.segment_micro_batch) * plans.seq_len / plans.cp
    payload = tokens * task.model.hidden * element / shared
    stage_gpus = tp * plans.cp * stages.of(plans.dp)
    found = np.zeros(payload.shape)
    domain, nodes = (stages.of(place) for place in places_of(plans, task))
    near = ranks_per_domain(2, stage_gpus, np.maximum(domain, nodes)) == 2
    for gpu, here in _by_gpu(stages, plans, task):
        found = np.where(here, p2p_s(payload, near, gpu), found)
    if len(task.cluster.pools) > 1:
        found = np.maximum(found, _cross_type(payload, task))
    return np.where(plans.pp[:, np.newaxis] > 1, found * stack.communication_factor, 0.0)


def _cross_type(payload: Floats, task: Task) -> Floats:
    """Links between segments are priced like the slowest NIC of the cluster."""
    slowest = min(task.cluster.pools, key=lambda pool: pool.gpu.node.nic_bytes_per_s)
    return p2p_s(payload, False, slowest.gpu)


@dataclass(frozen=True, slots=True)
class _Copies:
    """Parameters of a stage that are replicated over one kind of group."""

    parameters: Floats
    ranks: Ints
    stride: Ints


def _copies(plans: Plans, stages: Stages, task: Task) -> list[_Copies]:
    """Dense parameters over dp x cp, experts over the ranks that hold the same ones."""
    held = held_parameters(plans, stages, task)
    tp, dp = stages.of(plans.tp), stages.of(plans.dp)
    cut = stages.of(plans.segment_ep) * stages.of(plans.segment_etp)
    found = [_Copies(held.dense, dp * plans.cp, tp)]
    if task.model.moe is not None:
        found.append(_Copies(held.experts, np.maximum(tp * plans.cp * dp // cut, 1), cut))
    return found


def _reduce_bytes(plans: Plans) -> Floats:
    return np.where(is_word(plans, "grad_reduce_dtype", "fp32"), 4.0, 2.0)


def _data_parallel(
    plans: Plans,
    stages: Stages,
    task: Task,
    forward: Floats,
    backward: Floats,
    stack: Stack,
) -> tuple[Floats, Floats]:
    """Per step: exposed gather of updated parameters, exposed reduction of gradients.

    Sharded: reduce-scatter and all-gather; else one all-reduce. What overlaps hides behind the
    first micro-batch's forward and the last one's backward pass, slows them, and leaves its
    last bucket to see.
    """
    shape = stages.count.shape
    gather, reduce = np.zeros(shape), np.zeros(shape)
    domain, nodes = (stages.of(place) for place in places_of(plans, task))
    sharded = ~is_word(plans, "sharding", "none")
    by_layer = is_word(plans, "sharding", "parameters")
    slow = np.zeros(shape)
    for gpu, here in _by_gpu(stages, plans, task):
        for copies in _copies(plans, stages, task):
            near = ranks_per_domain(copies.ranks, copies.stride, domain)
            node = ranks_per_domain(copies.ranks, copies.stride, nodes)
            grads = copies.parameters * _reduce_bytes(plans)
            weights = copies.parameters * 2.0
            scattered = reduce_scatter_s(grads, copies.ranks, near, gpu, node)
            reduced = np.where(
                sharded, scattered, all_reduce_s(grads, copies.ranks, near, gpu, node)
            )
            gathered = np.where(sharded, all_gather_s(weights, copies.ranks, near, gpu, node), 0.0)
            reduce += np.where(here & (copies.ranks > 1), reduced, 0.0)
            gather += np.where(here & (copies.ranks > 1), gathered, 0.0)
        slow = np.where(here, overlap_slowdown(gpu), slow)
    factor = stack.communication_factor
    first = _partly(gather * factor, forward, plans.overlap_param_gather, slow)
    last = _partly(reduce * factor, backward, plans.overlap_grad_reduce, slow)
    every = by_layer | (is_word(plans, "sharding", "gradients") & (task.runtime == "fsdp"))
    return np.where(by_layer, 0.0, first), np.where(every, 0.0, last)


def _partly(traffic: Floats, behind: Floats, overlaps: Flags, slow: Floats) -> Floats:
    hidden = np.minimum(traffic * (1 - DATA_OVERLAP_SHOWS), behind)
    return np.where(overlaps, traffic - hidden + slow * hidden, traffic)


def _fsdp(
    plans: Plans,
    stages: Stages,
    task: Task,
    forward: Floats,
    backward: Floats,
    stack: Stack,
) -> tuple[Floats, Floats]:
    """Per micro-batch: parameters gathered forward and backward, gradients scattered."""
    by_layer = is_word(plans, "sharding", "parameters")
    if not by_layer.any():
        zeros = np.zeros(stages.count.shape)
        return zeros, zeros
    shape = stages.count.shape
    gather, scatter, slow = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    domain, nodes = (stages.of(place) for place in places_of(plans, task))
    for gpu, here in _by_gpu(stages, plans, task):
        for copies in _copies(plans, stages, task):
            shared = copies.ranks * _share(plans, stages)
            ranks = np.maximum(np.floor(shared), 1).astype(np.int64)
            near = ranks_per_domain(ranks, copies.stride, domain)
            node = ranks_per_domain(ranks, copies.stride, nodes)
            many = here & (ranks > 1)
            gather += np.where(
                many, all_gather_s(copies.parameters * 2.0, ranks, near, gpu, node), 0.0
            )
            grads = copies.parameters * _reduce_bytes(plans)
            scatter += np.where(many, reduce_scatter_s(grads, ranks, near, gpu, node), 0.0)
        slow = np.where(here, overlap_slowdown(gpu), slow)
    factor = stack.communication_factor
    on = plans.overlap_param_gather
    ahead = _partly(gather * factor, forward, on, slow)
    back = _partly((gather + scatter) * factor, backward, on, slow)
    return np.where(by_layer, ahead, 0.0), np.where(by_layer, back, 0.0)


def _optimizer(plans: Plans, stages: Stages, task: Task, stack: Stack) -> Floats:
    """Adam over the local shard, through memory; what lives on the host goes over PCIe."""
    sharded = ~is_word(plans, "sharding", "none")
    total = np.zeros(stages.count.shape)
    for gpu, here in _by_gpu(stages, plans, task):
        for copies in _copies(plans, stages, task):
            group = np.where(sharded, copies.ranks * _share(plans, stages), 1.0)
            own = copies.parameters / np.maximum(group, 1.0)
            hosted = own * plans.offload_optimizer_fraction
            kept = own - hosted
            local = (kept * ADAM_BYTES + own * CLIP_BYTES) / (0.8 * gpu.memory_bytes_per_s)
            moved = hosted * 6.0 / (0.8 * gpu.node.pcie_bytes_per_s)
            total += np.where(here, local + moved, 0.0)
    return total * stack.optimizer_factor


def _share(plans: Plans, stages: Stages) -> Floats:
    """The shard group over all copies."""
    return plans.shard_group / np.maximum(stages.of(plans.dp) * plans.cp, 1)
