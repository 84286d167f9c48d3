"""Bounds on the step of a table of plans, from the loosest to the tightest.

    work        the busiest stage does no less than the mean of all                   (degrees)
    fill        the pipeline is filled with whole layers before its last stage begins (layout)
    step        the closed form of 1F1B and interleaved pipelines on stage seconds    (plan)

No plan runs faster than its bound, so whatever is bounded above the best plan known can go
unsimulated. `cost/bounds.py` lists all bounds; one test holds them against the simulator.
"""

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.stage_view import StageView
from astra.strategy.stages import least_first_chunk
from astra.timing.stage import StageTime


def work_bound_s(micro_batches: Ints, stages: Ints, work_s: Floats) -> Floats:
    """A first bound that asks for no stages: the busiest one does no less than the mean. [s]

    T >= m (all layers and ends, forward and backward) / p
    """
    return micro_batches * work_s / stages


def fill_bound_s(layouts: Plans, layer_s: Floats, head_s: Floats, stack: Stack) -> Floats:
    """Least step of layouts with one pipeline, by the stage that ends last. (plan,) [s]

        T >= c (sum over the stages above k of floor(n_j / v)  +  m n_k)  +  m h_k  +  W m c n_0

    with n layers on a stage in v chunks, c the least time of one layer, both ways, h that of the
    head on the last stage, and W the share that waiting for the slowest GPU adds to what the first
    stage did. A list of unlike chunks says itself what the first one holds.
    """
    stages, layers = layouts.stages[0], layouts.layers[0]
    index = np.cumsum(stages, axis=0) - stages
    chunk, count = least_first_chunk(layouts, layers, index), layouts.micro_batches[0]
    passed = np.cumsum(stages * chunk, axis=0)
    below = (passed[-1] - passed) > 0  # stages of further slots
    found = layer_s * (passed - chunk + count * layers)  # above the last stage of each slot
    found += np.where(below, 0.0, count * head_s)
    waits = stack.jitter_fraction * np.log2(layouts.gpus) * count * layers[0] * layer_s
    most: Floats = np.where(stages > 0, found, 0.0).max(axis=0) + waits
    return most


def pipeline_bound_s(
    stages: Ints,
    first_chunk_s: Floats,
    stage_s: Floats,
    micro_batches: Ints,
    inner_link_s: Floats,
    outer_link_s: Floats,
) -> Floats:
    """Least time of one step, 1F1B or interleaved. (plan,) [s]

    A slot is a run of `stages` equal stages; an unused one has stages 0. Columns are (slot, plan).
    Whatever the order of a stage's operations, with m micro-batches and links c each way,

        T >= sum over the stages before k of (t_0 + 2 c) + m t_k

    since chunk 0 of the first micro-batch comes down to k before k has anything to do, and chunk 0
    of the last one goes up again when k is done. Alike stages without links give
    (m v + p - 1) t_0: Narayanan et al. 2021, arXiv 2104.04473, sec. 2.2.

    `first_chunk_s` is t_0, of one micro-batch there and back in the first chunk of a stage, with
    one chunk all of it; `stage_s` is t_k, in all its chunks. Links are seconds each way, the mean
    where the two ways differ: `inner_link_s` between two stages of a slot, `outer_link_s` from its
    last stage to the next slot; an outer link that leads nowhere is ignored.
    """
    run = stages.astype(np.float64)
    behind = np.cumsum(run[::-1], axis=0)[::-1] - run
    link_s = np.where((run > 0) & (behind > 0), outer_link_s, 0.0)
    inside_s = np.maximum(run - 1, 0) * (first_chunk_s + 2 * inner_link_s)
    slot_s = inside_s + np.where(run > 0, first_chunk_s, 0.0) + 2 * link_s
    above_s = np.cumsum(slot_s, axis=0) - slot_s + inside_s  # of the slot's last stage
    bound_s: Floats = np.where(run > 0, above_s + micro_batches * stage_s, 0.0).max(axis=0)
    return bound_s


def step_bound_s(view: StageView, times: StageTime) -> Floats:
    """Least step of every plan with one pipeline. [s]

    The pipeline's bound, behind the gather that its first operation waits for and before what
    its first stage does last: reduce, update, the rest.
    """
    opening = slice(0, 1)
    share = _first_chunk_share(view)
    first = times.first_gather_s(opening)[0, 0] * share[0]
    return first + _pipeline_bound_s(view, times, share) + times.step_end_s(opening)[0, 0]


def _first_chunk_share(view: StageView) -> Floats:
    """What the first chunk of a stage has of its layers at least. (slot, plan)"""
    layers = view.stages.kind_layers[:, 0].sum(axis=0)
    least = least_first_chunk(view.plans, layers, view.stages.index[0])
    return np.asarray(least / np.maximum(layers, 1))


def _pipeline_bound_s(view: StageView, times: StageTime, share: Floats) -> Floats:
    """`share`: of a stage's layers in its first chunk; the head lies on the last."""
    count, vpp = view.stages.count[0], view.plans.vpp
    stage_s = times.whole_forward_s[0] + times.whole_backward_s[0]
    head_s = times.part("head_forward_s")[0] + times.part("head_backward_s")[0]
    first_s = np.where(vpp > 1, (stage_s - head_s) * share, stage_s)
    link_s = np.broadcast_to(times.part("link_s")[0], count.shape)
    batches = view.plans.micro_batches[0]
    return pipeline_bound_s(count, first_s, stage_s, batches, link_s, link_s)
