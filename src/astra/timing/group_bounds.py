"""Least step of one replica group, whatever the number of its micro-batches."""

from dataclasses import dataclass, fields

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.stage_view import stage_view
from astra.timing.layer import LayerCache
from astra.timing.plan_bounds import pipeline_bound_s
from astra.timing.stage import stage_times, stage_work

ROWS_PER_VIEW = 1 << 14  # plans whose columns stay in cache together


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupBound:
    """Seconds of plans with one pipeline, from which their bounds follow. (slot, plan), (plan,)"""

    stages: Ints
    stage_s: Floats  # of one stage and micro-batch there and back, as all below
    link_s: Floats  # one way
    head_s: Floats  # part of the last stage: in its last chunk
    vpp: Ints  # (plan,)
    once_s: Floats  # (plan,) per step: first gather, last reduction, optimizer
    straggler_s: Floats  # (plan,) per micro-batch, of the GPUs of this group alone

    def take(self, rows: Ints) -> "GroupBound":
        """The plans at `rows`."""
        return GroupBound(*(getattr(self, each.name)[..., rows] for each in fields(self)))

    @property
    def unit(self) -> Ints:
        """Micro-batches come in so many: interleaved, one for every stage. (plan,)"""
        return np.where(self.vpp > 1, self.stages.sum(axis=0), 1)

    def step_s(self, micro_batches: Ints) -> Floats:
        """Least step with so many micro-batches. (plan,) [s]

        T >= bound of the pipeline + once + m straggler
        """
        link_s = self.link_s
        chunk_s = (self.stage_s - self.head_s) / self.vpp  # chunks of a stage have equal layers
        first_s = np.where(self.vpp > 1, chunk_s, self.stage_s)
        pipeline_s = pipeline_bound_s(
            self.stages, first_s, self.stage_s, micro_batches, link_s, link_s
        )
        return pipeline_s + self.once_s + micro_batches * self.straggler_s

    def most(self, limit_s: float, cap: Ints) -> Ints:
        """Most micro-batches, up to a cap, that end before the limit; 0 where none does. (plan,)"""
        unit = self.unit
        low, high = np.zeros_like(cap), cap // unit
        while (open_ := low < high).any():
            middle = (low + high + 1) // 2
            ends = self.step_s(np.maximum(middle, 1) * unit) < limit_s
            low = np.where(open_ & ends, middle, low)
            high = np.where(open_ & ~ends, middle - 1, high)
        return low * unit


def group_bounds(plans: Plans, task: Task, stack: Stack, cache: LayerCache) -> GroupBound:
    """Of plans with one pipeline each, alone or beside groups on other types: what these exchange
    with each other is left out.

    For `search/data_parallel.py`.
    """
    starts = range(0, max(len(plans), 1), ROWS_PER_VIEW)
    parts = [
        _of_block(plans.take(slice(start, start + ROWS_PER_VIEW)), task, stack, cache)
        for start in starts
    ]
    return joined_bounds(parts)


def joined_bounds(parts: list[GroupBound]) -> GroupBound:
    """Those of several tables, one after the other."""
    slots = max(len(part.stages) for part in parts)

    def padded(column: Floats) -> Floats:
        missing = slots - len(column)
        return np.pad(column, ((0, missing), (0, 0))) if column.ndim > 1 and missing else column

    names = [each.name for each in fields(GroupBound)]
    return GroupBound(
        *(np.concatenate([padded(getattr(p, name)) for p in parts], axis=-1) for name in names)
    )


def _of_block(plans: Plans, task: Task, stack: Stack, cache: LayerCache) -> GroupBound:
    view = stage_view(plans, task)
    times = stage_times(view, stack, stage_work(view, stack, cache))
    first, count = slice(0, 1), view.stages.count[0]
    gather = times.first_gather_s(first) / plans.vpp  # of the first chunk
    once = gather + times.last_reduce_s(first) + times.tied_s(first)
    once = (once + times.optimizer_s(first) + stack.step_s)[0, 0]
    head_s = times.part("head_forward_s") + times.part("head_backward_s")
    return GroupBound(
        count,
        np.broadcast_to((times.whole_forward_s + times.whole_backward_s)[0], count.shape),
        np.broadcast_to(times.part("link_s")[0], count.shape),
        np.broadcast_to(head_s[0], count.shape),
        plans.vpp,
        once,
        times.straggler_s(first)[0, 0] * np.log2(plans.gpus),
    )
