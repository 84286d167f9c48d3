"""Seconds of every stage: its layers and ends per micro-batch, and what it does once per step."""

from dataclasses import dataclass

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.plans import Flags, Floats, Rows
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.stages import recomputed_fraction
from astra.strategy.view import View, view_of
from astra.timing.base import StageBase, base_of
from astra.timing.device import Used
from astra.timing.layer import in_stack, layers_of

DATA_OVERLAP_SHOWS = 0.1  # of bucketed reductions: the last bucket and gaps; guessed

# What a stage's base does not depend on.
AFTERTHOUGHTS = ("recompute", "recompute_layers", "recompute_modules", "offload_optimizer_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage of each run. (pipeline, run, plan)

    Per micro-batch, unless it says per step. Traffic counts as far as it shows.
    """

    base: StageBase  # of the distinct plans but for recompute and offload
    rows: Rows  # for every plan, its row in `base`
    recompute_s: Floats
    gather_forward_s: Floats  # parameters gathered for every micro-batch (FSDP)
    gather_backward_s: Floats
    first_extra_s: Floats  # per step: parameter gather that the first micro-batch cannot hide
    last_extra_s: Floats  # per step: gradient reduction that the last one cannot hide
    optimizer_s: Floats  # per step
    other_s: Floats  # per step
    used: Used

    def part(self, name: str) -> Floats:
        """A column of the base, for every plan."""
        column: Floats = getattr(self.base, name)
        return column[..., self.rows]

    @property
    def whole_forward_s(self) -> Floats:
        """All that a micro-batch takes on its way down."""
        base = self.base
        traffic = base.tensor_forward_s + base.context_forward_s + base.expert_forward_s
        return (base.forward_s + traffic)[..., self.rows] + self.gather_forward_s

    @property
    def whole_backward_s(self) -> Floats:
        """All that it takes on its way back."""
        base = self.base
        traffic = base.tensor_backward_s + base.context_backward_s + base.expert_backward_s
        plain = (base.backward_s + traffic)[..., self.rows]
        return plain + self.recompute_s + self.gather_backward_s


def stage_times(view: View, stack: Stack) -> StageTime:
    """Seconds of every run of a table of plans.

    Rows that differ only in recompute and offload stand together in a search; what they share
    is priced once.
    """
    plans = view.plans
    first, rows = plans.without(AFTERTHOUGHTS)
    shared = view
    if len(first) < len(plans):
        shared = view_of(plans.take(first), view.task, view.stages.every)
    layers = in_stack(layers_of(shared), stack)
    base = base_of(shared, layers, stack)
    again = _recompute(view, base, rows)
    forward = base.forward_s[..., rows]
    backward = base.backward_s[..., rows] + again
    first_s, last_s = _once(view, base, rows, forward, backward, stack)
    gathers = _each(view, base, rows, forward, backward, stack)
    hosted = plans.offload_optimizer_fraction * base.replicas.host_s[..., rows]
    return StageTime(
        base=base,
        rows=rows,
        recompute_s=again,
        gather_forward_s=gathers[0],
        gather_backward_s=gathers[1],
        first_extra_s=first_s,
        last_extra_s=last_s,
        optimizer_s=(base.replicas.adam_s[..., rows] + hosted) * stack.optimizer_factor,
        other_s=np.where(view.stages.count > 0, stack.step_s, 0.0),
        used=layers.used,
    )


def _recompute(view: View, base: StageBase, rows: Rows) -> Floats:
    """Whole layers with their traffic, or the selected modules of every layer."""
    fraction, _ = recomputed_fraction(view.plans, view.stages)
    total = fraction * base.layers_forward_s[..., rows]
    bits = view.stages.of(view.plans.recompute_modules)
    for place, module in enumerate(MODULES):
        chosen = bits >> place & 1
        if chosen.any():
            total = total + chosen * base.module_s[module][..., rows]
    return total


def _partly(traffic: Floats, behind: Floats, overlaps: Flags, slow: Floats) -> Floats:
    """Traffic that may run beside compute: what is left to see, and what it slows.

    The last bucket always shows; hidden seconds slow the compute beside them.
    """
    hidden = np.minimum(traffic * (1 - DATA_OVERLAP_SHOWS), behind)
    return np.where(overlaps, traffic - hidden + slow * hidden, traffic)


def _once(
    view: View, base: StageBase, rows: Rows, forward: Floats, backward: Floats, stack: Stack
) -> tuple[Floats, Floats]:
    """Per step: the gather beside the first micro-batch, the reduction beside the last."""
    plans, copies, factor = view.plans, base.replicas, stack.communication_factor
    slow = copies.slowdown[..., rows]
    gather, reduce = copies.gather_s[..., rows] * factor, copies.reduce_s[..., rows] * factor
    by_layer = is_word(plans, "sharding", "parameters")
    first = _partly(gather, forward, plans.overlap_param_gather, slow)
    last = _partly(reduce, backward, plans.overlap_grad_reduce, slow)
    return np.where(by_layer, 0.0, first), np.where(by_layer, 0.0, last)


def _each(
    view: View, base: StageBase, rows: Rows, forward: Floats, backward: Floats, stack: Stack
) -> tuple[Floats, Floats]:
    """Per micro-batch, with sharded parameters: gathered in either pass, gradients scattered."""
    plans, copies, factor = view.plans, base.replicas, stack.communication_factor
    by_layer = is_word(plans, "sharding", "parameters")
    if not by_layer.any():
        zeros = np.zeros(forward.shape)
        return zeros, zeros
    slow = copies.slowdown[..., rows]
    gather, reduce = copies.gather_s[..., rows] * factor, copies.reduce_s[..., rows] * factor
    ahead = _partly(gather, forward, plans.overlap_param_gather, slow)
    back = _partly(gather + reduce, backward, plans.overlap_param_gather, slow)
    return np.where(by_layer, ahead, 0.0), np.where(by_layer, back, 0.0)
