"""Variants of layouts that can be fast enough: what recompute and offload add at least."""

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, Task, code
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.variants import Variants
from astra.strategy.view import view_of
from astra.timing.layer import LayerBook
from astra.timing.stage import stage_base, stage_times

UNIFORM, BLOCK = code("recompute", "full:uniform"), code("recompute", "full:block")


def least_added_s(
    layouts: Plans, variants: Variants, task: Task, stack: Stack, book: LayerBook
) -> Floats:
    """What the bound of each variant exceeds that of its layout by, at least. (variant,) [s]

        T' >= T + m d - d_1 + x h

    Every stage does d seconds more for each of m micro-batches, d that of the stage to which it
    adds least; behind d_1, that of the first stage, more of its gradient reduction can hide. A
    share x of the optimizer on the host adds x h. Nothing is said of recompute with sharded
    parameters: their traffic hides behind it in every micro-batch. With one micro-batch it may
    be less than zero.
    """
    view = view_of(layouts, task)
    times = stage_times(view, stack, stage_base(view, stack, book))
    rows, used = variants.rows, view.stages.count[0] > 0
    layers = np.maximum(view.stages.kind_layers[:, 0].sum(axis=0), 1)
    whole = times.base.layers_forward_s[0]
    each = np.where(used, whole / layers, np.inf).min(axis=0)
    fewest = np.where(used, layers, layers.max(initial=1)).min(axis=0)
    most = _whole_layers(variants, layouts.vpp[rows])  # of a stage that has as many
    least = np.minimum(most, fewest[rows]) * each[rows]
    first = np.minimum(most / layers[0][rows], 1.0) * whole[0][rows]
    for place, module in enumerate(MODULES):
        chosen = variants.modules >> place & 1
        if chosen.any():
            again = times.base.module_s[module][0]
            least = least + chosen * np.where(used, again, np.inf).min(axis=0)[rows]
            first = first + chosen * again[0][rows]
    more = layouts.micro_batches[0][rows] * least - first
    more = np.where(is_word(layouts, "sharding", "parameters")[rows], 0.0, more)
    return more + variants.offloaded * times.host_s(slice(0, 1))[0, 0][rows]


def _whole_layers(variants: Variants, vpp: Ints) -> Floats:
    """Layers of a stage that are recomputed whole: all, or so many of each chunk."""
    some = np.where(variants.recompute == BLOCK, 1.0 * vpp * variants.layers, 0.0)
    return np.where(variants.recompute == UNIFORM, np.inf, some)
