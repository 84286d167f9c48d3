"""The list of all bounds on plans.

No simulated step of a plan that fits is shorter than any of `BOUNDS` says of it: one property test
holds them all against the simulator. The formulas are in `timing/plan_bounds.py` and
`timing/group_bounds.py`.
"""

from collections.abc import Callable

import numpy as np

from astra.cost.stages import times_of
from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Plans, Task
from astra.strategy.stage_view import stage_view, without_layers
from astra.timing.group_bounds import group_bounds
from astra.timing.layer import LayerCache, Work, layers_of, work_of
from astra.timing.plan_bounds import fill_bound_s, step_bound_s, work_bound_s

# ------------------------------------------------------------------ all bounds, with one signature

Bound = Callable[[Plans, Task, Stack, float], Floats]  # plans, task, stack, margin -> (plan,) [s]


def _work(plans: Plans, task: Task, stack: Stack) -> Work:
    """What the layers of each plan take."""
    cache = LayerCache()
    rows = layers_of(without_layers(plans, task), stack, cache).rows[0, 0]
    return work_of(cache, task.model, rows)


def _work_s(plans: Plans, task: Task, stack: Stack, _: float) -> Floats:
    work = _work(plans, task, stack)
    return work_bound_s(plans.micro_batches[0], plans.pp[0], work.total_s)


def _fill_s(plans: Plans, task: Task, stack: Stack, _: float) -> Floats:
    work = _work(plans, task, stack)
    return fill_bound_s(plans, work.layer_s, work.head_s, stack)


def _step_s(plans: Plans, task: Task, stack: Stack, _: float) -> Floats:
    view = stage_view(plans, task)
    return step_bound_s(view, times_of(view, stack))


def _group_s(plans: Plans, task: Task, stack: Stack, margin: float) -> Floats:
    """Of stages with equal chunks: replica groups have no others."""
    bound = group_bounds(plans, task, stack, LayerCache())
    group_s = bound.step_s(plans.micro_batches[0])
    return np.where(plans.chunking < 0, group_s, _step_s(plans, task, stack, margin))


BOUNDS: dict[str, Bound] = {
    "work": _work_s,
    "fill": _fill_s,
    "step": _step_s,
    "group": _group_s,
}
