"""Least step of one replica group, whatever the number of its micro-batches."""

from dataclasses import dataclass, fields

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.stage_view import stage_view
from astra.timing.bounds import interleaved_bound_s, one_f_one_b_bound_s
from astra.timing.layer import LayerCache
from astra.timing.stage import stage_times, stage_work

ROWS_PER_VIEW = 1 << 14  # plans whose columns stay in cache together


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupBound:
    """Seconds of plans with one pipeline, from which their bounds follow. (slot, plan), (plan,)"""

    stages: Ints
    forward_s: Floats  # of one stage and micro-batch, as all below
    backward_s: Floats
    link_s: Floats
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
        link, turns = self.link_s, self.vpp > 1
        pipeline = one_f_one_b_bound_s(
            self.stages, self.forward_s, self.backward_s, micro_batches, link, link
        )
        if turns.any():
            both = self.forward_s + self.backward_s
            first = (both - self.head_s) / self.vpp  # chunks of a stage have equal layers
            none, chunks = np.zeros((1, 1, 1)), np.stack([first, both - first])
            least = interleaved_bound_s(self.stages, chunks, none, micro_batches, link, link)
            pipeline = np.where(turns, least, pipeline)
        return pipeline + self.once_s + micro_batches * self.straggler_s

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
        np.broadcast_to(times.whole_forward_s[0], count.shape),
        np.broadcast_to(times.whole_backward_s[0], count.shape),
        np.broadcast_to(times.part("link_s")[0], count.shape),
        np.broadcast_to(head_s[0], count.shape),
        plans.vpp,
        once,
        times.straggler_s(first)[0, 0] * np.log2(plans.gpus),
    )
