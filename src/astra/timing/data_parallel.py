"""Traffic between replicas: gradients reduced, parameters gathered, the optimizer's step. [s]

As if nothing else ran; how much of it is exposed is for the stage to say.
"""

from dataclasses import dataclass

import numpy as np

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import count, end_weights, layer_weights, mtp_weights
from astra.model.shape import Model
from astra.strategy.plans import Flags, Floats, Ints, Plans, dtype_bytes
from astra.strategy.replica_groups import (
    layers_shared,
    replica_group_count,
    replica_group_of,
    replicas_of_segment,
    shard_group_fraction,
    slot_of_stage,
)
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView
from astra.timing.constants import timing_constants
from astra.timing.ledger import Collective, RankGroup
from astra.timing.link_curves import overlap_slowdown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DataParallelTime:
    """Seconds of one stage of each slot. (pipeline, slot, plan)"""

    gather_s: Floats  # parameters, per step; with sharded parameters per micro-batch and pass
    reduce_s: Floats  # gradients, likewise
    inter_group_s: Floats  # gradients between differently sharded replica groups, per step
    slowdown: Floats  # of the compute that such traffic runs beside
    adam_s: Floats  # optimizer step if all states are on the GPU
    host_s: Floats  # what it takes more if all are on the host: over PCIe, and on the CPUs


@dataclass(frozen=True, slots=True)
class _Replicated:
    """Parameters of a stage that are replicated over one kind of group."""

    name: str  # of the group: dp, or edp of experts
    parameters: Floats
    ranks: Ints
    stride: Ints
    shards: Ints  # ranks that share one set of states


def slots_by_gpu(view: StageView) -> list[tuple[Gpu, Flags]]:
    """Each GPU type and the slots that lie on it."""
    rows = view.stages.of(view.plans.gpu)
    return [
        (pool.gpu, (rows == row) & (view.stages.count > 0))
        for row, pool in enumerate(view.task.cluster.pools)
    ]


def data_parallel_time(view: StageView, stack: Stack) -> DataParallelTime:
    """Dense parameters are replicated over dp x cp, experts over the ranks that hold the same.

    Replicas of one shard are one group, whatever GPU types they lie on: it runs at the pace of the
    slowest. Replica groups that are sharded differently train one model too: see `_inter_group_s`.
    """
    shape = view.stages.count.shape
    total = {name: np.zeros(shape) for name in ("gather_s", "reduce_s", "adam_s", "host_s")}
    slowdown = np.zeros(shape)
    for row, ((gpu, here), met) in enumerate(
        zip(slots_by_gpu(view), _replica_slots(view), strict=True)
    ):
        own = stack.on(gpu)
        moved = own.communication_factor * _data_factor(own, gpu)
        shared = {"gather_s": np.zeros(shape), "reduce_s": np.zeros(shape)}
        for replicated in _replicated(view):
            for name, seconds in _seconds(view, replicated, row, own).items():
                if name in shared:
                    shared[name] += np.where(met, seconds * moved, 0.0)
                else:
                    total[name] += np.where(here, seconds * own.optimizer_factor, 0.0)
        total |= {name: np.maximum(total[name], seconds) for name, seconds in shared.items()}
        slowdown = np.where(here, overlap_slowdown(gpu), slowdown)
    return DataParallelTime(**total, inter_group_s=_inter_group_s(view, stack), slowdown=slowdown)


def _replica_slots(view: StageView) -> list[Flags]:
    """For each GPU type, the slots of whose stages a replica lies on it. (pipeline, slot, plan)"""
    plans, stages = view.plans, view.stages
    if plans.replicas.shape[0] == 1:
        return [here for _, here in slots_by_gpu(view)]
    first, slot = replica_group_of(plans), slot_of_stage(plans)
    there = (slot < plans.stages.shape[1]) & (plans.replicas > 0)[:, np.newaxis]
    gpu = np.take_along_axis(plans.gpu, np.minimum(slot, plans.stages.shape[1] - 1), axis=1)
    found = []
    for row in range(len(view.task.cluster.pools)):
        on_type = there & (gpu == row)
        group = np.zeros(on_type.shape, np.bool_)
        for other in range(len(on_type)):
            group |= on_type[other] & (first == first[other])[:, np.newaxis]
        before = np.cumsum(np.pad(group, ((0, 0), (1, 0), (0, 0))), axis=1)
        start = np.minimum(stages.index, group.shape[1])
        stop = np.minimum(start + stages.count, group.shape[1])
        at_start, at_stop = (np.take_along_axis(before, edge, axis=1) for edge in (start, stop))
        found.append(at_stop > at_start)
    return found


def _inter_group_s(view: StageView, stack: Stack) -> Floats:
    """Gradients summed over replica groups that shard the model differently, per step. [s]

    Every group has summed its own over its replicas; a rank is left with a piece of V bytes, its
    stage's gradients over these replicas. Of d groups each piece is all-reduced over d ranks, one
    in each group, over the network (groups share no node):  T = AllReduce(V, d).  Where tensor
    parallelism differs, the pieces do not match and are cut anew inside the tensor-parallel group,
    before and after:  2 AllToAll(V, tp).  A layer takes what it takes in the slowest group, and a
    stage the sum over its layers.
    """
    number, differs = _groups_apart(view.plans)
    if (number == 1).all():
        return np.zeros(view.stages.count.shape)
    found = stage_inter_group_s(view, stack, number, differs)
    where = layers_shared(view.stages, view.task.model.layers)
    slowest_s = where.at_slowest(found, _layer_weights(view.task.model))
    return np.where(number > 1, slowest_s, 0.0)


def _groups_apart(plans: Plans) -> tuple[Ints, Flags]:
    """Replica groups that sum up their gradients apart from their replicas (1: none), and whether
    their tensor parallelism differs. (plan,)
    """
    number = replica_group_count(plans)
    tps = np.where(plans.used, plans.tp, plans.tp[:1, :1])
    return number, (tps != tps[:1, :1]).any(axis=(0, 1)) & (number > 1)


def stage_inter_group_s(view: StageView, stack: Stack, number: Ints, differs: Flags) -> Floats:
    """The same if only a stage's own links counted, of so many groups. (pipeline, slot, plan) [s]

    `number` (plan,); `differs` (plan,): the pieces are cut anew.
    """
    found = np.zeros(view.stages.count.shape)
    collectives = _between_groups(view, number, differs)
    for gpu, here in slots_by_gpu(view):
        own = stack.on(gpu)
        moved = own.communication_factor * _data_factor(own, gpu)
        seconds = sum((each.once * each.one_s(gpu) for each in collectives), np.zeros(1))
        found += np.where(here, seconds * moved, 0.0)
    return found


def _between_groups(view: StageView, number: Ints, differs: Flags) -> list[Collective]:
    plans, tp = view.plans, view.stages.of(view.plans.tp)
    alone, found = np.ones_like(tp), []
    others = RankGroup("make", np.broadcast_to(number, tp.shape), alone, alone)
    inside = _group(view, "tp", tp, alone)
    for replicated in _replicated(view):
        piece = replicated.parameters * _gradient_bytes(plans) / replicated.ranks
        found.append(Collective(others, "all-reduce", "gradients of other makes", piece, once=1.0))
        if differs.any():
            twice = np.where(differs, 2.0, 0.0)
            found.append(Collective(inside, "all-to-all", "gradients cut anew", piece, once=twice))
    return found


def _layer_weights(model: Model) -> Floats:
    """Parameters that go with every layer; those of the ends with the first and the last."""
    kinds = layer_kinds(model)
    each = [count(layer_weights(model, kind)) for kind in kinds.kinds]
    found = np.array([each[row] for row in kinds.of_layer], np.float64)
    ends = end_weights(model)
    found[0] += sum(weight.count for weight in ends if weight.part in ("embedding", "positions"))
    found[-1] += sum(weight.count for weight in ends if weight.part in ("head", "final_norm"))
    if model.mtp_layers:
        found[-1] += model.mtp_layers * count(mtp_weights(model))
    return found


def _data_factor(stack: Stack, gpu: Gpu) -> float:
    """What a stack adds to traffic between replicas: buckets, and collectives beside each other.

    GPUs that share a NIC keep it busy however they are asked to: line rate is all that counts.
    """
    return stack.data_factor if gpu.node.nics is None else 1.0


def _replicated(view: StageView) -> list[_Replicated]:
    plans, stages, held = view.plans, view.stages, view.parameters_per_gpu
    tp, dp = stages.of(plans.tp), stages.of(replicas_of_segment(plans))
    cut = stages.of(plans.segment_ep) * stages.of(plans.segment_etp)
    dense = dp * plans.cp
    share = shard_group_fraction(plans)
    shards = _shards(dense, share, plans)
    found = [_Replicated("dp", held.dense, dense, tp, shards)]
    if view.task.model.moe is not None:
        experts = np.maximum(tp * dense // cut, 1)
        found.append(_Replicated("edp", held.experts, experts, cut, _shards(experts, share, plans)))
    return found


def _shards(ranks: Ints, share: Floats, plans: Plans) -> Ints:
    shared = np.maximum(ranks * share, 1.0).astype(np.int64)
    return np.where(is_word(plans, "sharding", "none"), 1, shared)


def data_parallel_collectives(view: StageView, stack: Stack) -> list[Collective]:
    """All that the replicas of a stage exchange, those of other replica groups too."""
    own = [
        each for replicated in _replicated(view) for each in _synchronised(view, replicated, stack)
    ]
    return own + _between_groups(view, *_groups_apart(view.plans))


def _synchronised(
    view: StageView, replicated: _Replicated, stack: Stack, row: int | None = None
) -> list[Collective]:
    """On the links of one pool, or on those of each slot's own. Sharded: reduce-scatter and
    all-gather in a shard group, and what a rank is left with summed over the groups. Else one
    all-reduce and nothing to gather.

    Where tensors have owners, those take turns round the ring, each with its part of both. Sharded
    parameters are gathered in either pass of every micro-batch.
    """
    plans, plain = view.plans, is_word(view.plans, "sharding", "none")
    each, often = is_word(plans, "sharding", "parameters"), reduces_every_batch(view)
    ranks = np.where(plain, replicated.ranks, replicated.shards)
    group = _group(view, replicated.name, ranks, replicated.stride, row)
    grads, weights = replicated.parameters * _gradient_bytes(plans), replicated.parameters * 2.0
    turns = _owners(view, ranks, stack)
    shared, reduced = np.where(plain, 0, turns), "gradients"
    passed, once = np.where(each, shared, 0.0), np.where(each, 0.0, shared)
    found = [Collective(group, "all-gather", "parameters", weights / turns, passed, passed, once)]
    passed, once = np.where(often, shared, 0.0), np.where(often, 0.0, shared)
    found.append(Collective(group, "reduce-scatter", reduced, grads / turns, 0.0, passed, once))
    if plain.any():
        found.append(
            Collective(group, "all-reduce", reduced, grads, once=np.where(plain, 1.0, 0.0))
        )
    groups = np.maximum(replicated.ranks // np.maximum(ranks, 1), 1)
    if (groups > 1).any():
        apart = _group(view, replicated.name, groups, np.maximum(replicated.stride * ranks, 1), row)
        left = grads / replicated.shards
        passed, once = np.where(often, 1.0, 0.0), np.where(often, 0.0, 1.0)
        found.append(Collective(apart, "all-reduce", reduced, left, 0.0, passed, once))
    return found


def reduces_every_batch(view: StageView) -> Flags:
    """Sharded gradients are reduced behind every backward pass: Megatron-FSDP
    (`grad_reduce_every_bprop`), ZeRO 2 (`partition_gradients`) and FSDP2, whose pipelines alone
    wait for the last where they keep the parameters. (plan,)
    """
    whole = is_word(view.plans, "sharding", "gradients")
    waits = whole & (view.task.runtime == "fsdp") & (view.plans.pp.max(axis=0) > 1)
    return (whole | is_word(view.plans, "sharding", "parameters")) & ~waits


def _gradient_bytes(plans: Plans) -> Floats:
    return np.where(is_word(plans, "grad_reduce_dtype", "fp32"), 4.0, 2.0)


def _seconds(view: StageView, replicated: _Replicated, row: int, stack: Stack) -> dict[str, Floats]:
    """Of one gather and one reduction, and of the optimizer's step, on the GPUs of one pool."""
    plans, gpu = view.plans, view.task.cluster.pools[row].gpu
    moved = {"parameters": np.zeros(1), "gradients": np.zeros(1)}
    for each in _synchronised(view, replicated, stack, row):
        moved[each.what] = moved[each.what] + (each.backward + each.once) * each.one_s(gpu)
    known = timing_constants().optimizer
    own = replicated.parameters / replicated.shards
    memory = known.bandwidth_fraction * gpu.memory_bytes_per_s
    streamed = adam_bytes(plans)
    adam = own * (streamed + known.clip_bytes) / memory
    hosted = own * known.offload_bytes / (known.bandwidth_fraction * gpu.node.pcie_bytes_per_s)
    updated = own * streamed * view.pool_node[row] / known.host_memory_bytes_per_s
    return {
        "gather_s": moved["parameters"],
        "reduce_s": moved["gradients"],
        "adam_s": adam,
        "host_s": hosted + updated - own * streamed / memory,
    }


def _owners(view: StageView, ranks: Ints, stack: Stack) -> Ints:
    """Ranks of a shard group that own a tensor of their stage, of as many as there are."""
    tensors = stack.owned_tensors * view.stages.kind_layers.sum(axis=0)
    return np.maximum(np.minimum(ranks, tensors), 1)


def _group(
    view: StageView, name: str, ranks: Ints, stride: Ints, row: int | None = None
) -> RankGroup:
    """As it lies on the nodes of one pool, or on those of each slot's own."""
    if row is not None:
        return RankGroup.of(name, ranks, stride, view.pool_domain[row], view.pool_node[row])
    domain, node = view.stages.of(view.domain), view.stages.of(view.node)
    return RankGroup.of(name, ranks, stride, domain, node)


def adam_bytes(plans: Plans) -> Floats:
    """Per parameter of a step: gradient, master and moments read, those and the weight written."""
    kept = ("master_dtype", "first_moment_dtype", "second_moment_dtype")
    states: Floats = sum((dtype_bytes(plans, column) for column in kept), np.zeros(1))
    return (
        2.0 * states
        + dtype_bytes(plans, "main_grads_dtype")
        + timing_constants().optimizer.weight_bytes
    )
