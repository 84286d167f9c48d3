"""How many micro-batches a make can take within a time: bounds as a function of their number."""

from dataclasses import dataclass, fields

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.stage_view import stage_view
from astra.timing.bounds import interleaved_bound_s, one_f_one_b_bound_s
from astra.timing.data_parallel import stage_inter_group_s
from astra.timing.layer import LayerCache
from astra.timing.stage import stage_times, stage_work

BLOCK = 1 << 14  # plans of one table


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReplicaLines:
    """Seconds of makes, each of one pipeline. (slot, make) and (make,)"""

    stages: Ints
    forward_s: Floats
    backward_s: Floats
    link_s: Floats
    head_s: Floats  # part of the stage: in its last chunk
    vpp: Ints  # (make,)
    once_s: Floats  # (make,) gather that the first micro-batch waits for, and what comes last
    inter_group_s: Floats  # (make,) gradients of the first stage exchanged with one other make
    straggler_s: Floats  # (make,) of one micro-batch, for every doubling of the GPUs

    def take(self, rows: Ints) -> "ReplicaLines":
        return ReplicaLines(*(getattr(self, each.name)[..., rows] for each in fields(self)))

    def bound_s(self, micro_batches: Ints, doublings: float, several: bool) -> Floats:
        """Least step of a plan that has this make, and perhaps others. (make,)"""
        link, turns = self.link_s, self.vpp > 1
        pipeline = one_f_one_b_bound_s(
            self.stages, self.forward_s, self.backward_s, micro_batches, link, link
        )
        if turns.any():
            both = self.forward_s + self.backward_s
            first = (both - self.head_s) / self.vpp
            none, chunks = np.zeros((1, 1, 1)), np.stack([first, both - first])
            least = interleaved_bound_s(self.stages, chunks, none, micro_batches, link, link)
            pipeline = np.where(turns, least, pipeline)
        last = self.once_s + (self.inter_group_s if several else 0.0)
        return pipeline + last + doublings * micro_batches * self.straggler_s

    @property
    def unit(self) -> Ints:
        """Micro-batches come in so many: interleaved, one for every stage. (make,)"""
        return np.where(self.vpp > 1, self.stages.sum(axis=0), 1)

    def most(self, limit_s: float, doublings: float, highest: Ints, several: bool) -> Ints:
        """Most micro-batches of each make that end before the limit; 0 where none does. (make,)"""
        unit = self.unit
        low, high = np.zeros_like(highest), highest // unit
        while (low < high).any():
            middle = (low + high + 1) // 2
            ends = self.bound_s(np.maximum(middle, 1) * unit, doublings, several) < limit_s
            low, high = np.where(ends, middle, low), np.where(ends, high, middle - 1)
        return low * unit


def lines_of(plans: Plans, task: Task, stack: Stack, book: LayerCache) -> ReplicaLines:
    """Of plans with one pipeline, whatever their micro-batches."""
    parts = []
    for start in range(0, max(len(plans), 1), BLOCK):
        some = plans.take(slice(start, start + BLOCK))
        view = stage_view(some, task)
        times = stage_times(view, stack, stage_work(view, stack, book))
        opening, two = slice(0, 1), np.full(len(view.shared.plans), 2)
        count = view.stages.count[0]
        once = times.first_gather_s(opening) + times.last_reduce_s(opening) + times.tied_s(opening)
        once = once + times.optimizer_s(opening) + stack.step_s
        parts.append(
            (
                count,
                np.broadcast_to(times.whole_forward_s[0], count.shape),
                np.broadcast_to(times.whole_backward_s[0], count.shape),
                np.broadcast_to(times.part("link_s")[0], count.shape),
                np.broadcast_to(
                    (times.part("head_forward_s") + times.part("head_backward_s"))[0], count.shape
                ),
                some.vpp,
                once[0, 0],
                stage_inter_group_s(view.shared, stack, two, two < 2)[0, 0][view.rows],
                times.straggler_s(opening)[0, 0],
            )
        )
    most = max(part[0].shape[0] for part in parts)
    return ReplicaLines(
        *(
            np.concatenate([_deep(c, most) for c in column], axis=-1)
            for column in zip(*parts, strict=True)
        )
    )


def _deep(column: Floats, most: int) -> Floats:
    """With unused runs behind the used ones."""
    if column.ndim == 1 or len(column) == most:
        return column
    return np.pad(column, ((0, most - len(column)), (0, 0)))
