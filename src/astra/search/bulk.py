"""A whole table of plans at once: does each fit, and how fast can it be at best?"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from astra.hardware.stack import Stack
from astra.memory.stage import (
    MemoryColumns,
    lower_bound_bytes,
    memory_of,
    offload_frees_bytes,
    shared_bytes,
)
from astra.search.step import chunks_of
from astra.strategy.plans import Flags, Floats, Ints, Plans, Task
from astra.strategy.view import View, view_of, views_of
from astra.timing.bounds import (
    interleaved_bound_s,
    interleaved_tight_bound_s,
    one_f_one_b_bound_s,
)
from astra.timing.layer import LayerCache
from astra.timing.stage import StageTime, stage_times, stage_work

BLOCK_ROWS = 1 << 14  # plans whose columns stay in cache together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Bulk:
    """What a search needs of every plan before it simulates any. (plan,)"""

    bound_s: Floats  # no simulated step is shorter
    filled_fraction: Floats  # of the usable memory, on the fullest stage
    fits: Flags


def bulk_of(
    plans: Plans, task: Task, stack: Stack, margin: float = 0.05, book: LayerCache | None = None
) -> Bulk:
    """Memory and the least step of many plans of one task with one pipeline each.

    Plans that differ only in how much of the optimizer is offloaded are worked out once, with
    nothing offloaded; what it takes and what it frees is added.
    """
    fraction = plans.offload_optimizer_fraction
    first, rows = plans.without(("offload_optimizer_fraction",))
    nothing = np.broadcast_to(0.0, len(first))
    kept = replace(plans.take(_stride(first, len(plans))), offload_optimizer_fraction=nothing)
    bounds, host_s = np.zeros(len(kept)), np.zeros(len(kept))
    filled = {value: np.zeros(len(kept)) for value in _distinct(fraction)}
    shared = None
    for block, view in enumerate(views_of(kept, task, BLOCK_ROWS)):
        if shared is None:
            shared = stage_work(view, stack, book), shared_bytes(view, stack)
        some = slice(block * BLOCK_ROWS, block * BLOCK_ROWS + len(view.plans))
        times = stage_times(view, stack, shared[0])
        bounds[some], host_s[some] = bound_s(view, times), times.host_s(slice(0, 1))[0, 0]
        needed = _needed_bytes(memory_of(view, stack, shared[1]), stack)
        for value, column in filled.items():
            freed = offload_frees_bytes(shared[1], value) * (1 + stack.slack_fraction)
            column[some] = _fullest(view, needed - freed[..., view.rows] if value else needed)
    each = np.zeros(len(plans))
    for value, column in filled.items():
        here = np.flatnonzero(fraction == value)
        each[here] = column[rows[here]]
    return Bulk(
        bound_s=bounds[rows] + fraction * host_s[rows],
        filled_fraction=each,
        fits=each <= 1 - margin,
    )


def _stride(rows: NDArray[np.intp], count: int) -> slice | NDArray[np.intp]:
    """These rows as a slice where every n-th is taken: nothing need be copied."""
    step = count // max(len(rows), 1)
    if step * len(rows) == count and (rows == np.arange(0, count, step)).all():
        return slice(0, count, step)
    return rows


def _distinct(column: Floats) -> list[float]:
    """The few values of a column, without sorting it."""
    found = []
    while len(column):
        found.append(float(column[0]))
        column = column[column != column[0]]
    return found


def work_bound_s(micro_batches: Ints, stages: Ints, work_s: Floats) -> Floats:
    """A first bound that asks for no stages: the busiest one does no less than the mean. [s]

    T >= m (all layers and ends, forward and backward) / p
    """
    return micro_batches * work_s / stages


def filled_fraction(view: View, memory: MemoryColumns, stack: Stack) -> Floats:
    """Reserved and runtime memory over what is usable, on the stage that it fills most."""
    return _fullest(view, _needed_bytes(memory, stack))


def _needed_bytes(memory: MemoryColumns, stack: Stack) -> Floats:
    return memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes


def least_filled_fraction(view: View, stack: Stack, offloaded: float) -> Floats:
    """The same for what every variant of a layout needs at least."""
    return _fullest(view, lower_bound_bytes(view, stack, offloaded))


def _fullest(view: View, needed: Floats) -> Floats:
    usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
    filled = needed / usable[view.stages.of(view.plans.gpu)]
    return np.where(view.stages.count > 0, filled, 0.0).max(axis=(0, 1))


def bound_s(view: View, times: StageTime) -> Floats:
    """Least step of every plan with one pipeline. [s]

    The pipeline's bound, behind the gather that its first operation waits for and before what
    its first stage does last: reduce, update, the rest.
    """
    opening = slice(0, 1)
    layers = np.maximum(view.plans.layers[0, 0], 1)
    lightest = layers // view.plans.vpp / layers  # share of the first chunk
    first = times.first_gather_s(opening)[0, 0] * lightest
    return first + _pipeline_bound_s(view, times) + times.step_end_s(opening)[0, 0]


def _pipeline_bound_s(view: View, times: StageTime) -> Floats:
    count, batches = view.stages.count[0], view.plans.micro_batches[0]
    forward, backward = times.whole_forward_s[0], times.whole_backward_s[0]
    link = np.broadcast_to(times.part("link_s")[0], count.shape)
    turns = view.plans.vpp > 1
    found = np.zeros(len(view.plans))
    if not turns.all():  # for all rows: apart from the others they would have to be copied
        found = one_f_one_b_bound_s(count, forward, backward, batches, link, link)
    if turns.any():
        head = times.part("head_forward_s")[0] + times.part("head_backward_s")[0]
        both = _chunks(forward + backward, head, view.plans.vpp)
        none = np.zeros((1, 1, 1))  # the bound asks only for the sum of both ways
        found = np.where(turns, interleaved_bound_s(count, both, none, batches, link, link), found)
    return found


def tight_bound_s(plans: Plans, task: Task, stack: Stack, book: LayerCache | None = None) -> Floats:
    """A bound that mostly is the simulated step, for few plans that are interleaved. (plan,) [s]

    It costs a fraction of a simulation, and is right but for rounding. 0 where nothing better is
    known than `bound_s`.
    """
    found = np.zeros(len(plans))
    listed = plans.chunking >= 0  # layers of every chunk: stages of a slot may differ in them
    for every_stage in (False, True):
        rows = np.flatnonzero((plans.vpp > 1) & (listed == every_stage))
        if len(rows):
            view = view_of(plans.take(rows), task, every_stage)
            found[rows] = tight_step_s(
                view, stage_times(view, stack, stage_work(view, stack, book))
            )
    return found


def tight_step_s(view: View, times: StageTime) -> Floats:
    """The same of interleaved plans whose stages are known. (plan,) [s]"""
    plans, count = view.plans, view.stages.count[0]
    chunks = chunks_of(plans, view.stages, times, 0)
    link = np.broadcast_to(times.part("link_s")[0], count.shape)
    last = (count > 0).sum(axis=0) - 1
    pipeline = interleaved_tight_bound_s(
        count,
        chunks.forward_s,
        chunks.backward_s,
        plans.micro_batches[0],
        link,
        link,
        chunks.first_gather_s,
        wrap_link_s=link[last, np.arange(len(plans))],
        chunks=plans.vpp,
        group=plans.microbatch_group,
        extra_warmup=plans.overlap_ep.astype(np.int64),
    )
    return pipeline + times.step_end_s(slice(0, 1))[0, 0]


def _chunks(stage_s: Floats, head_s: Floats, vpp: Ints) -> Floats:
    """The first chunk at its least, and the rest. (chunk, slot, plan)

    The bound asks for no more. The first chunk of a stage may be the lighter one by a layer, so
    half of an even share is taken for it; the head lies on the last.
    """
    first = (stage_s - head_s) / (2 * vpp)
    return np.stack([first, stage_s - first])
