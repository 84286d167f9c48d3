"""Pipelines of one plan that are cut alike, and which of their stages hold the same layers."""

from dataclasses import dataclass

import numpy as np

from astra.strategy.plans import Flags, Floats, Ints, Plans, code
from astra.strategy.stages import Stages

SHARDS = ("layers", "tp", "segment_ep", "segment_etp")  # what a stage holds of the model
SETTINGS = (*SHARDS, "segment_micro_batch", "recompute", "recompute_layers", "recompute_modules")
WHOLE = code("sharding", "none")


def replica_group_of(plans: Plans) -> Ints:
    """For every pipeline, the first one whose copies of the model are one group with its own.

    (pipeline, plan). Replicas of one job are one group, whatever GPUs they lie on. Where they
    differ in micro-batches or recompute, no runtime is known: states are then taken to be sharded
    over replicas on the same GPUs with the same settings, and whole states are summed over all
    that hold the same shards.
    """
    count = plans.replicas.shape[0]
    found = np.broadcast_to(np.arange(count)[:, np.newaxis], plans.replicas.shape).copy()
    if count == 1:
        return found
    slot, together = slot_of_stage(plans), is_one_job(plans) | (plans.sharding == WHOLE)
    for later in range(1, count):
        for first in reversed(range(later)):
            same = _alike(plans, slot, first, later, SHARDS) & together
            same |= _alike(plans, slot, first, later, ("gpu", *SETTINGS))
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


def _alike(plans: Plans, slot: Ints, one: int, other: int, names: tuple[str, ...]) -> Flags:
    """Whether two pipelines have as many stages, with the same in these columns. (plan,)"""
    past = plans.stages.shape[1]
    there = slot < past
    held = (plans.replicas[one] > 0) & (plans.replicas[other] > 0)
    held &= (there[one] == there[other]).all(axis=0)
    at = np.minimum(slot, past - 1)
    for name in names:
        column = np.take_along_axis(getattr(plans, name), at, axis=1)
        held &= ((column[one] == column[other]) | ~there[one]).all(axis=0)
    return held


def replica_group_count(plans: Plans) -> Ints:
    """How many such groups a plan has. (plan,)"""
    if plans.replicas.shape[0] == 1:
        return np.ones(len(plans), np.int64)
    own = np.arange(plans.replicas.shape[0])[:, np.newaxis]
    count: Ints = ((replica_group_of(plans) == own) & (plans.replicas > 0)).sum(axis=0)
    return count


def replicas_of_segment(plans: Plans) -> Ints:
    """Copies of the stages of each slot, over all pipelines of their group.

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
    """What a shard group has of the copies of a stage: `shard_group` counts those of the first.

    A mesh with a dp of its own, or another cut, shards over the same share of its copies.
    """
    copies = np.maximum(replicas_of_segment(plans)[0, 0] * plans.cp, 1)
    share: Floats = np.maximum(plans.shard_group, 1) / copies
    return share


def is_one_job(plans: Plans) -> Flags:
    """All replicas are cut alike, recompute the same and have as many micro-batches: what any
    framework launches as one job, on whatever GPUs the ranks lie. (plan,)
    """
    held = np.ones(len(plans), np.bool_)
    if plans.replicas.shape[0] == 1:
        return held
    slot = slot_of_stage(plans)
    for row in range(1, plans.replicas.shape[0]):
        same = _alike(plans, slot, 0, row, SETTINGS)
        same &= plans.micro_batches[row] == plans.micro_batches[0]
        held &= same | (plans.replicas[row] == 0)
    return held


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayersShared:
    """Where every layer lies in each pipeline."""

    stages: Stages
    run: Ints  # (pipeline, layer, plan)
    there: Flags  # likewise: whether the pipeline is there

    def slowest_of_layer(self, column: Floats) -> Floats:
        """For every run, the most that any run with a layer of it has. (pipeline, run, plan)"""
        each = np.where(self.there, np.take_along_axis(column, self.run, axis=1), -np.inf)
        slowest = each.max(axis=0)
        found = column.copy()
        for pipeline in range(len(column)):
            at = self.run[pipeline], np.arange(column.shape[-1])
            np.maximum.at(found[pipeline], at, np.where(self.there[pipeline], slowest, -np.inf))
        return found

    def at_slowest(self, column: Floats, weights: Floats) -> Floats:
        """Seconds of one stage of each run, shared out among its layers by their weights (layer,);
        of each layer those of the pipeline that takes longest; summed up again.
        """
        held = np.zeros(column.shape)
        weight = np.broadcast_to(weights[:, np.newaxis], self.run.shape[1:])
        for pipeline in range(len(column)):
            at = self.run[pipeline], np.arange(column.shape[-1])
            np.add.at(held[pipeline], at, np.where(self.there[pipeline], weight, 0.0))
        count = np.maximum(self.stages.count, 1)
        each = np.where(held > 0, column * count / np.where(held > 0, held, 1.0), 0.0)
        each = np.take_along_axis(each, self.run, axis=1) * weight
        slowest = np.where(self.there, each, 0.0).max(axis=0)
        found = np.zeros(column.shape)
        for pipeline in range(len(column)):
            at = self.run[pipeline], np.arange(column.shape[-1])
            np.add.at(found[pipeline], at, np.where(self.there[pipeline], slowest, 0.0))
        return np.where(held > 0, found / count, column)


def layers_shared(stages: Stages, layers: int) -> LayersShared:
    """The map of plans whose pipelines hold so many layers each."""
    each = stages.kind_layers.sum(axis=0) * stages.count
    ends = np.cumsum(each, axis=1)
    place = np.arange(layers)[:, np.newaxis]
    run = np.zeros((each.shape[0], layers, each.shape[2]), np.int64)
    for row in range(each.shape[1] - 1):
        run += place >= ends[:, row][:, np.newaxis]
    there = (stages.count.sum(axis=1) > 0)[:, np.newaxis] & (place < ends[:, -1:])
    return LayersShared(stages, run, np.broadcast_to(there, run.shape))
