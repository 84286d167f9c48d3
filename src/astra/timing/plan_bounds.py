"""Bounds on the step of a table of plans, from the loosest to the tightest.

    work        the busiest stage does no less than the mean of all                   (degrees)
    fill        the pipeline is filled with whole layers before its last stage begins (layout)
    step        the closed forms of 1F1B and interleaved pipelines on stage seconds   (plan)
    tight       the same of interleaved plans, right but for rounding                 (plan)
    variant     what recompute and offload add to the bound of their layout           (variant)

`timing/bounds.py` has the closed forms; bounds that need bytes are in `cost/bounds.py`, with the
list of all of them that one test holds against the simulator.
"""

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, Task, code
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView, stage_view
from astra.strategy.variants import Variants
from astra.timing.bounds import (
    interleaved_bound_s,
    interleaved_tight_bound_s,
    one_f_one_b_bound_s,
)
from astra.timing.chunks import chunk_times
from astra.timing.constants import timing_constants
from astra.timing.layer import LayerCache
from astra.timing.stage import StageTime, stage_times, stage_work

UNIFORM, BLOCK = code("recompute", "full:uniform"), code("recompute", "full:block")


def work_bound_s(micro_batches: Ints, stages: Ints, work_s: Floats) -> Floats:
    """A first bound that asks for no stages: the busiest one does no less than the mean. [s]

    T >= m (all layers and ends, forward and backward) / p
    """
    return micro_batches * work_s / stages


def fill_bound_s(layouts: Plans, layer_s: Floats, head_s: Floats, stack: Stack) -> Floats:
    """Least step of layouts with one pipeline, by the stage that ends last. (plan,) [s]

        T >= c (sum over the stages above k of floor(n_j / v)  +  m n_k)  +  m h_k  +  W m c n_0

    with n layers on a stage in v chunks, of which the first has no fewer than floor(n / v), c the
    least time of one layer, both ways, h that of the head on the last stage, and W the share that
    waiting for the slowest GPU adds to what the first stage did.
    """
    stages, layers = layouts.stages[0], layouts.layers[0]
    chunk, count = layers // layouts.vpp, layouts.micro_batches[0]
    passed = np.cumsum(stages * chunk, axis=0)
    below = (passed[-1] - passed) > 0  # stages of further slots
    found = layer_s * (passed - chunk + count * layers)  # above the last stage of each slot
    found += np.where(below, 0.0, count * head_s)
    waits = stack.jitter_fraction * np.log2(layouts.gpus) * count * layers[0] * layer_s
    most: Floats = np.where(stages > 0, found, 0.0).max(axis=0) + waits
    return most


def step_bound_s(view: StageView, times: StageTime) -> Floats:
    """Least step of every plan with one pipeline. [s]

    The pipeline's bound, behind the gather that its first operation waits for and before what
    its first stage does last: reduce, update, the rest.
    """
    opening = slice(0, 1)
    layers = np.maximum(view.plans.layers[0, 0], 1)
    lightest = layers // view.plans.vpp / layers  # share of the first chunk
    first = times.first_gather_s(opening)[0, 0] * lightest
    return first + _pipeline_bound_s(view, times) + times.step_end_s(opening)[0, 0]


def _pipeline_bound_s(view: StageView, times: StageTime) -> Floats:
    count, batches = view.stages.count[0], view.plans.micro_batches[0]
    forward, backward = times.whole_forward_s[0], times.whole_backward_s[0]
    link = np.broadcast_to(times.part("link_s")[0], count.shape)
    turns = view.plans.vpp > 1
    found = np.zeros(len(view.plans))
    if not turns.all():  # for all rows: apart from the others they would have to be copied
        found = one_f_one_b_bound_s(count, forward, backward, batches, link, link)
    if turns.any():
        head = times.part("head_forward_s")[0] + times.part("head_backward_s")[0]
        both = _two_chunks(forward + backward, head, view.plans.vpp)
        none = np.zeros((1, 1, 1))  # the bound asks only for the sum of both ways
        found = np.where(turns, interleaved_bound_s(count, both, none, batches, link, link), found)
    return found


def tight_bound_s(
    plans: Plans, task: Task, stack: Stack, cache: LayerCache | None = None
) -> Floats:
    """A bound that mostly is the simulated step, for few plans that are interleaved. (plan,) [s]

    It costs a fraction of a simulation, and is right but for rounding. 0 where nothing better is
    known than `step_bound_s`.
    """
    found = np.zeros(len(plans))
    listed = plans.chunking >= 0  # layers of every chunk: stages of a slot may differ in them
    for every_stage in (False, True):
        rows = np.flatnonzero((plans.vpp > 1) & (listed == every_stage))
        if len(rows):
            view = stage_view(plans.take(rows), task, every_stage)
            found[rows] = tight_stage_bound_s(
                view, stage_times(view, stack, stage_work(view, stack, cache))
            )
    return found


def tight_stage_bound_s(view: StageView, times: StageTime) -> Floats:
    """The same of interleaved plans whose stages are known. (plan,) [s]"""
    plans, count = view.plans, view.stages.count[0]
    chunks = chunk_times(plans, view.stages, times, 0)
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


def _two_chunks(stage_s: Floats, head_s: Floats, vpp: Ints) -> Floats:
    """The first chunk at its least, and the rest. (chunk, slot, plan)

    The bound asks for no more. The first chunk of a stage may be the lighter one by a layer, so
    half of an even share is taken for it; the head lies on the last.
    """
    first = (stage_s - head_s) / (2 * vpp)
    return np.stack([first, stage_s - first])


def variant_added_s(
    layouts: Plans, variants: Variants, task: Task, stack: Stack, cache: LayerCache
) -> Floats:
    """What the bound of each variant exceeds that of its layout by, at least. (variant,) [s]

        T' >= T + m d - d_1 + x h

    Every stage does d seconds more for each of m micro-batches, d that of the stage to which it
    adds least; behind d_1, that of the first stage, more of its gradient reduction can hide. A
    share x of the optimizer on the host adds x h. Sharded parameters are gathered and reduced in
    every micro-batch, and what shows of it without may hide behind d: see `_less_hidden`. With one
    micro-batch it may be less than zero.
    """
    view = stage_view(layouts, task)
    times = stage_times(view, stack, stage_work(view, stack, cache))
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
