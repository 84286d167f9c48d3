"""Groups of replicas: which pipelines of a plan have the same shards, and the same layers."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from astra.strategy.plans import COLUMNS, PLAN_AXES, UNUSED, Flags, Floats, Ints, Plans, code
from astra.strategy.stages import Stages

SHARDS = ("layers", "tp", "segment_ep", "segment_etp")  # what a stage holds of the model
STAGE_SETTINGS = (
    *SHARDS,
    "segment_micro_batch",
    "recompute",
    "recompute_layers",
    "recompute_modules",
)
NOT_SHARDED = code("sharding", "none")


def replica_group_of(plans: Plans) -> Ints:
    """For every pipeline, the first one whose replicas are one group with its own.

    (pipeline, plan). Replicas of one job are one group, whatever GPUs they lie on. Where they
    differ in micro-batches or recompute, no runtime is known: states are then taken to be sharded
    over replicas on the same GPUs with the same settings, and whole states are summed over all
    that hold the same shards.
    """
    count = plans.replicas.shape[0]
    found = np.broadcast_to(np.arange(count)[:, np.newaxis], plans.replicas.shape).copy()
    if count == 1:
        return found
    slot, together = slot_of_stage(plans), is_one_job(plans) | (plans.sharding == NOT_SHARDED)
    for later in range(1, count):
        for first in reversed(range(later)):
            same = _same_stages(plans, slot, first, later, SHARDS) & together
            same |= _same_stages(plans, slot, first, later, ("gpu", *STAGE_SETTINGS))
            found[later] = np.where(same, first, found[later])
    return found


def slot_of_stage(plans: Plans) -> Ints:
    """(pipeline, stage, plan); one past the last slot where there is no such stage."""
    ends = np.cumsum(plans.stages, axis=1)
    place = np.arange(int(ends[:, -1].max(initial=0)))[:, np.newaxis]
    found = np.zeros((len(ends), len(place), len(plans)), np.int64)
    for row in range(ends.shape[1]):
        found += place >= ends[:, row][:, np.newaxis]
    return found


def _same_stages(plans: Plans, slot: Ints, one: int, other: int, names: tuple[str, ...]) -> Flags:
    """Whether two pipelines have as many stages, with the same in these columns. (plan,)"""
    past = plans.stages.shape[1]
    there = slot < past
    same = (plans.replicas[one] > 0) & (plans.replicas[other] > 0)
    same &= (there[one] == there[other]).all(axis=0)
    at = np.minimum(slot, past - 1)
    for name in names:
        column = np.take_along_axis(getattr(plans, name), at, axis=1)
        same &= ((column[one] == column[other]) | ~there[one]).all(axis=0)
    return same


def replica_group_count(plans: Plans) -> Ints:
    """How many replica groups a plan has. (plan,)"""
    if plans.replicas.shape[0] == 1:
        return np.ones(len(plans), np.int64)
    itself = np.arange(plans.replicas.shape[0])[:, np.newaxis]
    count: Ints = ((replica_group_of(plans) == itself) & (plans.replicas > 0)).sum(axis=0)
    return count


def replicas_of_segment(plans: Plans) -> Ints:
    """Replicas of the stages of each slot, over all pipelines of their group.

    (pipeline, slot, plan). A slot counts as its first stage does.
    """
    if plans.replicas.shape[0] == 1:
        return plans.dp
    first, used = replica_group_of(plans), plans.used
    starts = np.cumsum(plans.stages, axis=1) - plans.stages
    slot = np.minimum(slot_of_stage(plans), plans.stages.shape[1] - 1)
    starts = np.minimum(starts, slot.shape[1] - 1)
    total = np.zeros_like(plans.dp)
    for other in range(len(first)):
        at = np.take_along_axis(slot[other], starts.reshape(-1, len(plans)), axis=0)
        dp = np.take_along_axis(plans.dp[other], at, axis=0).reshape(starts.shape)
        same = (first == first[other]) & (plans.replicas[other] > 0)
        total += np.where(same[:, np.newaxis], dp, 0)
    return np.where(used, total, plans.dp)


def shard_group_fraction(plans: Plans) -> Floats:
    """Part of the replicas of a stage in a shard group: `shard_group` counts those of the first.

    A mesh with a dp or other degrees of its own shards over the same fraction of its replicas.
    """
    copies = np.maximum(replicas_of_segment(plans)[0, 0] * plans.cp, 1)
    share: Floats = np.maximum(plans.shard_group, 1) / copies
    return share


def combined_plans(table: Plans, rows: Ints, replicas: Ints, micro_batches: Ints) -> Plans:
    """Rows of a table of one pipeline each, combined to plans of several. (pipeline, plan)

    A pipeline with no replicas is not there. What a plan has once is its first pipeline's.
    """
    there = replicas > 0
    columns: dict[str, Any] = table.take(rows[0]).columns()
    for name in COLUMNS:
        if PLAN_AXES.get(name, 1) == 3:
            each = np.moveaxis(getattr(table, name)[0][:, rows], 0, 1)
            columns[name] = np.where(there[:, np.newaxis], each, UNUSED.get(name, 1))
            columns[name] = columns[name].astype(each.dtype)
    columns["dp"] = np.where(columns["stages"] > 0, replicas[:, np.newaxis], 1)
    columns |= {"replicas": replicas, "micro_batches": micro_batches}
    copies = replicas.sum(axis=0) * columns["cp"]
    sharded = columns["sharding"] != NOT_SHARDED
    columns["sequence_parallel"] = (table.sequence_parallel[rows] & there).any(axis=0)
    columns["overlap_grad_reduce"] = copies > 1
    columns["overlap_param_gather"] = sharded & (copies > 1)
    several = there.sum(axis=0) > 1
    columns["microbatch_group"] = np.where(several, 0, table.pp[0][rows[0]])
    combined = Plans(**columns, chunk_layers=table.chunk_layers)
    group = replicas_of_segment(combined)[0, 0] * combined.cp
    return replace(combined, shard_group=np.where(sharded, group, 1))


def is_one_job(plans: Plans) -> Flags:
    """The plan is uniform: all replicas have equal degrees, recompute and micro-batches. What any
    framework launches as one job, on whatever GPUs the ranks lie. (plan,)
    """
    uniform = np.ones(len(plans), np.bool_)
    if plans.replicas.shape[0] == 1:
        return uniform
    slot = slot_of_stage(plans)
    for row in range(1, plans.replicas.shape[0]):
        same = _same_stages(plans, slot, 0, row, STAGE_SETTINGS)
        same &= plans.micro_batches[row] == plans.micro_batches[0]
        uniform &= same | (plans.replicas[row] == 0)
    return uniform


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayersShared:
    """Where every layer lies in each pipeline: which stages hold the same layers."""

    stages: Stages
    slot: Ints  # (pipeline, layer, plan): of `stages`
    there: Flags  # likewise: whether the pipeline is there

    def slowest_of_layer(self, column: Floats) -> Floats:
        """For every slot, the most that any slot with a layer of it has. (pipeline, slot, plan)"""
        each = np.where(self.there, np.take_along_axis(column, self.slot, axis=1), -np.inf)
        slowest = each.max(axis=0)
        found = column.copy()
        for pipeline in range(len(column)):
            at = self.slot[pipeline], np.arange(column.shape[-1])
            np.maximum.at(found[pipeline], at, np.where(self.there[pipeline], slowest, -np.inf))
        return found

    def at_slowest(self, column: Floats, weights: Floats) -> Floats:
        """Seconds of one stage of each slot, shared out among its layers by their weights (layer,);
        of each layer those of the pipeline that takes longest; summed up again.
        """
        total = np.zeros(column.shape)
        weight = np.broadcast_to(weights[:, np.newaxis], self.slot.shape[1:])
        for pipeline in range(len(column)):
            at = self.slot[pipeline], np.arange(column.shape[-1])
            np.add.at(total[pipeline], at, np.where(self.there[pipeline], weight, 0.0))
        count = np.maximum(self.stages.count, 1)
        each = np.where(total > 0, column * count / np.where(total > 0, total, 1.0), 0.0)
        each = np.take_along_axis(each, self.slot, axis=1) * weight
        slowest = np.where(self.there, each, 0.0).max(axis=0)
        found = np.zeros(column.shape)
        for pipeline in range(len(column)):
            at = self.slot[pipeline], np.arange(column.shape[-1])
            np.add.at(found[pipeline], at, np.where(self.there[pipeline], slowest, 0.0))
        return np.where(total > 0, found / count, column)


def layers_shared(stages: Stages, layers: int) -> LayersShared:
    """Which slots hold each layer, of plans whose pipelines hold so many layers each."""
    each = stages.kind_layers.sum(axis=0) * stages.count
    ends = np.cumsum(each, axis=1)
    place = np.arange(layers)[:, np.newaxis]
    slot = np.zeros((each.shape[0], layers, each.shape[2]), np.int64)
    for row in range(each.shape[1] - 1):
        slot += place >= ends[:, row][:, np.newaxis]
    there = (stages.count.sum(axis=1) > 0)[:, np.newaxis] & (place < ends[:, -1:])
    return LayersShared(stages, slot, np.broadcast_to(there, slot.shape))
