"""Variants of layouts that can be fast enough: what recompute and offload add at least."""

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, Task, code
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.variants import Variants
from astra.strategy.view import view_of
from astra.timing.constants import timing_constants
from astra.timing.layer import LayerCache
from astra.timing.stage import StageTime, stage_times, stage_work

UNIFORM, BLOCK = code("recompute", "full:uniform"), code("recompute", "full:block")


def least_added_s(
    layouts: Plans, variants: Variants, task: Task, stack: Stack, book: LayerCache
) -> Floats:
    """What the bound of each variant exceeds that of its layout by, at least. (variant,) [s]

        T' >= T + m d - d_1 + x h

    Every stage does d seconds more for each of m micro-batches, d that of the stage to which it
    adds least; behind d_1, that of the first stage, more of its gradient reduction can hide. A
    share x of the optimizer on the host adds x h. Sharded parameters are gathered and reduced in
    every micro-batch, and what shows of it without may hide behind d: see `_less_hidden`. With one
    micro-batch it may be less than zero.
    """
    view = view_of(layouts, task)
    times = stage_times(view, stack, stage_work(view, stack, book))
    rows, used = variants.rows, view.stages.count[0] > 0
    layers = np.maximum(view.stages.kind_layers[:, 0].sum(axis=0), 1)
    whole = times.work.layers_forward_s[0]
    each = np.where(used, whole / layers, np.inf).min(axis=0)
    fewest = np.where(used, layers, layers.max(initial=1)).min(axis=0)
    most = _whole_layers(variants, layouts.vpp[rows])  # of a stage that has as many
    least = np.minimum(most, fewest[rows]) * each[rows]
    first = np.minimum(most / layers[0][rows], 1.0) * whole[0][rows]
    for place, module in enumerate(MODULES):
        chosen = variants.modules >> place & 1
        if chosen.any():
            again = times.work.module_s[module][0]
            least = least + chosen * np.where(used, again, np.inf).min(axis=0)[rows]
            first = first + chosen * again[0][rows]
    count, sharded = layouts.micro_batches[0][rows], is_word(layouts, "sharding", "parameters")
    more = count * least - first
    if sharded.any():
        more = np.where(sharded[rows], count * _less_hidden(least, rows, times), more)
    return more + variants.offloaded * times.host_s(slice(0, 1))[0, 0][rows]


def _less_hidden(least: Floats, rows: Ints, times: StageTime) -> Floats:
    """What a stage takes longer that does d seconds more of each micro-batch on the way back. [s]

        d - (1 - s) min(d, u)

    with u the seconds of its traffic that had nothing to hide behind, and s what hidden traffic
    slows the compute beside it by: at least, with the most u and the least s of any stage.
    """
    copies, used = times.work.data_parallel, times.view.stages.count[0] > 0
    hides = (copies.gather_s + copies.reduce_s) * (1 - timing_constants().shows.data)
    bare = np.maximum(hides - times.work.backward_s, 0.0)[0][:, times.rows]
    bare = np.where(used & times.view.plans.overlap_param_gather, bare, 0.0).max(axis=0)
    slow = np.where(used, copies.slowdown[0][:, times.rows], 1.0).min(axis=0)
    return least - (1 - slow[rows]) * np.minimum(least, bare[rows])


def _whole_layers(variants: Variants, vpp: Ints) -> Floats:
    """Layers of a stage that are recomputed whole: all, or so many of each chunk."""
    some = np.where(variants.recompute == BLOCK, 1.0 * vpp * variants.layers, 0.0)
    return np.where(variants.recompute == UNIFORM, np.inf, some)
