"""Bounds that know of memory, and the list of all bounds.

No simulated step of a plan that fits is shorter than any of `BOUNDS` says of it: one property test
holds them all against the simulator. Those that need seconds alone are in `timing/plan_bounds.py`.

Stage k cannot begin before a first chunk has passed the k stages above it, nor end before one
has come back:  T >= k c + m t_k,  with c the time of one layer, both ways, and t_k that of the
stage for one of m micro-batches.

On p stages with q_i micro-batches in flight, w bytes of states and A bytes of activations per
layer and micro-batch, L layers can be shared out only if

    L <= sum over stages of  C / (w + q_i A)

with C the bytes a GPU has: no stage holds more than C / (w + q_i A) layers. In 1F1B, which needs
the least, q_i = min(m, p - i). Where that fails for A without recompute, modules or whole layers
are recomputed, and the least time that this takes is added to the work of the layout's degrees.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.activations import checkpoint_bytes, layer_bytes, shard_sizes
from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import count, layer_weights
from astra.strategy.enumerate import recompute_module_sets
from astra.strategy.plans import Flags, Floats, Plans, Task, dtype_bytes
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.space import Workload
from astra.strategy.stage_view import StageView, stage_view, without_layers
from astra.strategy.variants import Variants
from astra.timing.group_bounds import group_bounds
from astra.timing.layer import LayerCache, Layers, Rows, Work, layers_of, work_of
from astra.timing.plan_bounds import (
    fill_bound_s,
    step_bound_s,
    tight_bound_s,
    variant_added_s,
    work_bound_s,
)
from astra.timing.stage import stage_times

HALVINGS = 10  # of the share of layers that are recomputed whole


def forced_recompute_bound_s(
    plans: Plans,
    task: Task,
    stack: Stack,
    margin: float,
    modules: tuple[str, ...],
    cache: LayerCache,
) -> tuple[Floats, Rows]:
    """Least step of any plan of these degrees, and the row of its layer in the cache. (plan,) [s]

    The mean over stages of  k c + m t_k,  recompute counted; or the stages with most layers: at
    least ceil(L / p), on r = L mod p of them (on all where r is 0), of which one lies below r - 1
    others, unless some stage has one layer more still:

        T >= m ceil(L / p) c + min(r - 1, m) c

    `modules`: those that plans may recompute alone.
    """
    view = without_layers(plans, task)
    layers = layers_of(view, stack, cache)
    rows = layers.rows[0, 0]
    work, least, _ = work_of(cache, task.model, rows)
    stages, batches = plans.pp[0], plans.micro_batches[0]
    recompute_s = forced_recompute_s(view, layers, stack, margin, modules)
    mean = batches * (work + recompute_s) / stages + (stages - 1) / 2 * least
    total = task.model.layers
    most = np.where(total % stages == 0, stages, total % stages)
    whole = least * (batches * -(-total // stages) + np.minimum(most - 1, batches))
    return np.maximum(mean, whole), rows


def forced_recompute_s(
    view: StageView, layers: Layers, stack: Stack, margin: float, modules: tuple[str, ...]
) -> Floats:
    """Recompute of all layers for one micro-batch that no plan of these degrees can do without. [s]

    Zero where a runtime recomputes otherwise.
    """
    plans, task = view.plans, view.task
    if task.runtime not in ("megatron", "flagscale") or plans.offload_activations.any():
        return np.zeros(len(plans))
    shards = shard_sizes(view, stack)
    kinds, times = layer_kinds(task.model).kinds, layers.kinds
    usable_bytes = min(pool.gpu.usable_bytes for pool in task.cluster.pools) * (1 - margin)
    usable_bytes /= 1 + stack.slack_fraction
    states_bytes = _states_bytes(plans, task)

    def saved_bytes(chosen: tuple[str, ...]) -> Floats:
        bits = float(sum(1 << MODULES.index(module) for module in chosen))
        own = replace(shards, modules=np.full((1, 1, 1), bits))
        bytes_of = [layer_bytes(kind, plans, own, task)[0, 0] for kind in kinds]
        return np.min(bytes_of, axis=0) * stack.activation_factor

    none = saved_bytes(())
    fits = _fits(none, states_bytes, plans, task, usable_bytes)
    extra = np.where(fits, 0.0, np.inf)
    for n in range(1, len(modules) + 1):
        for chosen in combinations(modules, n):
            seconds = np.min(
                [sum((time.module_s[m][0, 0] for m in chosen), np.zeros(1)) for time in times],
                axis=0,
            )
            enough = _fits(saved_bytes(chosen), states_bytes, plans, task, usable_bytes)
            extra = np.where(enough, np.minimum(extra, seconds), extra)
    rows = np.flatnonzero(~fits)
    if len(rows):
        whole_s = np.min([time.forward_s[0, 0] for time in times], axis=0)
        input_bytes = np.broadcast_to(checkpoint_bytes(task.model, shards)[0, 0], len(plans))
        some = plans.take(rows)
        share = _least_share(
            none[rows], input_bytes[rows], states_bytes[rows], some, task, usable_bytes
        )
        extra[rows] = np.minimum(extra[rows], share * whole_s[rows])
    return task.model.layers * extra


def _states_bytes(plans: Plans, task: Task) -> Floats:
    """Weights and gradients of a layer that no sharding of the optimizer divides."""
    model = task.model
    if model.moe is not None:
        return np.zeros(len(plans))
    least = min(count(layer_weights(model, kind)) for kind in layer_kinds(model).kinds)
    saved_bytes = is_word(plans, "sharding", "none") | is_word(plans, "sharding", "optimizer")
    each = 2.0 + np.minimum(dtype_bytes(plans, "main_grads_dtype"), 2.0)
    return np.where(saved_bytes, least / plans.tp[0, 0] * each, 0.0)


def _fits(
    saved_bytes: Floats, states_bytes: Floats, plans: Plans, task: Task, usable_bytes: float
) -> Flags:
    """Whether the layers can be shared out; sums over stages from above, by an integral."""
    stages = plans.pp[0]
    flying = np.minimum(plans.micro_batches[0], stages)
    first = 1 / (states_bytes + saved_bytes)
    ramp = (
        np.log((states_bytes + flying * saved_bytes) / (states_bytes + saved_bytes)) / saved_bytes
    )
    rest = (stages - flying) / (states_bytes + flying * saved_bytes)
    found: Flags = task.model.layers <= usable_bytes * (first + ramp + rest)
    return found


def _least_share(
    none: Floats,
    input_bytes: Floats,
    states_bytes: Floats,
    plans: Plans,
    task: Task,
    usable_bytes: float,
) -> Floats:
    """The least share of layers that must be recomputed whole for the others to fit."""
    low, high = np.zeros(len(plans)), np.ones(len(plans))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = _fits(
            (1 - middle) * none + middle * input_bytes, states_bytes, plans, task, usable_bytes
        )
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low


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


def _forced_recompute_s(plans: Plans, task: Task, stack: Stack, margin: float) -> Floats:
    workload = Workload(task, int(plans.global_batch[0]), int(plans.seq_len[0]))
    modules = tuple(sorted({each for some in recompute_module_sets(workload) for each in some}))
    return forced_recompute_bound_s(plans, task, stack, margin, modules, LayerCache())[0]


def _step_s(plans: Plans, task: Task, stack: Stack, _: float) -> Floats:
    view = stage_view(plans, task)
    return step_bound_s(view, stage_times(view, stack))


def _tight_s(plans: Plans, task: Task, stack: Stack, _: float) -> Floats:
    return tight_bound_s(plans, task, stack)


def _variant_s(plans: Plans, task: Task, stack: Stack, margin: float) -> Floats:
    """The bound of the layout, and what recompute and offload add to it."""
    codes = ("recompute", "recompute_layers", "recompute_modules")
    first, rows = plans.without((*codes, "offload_optimizer_fraction"))
    mode, layers, modules = (getattr(plans, name)[0, 0] for name in codes)
    offloaded = plans.offload_optimizer_fraction
    variants = Variants(
        rows=rows, recompute=mode, layers=layers, modules=modules, offloaded=offloaded
    )
    layouts = plans.take(first)
    bare = {name: np.zeros_like(getattr(layouts, name)) for name in codes}
    layouts = replace(layouts, offload_optimizer_fraction=np.zeros(len(layouts)), **bare)
    added = variant_added_s(layouts, variants, task, stack, LayerCache())
    return _step_s(layouts, task, stack, margin)[rows] + added


def _group_s(plans: Plans, task: Task, stack: Stack, margin: float) -> Floats:
    """Of stages with equal chunks: replica groups have no others."""
    bound = group_bounds(plans, task, stack, LayerCache())
    group_s = bound.step_s(plans.micro_batches[0])
    return np.where(plans.chunking < 0, group_s, _step_s(plans, task, stack, margin))


BOUNDS: dict[str, Bound] = {
    "work": _work_s,
    "fill": _fill_s,
    "forced recompute": _forced_recompute_s,
    "step": _step_s,
    "tight": _tight_s,
    "variant": _variant_s,
    "group": _group_s,
}
