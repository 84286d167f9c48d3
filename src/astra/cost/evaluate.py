"""A whole table of plans at once: does each fit, and how fast can it be at best?"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from astra.cost.stages import times_of
from astra.cost.step import step_s
from astra.hardware.stack import Stack
from astra.memory.stage import (
    MemoryColumns,
    lower_bound_bytes,
    memory_of,
    offload_frees_bytes,
    shared_bytes,
)
from astra.strategy.plans import Flags, Floats, Plans, Task
from astra.strategy.stage_view import StageView, stage_view, stage_views
from astra.timing.layer import LayerCache
from astra.timing.plan_bounds import step_bound_s
from astra.timing.stage import stage_times, stage_work

ROWS_PER_BLOCK = 1 << 14  # plans whose columns stay in cache together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Evaluation:
    """What a search needs of every plan before it simulates any. (plan,)"""

    bound_s: Floats  # no simulated step is shorter
    memory_fraction: Floats  # of the usable memory, on the fullest stage
    fits: Flags


def evaluate(
    plans: Plans, task: Task, stack: Stack, margin: float = 0.05, cache: LayerCache | None = None
) -> Evaluation:
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
    for block, view in enumerate(stage_views(kept, task, ROWS_PER_BLOCK)):
        if shared is None:
            shared = stage_work(view, stack, cache), shared_bytes(view, stack)
        some = slice(block * ROWS_PER_BLOCK, block * ROWS_PER_BLOCK + len(view.plans))
        memory = memory_of(view, stack, shared[1])
        times = stage_times(view, stack, shared[0], memory.offloaded_per_micro_batch_bytes)
        bounds[some], host_s[some] = step_bound_s(view, times), times.host_s(slice(0, 1))[0, 0]
        needed = _needed_bytes(memory, stack)
        for value, column in filled.items():
            freed = offload_frees_bytes(shared[1], value) * (1 + stack.slack_fraction)
            column[some] = _fullest(view, needed - freed[..., view.rows] if value else needed)
    each = np.zeros(len(plans))
    for value, column in filled.items():
        here = np.flatnonzero(fraction == value)
        each[here] = column[rows[here]]
    return Evaluation(
        bound_s=bounds[rows] + fraction * host_s[rows],
        memory_fraction=each,
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


def memory_fraction(view: StageView, memory: MemoryColumns, stack: Stack) -> Floats:
    """Reserved and runtime memory over what is usable, on the stage that it fills most."""
    return _fullest(view, _needed_bytes(memory, stack))


def _needed_bytes(memory: MemoryColumns, stack: Stack) -> Floats:
    return memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes


def least_memory_fraction(view: StageView, stack: Stack, offloaded: float) -> Floats:
    """The same for what every variant of a layout needs at least."""
    return _fullest(view, lower_bound_bytes(view, stack, offloaded))


def _fullest(view: StageView, needed: Floats) -> Floats:
    usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
    filled = needed / usable[view.stages.of(view.plans.gpu)]
    return np.where(view.stages.count > 0, filled, 0.0).max(axis=(0, 1))


def simulate(plans: Plans, task: Task, stack: Stack, cache: LayerCache | None = None) -> Floats:
    """The step of every plan by the event simulator, whether it fits or not. (plan,) [s]"""
    view = stage_view(plans, task, every_stage=True)
    return step_s(view.plans, view.stages, times_of(view, stack, stage_work(view, stack, cache)))
