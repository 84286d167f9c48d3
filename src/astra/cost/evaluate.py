"""A whole table of plans at once: does each fit, and how fast can it be at best?"""

from dataclasses import dataclass

import numpy as np

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
    least_offload: Floats  # of the optimizer, with which it fits; more than 1: it does not


def evaluate(
    plans: Plans, task: Task, stack: Stack, margin: float = 0.05, cache: LayerCache | None = None
) -> Evaluation:
    """Memory and the least step of many plans of one task with one pipeline each."""
    bounds, filled, offload = np.zeros((3, len(plans)))
    shared = None
    views = stage_views(plans, task, ROWS_PER_BLOCK) if len(plans) else ()
    for block, view in enumerate(views):
        if shared is None:
            shared = stage_work(view, stack, cache), shared_bytes(view, stack)
        some = slice(block * ROWS_PER_BLOCK, block * ROWS_PER_BLOCK + len(view.plans))
        memory = memory_of(view, stack, shared[1])
        times = stage_times(view, stack, shared[0], memory.offloaded_per_micro_batch_bytes)
        bounds[some] = step_bound_s(view, times)
        filled[some] = memory_fraction(view, memory, stack)
        offload[some] = _least_offload(view, memory, stack, margin)
    return Evaluation(
        bound_s=bounds, memory_fraction=filled, fits=filled <= 1 - margin, least_offload=offload
    )


def _least_offload(view: StageView, memory: MemoryColumns, stack: Stack, margin: float) -> Floats:
    """The part of the optimizer that has to be on the host, so that every stage fits. (plan,)

        needed(0) - (f optimizer - offload) (1 + slack) <= (1 - margin) usable

    with `offload` what the GPU holds for states that are on the host.
    """
    shared = {name: memory.part(name) for name in ("optimizer", "offload")}
    freed = offload_frees_bytes(shared, view.plans.offload_optimizer_fraction)
    over = _needed_bytes(memory, stack) - (1 - margin) * _usable_bytes(view)
    over = over / (1 + stack.slack_fraction) + freed
    states = np.where(shared["optimizer"] > 0, shared["optimizer"], np.nan)
    part = (over + shared["offload"]) / states
    least = np.where(over > 0, np.nan_to_num(part, nan=np.inf), 0.0)
    return np.where(view.stages.count > 0, least, 0.0).max(axis=(0, 1))


def memory_fraction(view: StageView, memory: MemoryColumns, stack: Stack) -> Floats:
    """Reserved and runtime memory over what is usable, on the stage that it fills most."""
    return _fullest(view, _needed_bytes(memory, stack))


def plans_memory_fraction(
    plans: Plans, task: Task, stack: Stack, every_stage: bool = False
) -> Floats:
    """The same of plans; of each stage apart where plans may have several GPU types."""
    view = stage_view(plans, task, every_stage=every_stage)
    return memory_fraction(view, memory_of(view, stack), stack)


def _needed_bytes(memory: MemoryColumns, stack: Stack) -> Floats:
    return memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes


def least_memory_fraction(view: StageView, stack: Stack, offloaded: float) -> Floats:
    """The same for what every variant of a layout needs at least."""
    return _fullest(view, lower_bound_bytes(view, stack, offloaded))


def _fullest(view: StageView, needed: Floats) -> Floats:
    filled = needed / _usable_bytes(view)
    return np.where(view.stages.count > 0, filled, 0.0).max(axis=(0, 1))


def _usable_bytes(view: StageView) -> Floats:
    usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
    found: Floats = usable[view.stages.of(view.plans.gpu)]
    return found


def simulate(plans: Plans, task: Task, stack: Stack, cache: LayerCache | None = None) -> Floats:
    """The step of every plan by the event simulator, whether it fits or not. (plan,) [s]"""
    view = stage_view(plans, task, every_stage=True)
    return step_s(view.plans, view.stages, times_of(view, stack, stage_work(view, stack, cache)))
