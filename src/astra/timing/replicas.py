"""Traffic between copies: gradients reduced, parameters gathered, the optimizer's step. [s]

As if nothing else ran; how much of it shows is for the stage to say.
"""

from dataclasses import dataclass

import numpy as np

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.hardware.topology import ranks_per_domain
from astra.model.kinds import layer_kinds
from astra.model.parameters import count, end_weights, layer_weights, mtp_weights
from astra.model.shape import Model
from astra.strategy.makes import (
    copies_of,
    layer_map,
    make_of,
    makes,
    shard_share,
    slot_of_stage,
)
from astra.strategy.plans import Flags, Floats, Ints, Plans, dtype_bytes
from astra.strategy.rules.rule import is_word
from astra.strategy.view import View
from astra.timing.collectives import all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s
from astra.timing.facts import facts
from astra.timing.links import overlap_slowdown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Replicas:
    """Seconds of one stage of each run. (pipeline, run, plan)"""

    gather_s: Floats  # parameters, per step; with sharded parameters per micro-batch and pass
    reduce_s: Floats  # gradients, likewise
    across_s: Floats  # gradients between replicas that are cut differently, per step
    slowdown: Floats  # of the compute that such traffic runs beside
    adam_s: Floats  # optimizer step if all states are on the GPU
    host_s: Floats  # what it takes more if all are on the host: over PCIe, and on the CPUs


@dataclass(frozen=True, slots=True)
class _Copies:
    """Parameters of a stage that are replicated over one kind of group."""

    parameters: Floats
    ranks: Ints
    stride: Ints
    shards: Ints  # ranks that share one set of states


def gpus_of(view: View) -> list[tuple[Gpu, Flags]]:
    """Each GPU type and the runs that lie on it."""
    rows = view.stages.of(view.plans.gpu)
    return [
        (pool.gpu, (rows == row) & (view.stages.count > 0))
        for row, pool in enumerate(view.task.cluster.pools)
    ]


def replicas_of(view: View, stack: Stack) -> Replicas:
    """Dense parameters are replicated over dp x cp, experts over the ranks that hold the same.

    Copies of one shard are one group, whatever GPU types they lie on: it runs at the pace of the
    slowest. Replicas that are cut differently train one model too: see `_across_s`.
    """
    shape = view.stages.count.shape
    total = {name: np.zeros(shape) for name in ("gather_s", "reduce_s", "adam_s", "host_s")}
    slowdown = np.zeros(shape)
    for row, ((gpu, here), met) in enumerate(zip(gpus_of(view), _copies_on(view), strict=True)):
        own = stack.on(gpu)
        moved = own.communication_factor * _data_factor(own, gpu)
        shared = {"gather_s": np.zeros(shape), "reduce_s": np.zeros(shape)}
        for copies in _copies(view):
            for name, seconds in _seconds(view, copies, row, own).items():
                if name in shared:
                    shared[name] += np.where(met, seconds * moved, 0.0)
                else:
                    total[name] += np.where(here, seconds * own.optimizer_factor, 0.0)
        total |= {name: np.maximum(total[name], seconds) for name, seconds in shared.items()}
        slowdown = np.where(here, overlap_slowdown(gpu), slowdown)
    return Replicas(**total, across_s=_across_s(view, stack), slowdown=slowdown)


def _copies_on(view: View) -> list[Flags]:
    """For each GPU type, the runs of whose stages some copy lies on it. (pipeline, run, plan)"""
    plans, stages = view.plans, view.stages
    if plans.replicas.shape[0] == 1:
        return [here for _, here in gpus_of(view)]
    first, slot = make_of(plans), slot_of_stage(plans)
    there = (slot < plans.stages.shape[1]) & (plans.replicas > 0)[:, np.newaxis]
    gpu = np.take_along_axis(plans.gpu, np.minimum(slot, plans.stages.shape[1] - 1), axis=1)
    found = []
    for row in range(len(view.task.cluster.pools)):
        held = there & (gpu == row)
        group = np.zeros(held.shape, np.bool_)
        for other in range(len(held)):
            group |= held[other] & (first == first[other])[:, np.newaxis]
        before = np.cumsum(np.pad(group, ((0, 0), (1, 0), (0, 0))), axis=1)
        start = np.minimum(stages.index, group.shape[1])
        stop = np.minimum(start + stages.count, group.shape[1])
        some = [np.take_along_axis(before, edge, axis=1) for edge in (start, stop)]
        found.append(some[1] > some[0])
    return found


def _across_s(view: View, stack: Stack) -> Floats:
    """Gradients summed over makes that cut the model differently, per step. [s]

    Every make has summed its own over its copies; a rank is left with a piece of V bytes, its
    stage's gradients over these copies. Of d makes each piece is all-reduced over d ranks, one in
    each make, over the network (makes share no node):  T = AllReduce(V, d).  Where tensor
    parallelism differs, the pieces do not match and are cut anew inside the tensor-parallel group,
    before and after:  2 AllToAll(V, tp).  A layer takes what it takes in the slowest make, and a
    stage the sum over its layers.
    """
    plans, stages = view.plans, view.stages
    number = makes(plans)
    some = number > 1
    if not some.any():
        return np.zeros(stages.count.shape)
    tps = np.where(plans.used, plans.tp, plans.tp[:1, :1])
    differs = (tps != tps[:1, :1]).any(axis=(0, 1))
    found = own_pace_s(view, stack, np.where(some, number, 1), differs & some)
    where = layer_map(stages, view.task.model.layers)
    met = where.at_slowest(found, _layer_weights(view.task.model))
    return np.where(some, met, 0.0)


def own_pace_s(view: View, stack: Stack, number: Ints, differs: Flags) -> Floats:
    """The same if only a stage's own links counted, of so many makes. (pipeline, run, plan) [s]

    `number` (plan,); `differs` (plan,): the pieces are cut anew.
    """
    plans, stages = view.plans, view.stages
    found, tp = np.zeros(stages.count.shape), stages.of(plans.tp)
    wide = np.where(is_word(plans, "grad_reduce_dtype", "fp32"), 4.0, 2.0)
    one = np.ones_like(tp)
    for row, (gpu, here) in enumerate(gpus_of(view)):
        own, near = stack.on(gpu), _near(view, tp, one, row)
        moved = own.communication_factor * _data_factor(own, gpu)
        for copies in _copies(view):
            piece = copies.parameters * wide / copies.ranks
            seconds = all_reduce_s(piece, number, one, gpu, one)
            if differs.any():
                again = 2 * all_to_all_s(piece, tp, near[0], gpu, near[1])
                seconds = seconds + np.where(differs & (tp > 1), again, 0.0)
            found += np.where(here, seconds * moved, 0.0)
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
    """What a stack adds to traffic between copies: buckets, and collectives beside each other.

    GPUs that share a NIC keep it busy however they are asked to: line rate is all that counts.
    """
    return stack.data_factor if gpu.node.nics is None else 1.0


def _copies(view: View) -> list[_Copies]:
    plans, stages, held = view.plans, view.stages, view.held
    tp, dp = stages.of(plans.tp), stages.of(copies_of(plans))
    cut = stages.of(plans.segment_ep) * stages.of(plans.segment_etp)
    dense = dp * plans.cp
    share = shard_share(plans)
    shards = _shards(dense, share, plans)
    found = [_Copies(held.dense, dense, tp, shards)]
    if view.task.model.moe is not None:
        experts = np.maximum(tp * dense // cut, 1)
        found.append(_Copies(held.experts, experts, cut, _shards(experts, share, plans)))
    return found


def _shards(ranks: Ints, share: Floats, plans: Plans) -> Ints:
    shared = np.maximum(ranks * share, 1.0).astype(np.int64)
    return np.where(is_word(plans, "sharding", "none"), 1, shared)


def _seconds(view: View, copies: _Copies, row: int, stack: Stack) -> dict[str, Floats]:
    """On the links and GPUs of one pool. Sharded: reduce-scatter and all-gather in a shard group,
    and what a rank is left with summed over the groups. Else one all-reduce, nothing to gather.

    Where tensors have owners, those take turns round the ring, each with its part of both.
    """
    plans, gpu = view.plans, view.task.cluster.pools[row].gpu
    plain = is_word(plans, "sharding", "none")
    ranks = np.where(plain, copies.ranks, copies.shards)
    near, node = _near(view, ranks, copies.stride, row)
    grads = copies.parameters * np.where(is_word(plans, "grad_reduce_dtype", "fp32"), 4.0, 2.0)
    turns = _owners(view, ranks, stack)
    scattered = turns * reduce_scatter_s(grads / turns, ranks, near, gpu, node)
    gathered = turns * all_gather_s(copies.parameters * 2.0 / turns, ranks, near, gpu, node)
    if plain.any():
        scattered = np.where(plain, all_reduce_s(grads, ranks, near, gpu, node), scattered)
        gathered = np.where(plain, 0.0, gathered)
    groups = np.maximum(copies.ranks // np.maximum(ranks, 1), 1)
    if (groups > 1).any():
        near, node = _near(view, groups, np.maximum(copies.stride * ranks, 1), row)
        scattered = scattered + all_reduce_s(grads / copies.shards, groups, near, gpu, node)
    known = facts().optimizer
    own = copies.parameters / copies.shards
    memory = known.bandwidth_fraction * gpu.memory_bytes_per_s
    streamed = adam_bytes(plans)
    adam = own * (streamed + known.clip_bytes) / memory
    moved = own * known.offload_bytes / (known.bandwidth_fraction * gpu.node.pcie_bytes_per_s)
    updated = own * streamed * view.pool_node[row] / known.host_memory_bytes_per_s
    return {
        "gather_s": gathered,
        "reduce_s": scattered,
        "adam_s": adam,
        "host_s": moved + updated - own * streamed / memory,
    }


def _owners(view: View, ranks: Ints, stack: Stack) -> Ints:
    """Ranks of a shard group that own a tensor of their stage, of as many as there are."""
    tensors = stack.owned_tensors * view.stages.kind_layers.sum(axis=0)
    return np.maximum(np.minimum(ranks, tensors), 1)


def _near(view: View, ranks: Ints, stride: Ints, row: int) -> tuple[Ints, Ints]:
    """Ranks of a group in one link domain of a pool, and in one of its nodes."""
    return (
        ranks_per_domain(ranks, stride, view.pool_domain[row]),
        ranks_per_domain(ranks, stride, view.pool_node[row]),
    )


def adam_bytes(plans: Plans) -> Floats:
    """Per parameter of a step: gradient, master and moments read, those and the weight written."""
    kept = ("master_dtype", "first_moment_dtype", "second_moment_dtype")
    states: Floats = sum((dtype_bytes(plans, column) for column in kept), np.zeros(1))
    return 2.0 * states + dtype_bytes(plans, "main_grads_dtype") + facts().optimizer.weight_bytes
