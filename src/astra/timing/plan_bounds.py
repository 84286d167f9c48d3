"""Bounds on the step of a table of plans, from the loosest to the tightest.

    work        the busiest stage does no less than the mean of all                   (degrees)
    fill        the pipeline is filled with whole layers before its last stage begins (layout)
    step        the closed forms of 1F1B and interleaved pipelines on stage seconds   (plan)

`timing/bounds.py` has the closed forms; bounds that need bytes are in `cost/bounds.py`, with the
list of all of them that one test holds against the simulator.
"""

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.stage_view import StageView
from astra.timing.bounds import (
    interleaved_bound_s,
    one_f_one_b_bound_s,
)
from astra.timing.stage import StageTime

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


def _two_chunks(stage_s: Floats, head_s: Floats, vpp: Ints) -> Floats:
    """The first chunk at its least, and the rest. (chunk, slot, plan)

    The bound asks for no more. The first chunk of a stage may be the lighter one by a layer, so
    half of an even share is taken for it; the head lies on the last.
    """
    first = (stage_s - head_s) / (2 * vpp)
    return np.stack([first, stage_s - first])
