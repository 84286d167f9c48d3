"""Seconds of every stage: its layers and ends per micro-batch, and what it does once per step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from astra.hardware.stack import Stack
from astra.strategy.plans import Flags, Floats
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.view import View
from astra.timing.constants import timing_constants
from astra.timing.device import SourceUse
from astra.timing.layer import PARTS, LayerCache, layers_of
from astra.timing.stage_work import StageWork, summed_work

Rows = NDArray[np.intp]
ALL = slice(None)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageTime:
    """Seconds of one stage of each run. (pipeline, run, plan)

    Per micro-batch, unless it says per step. Traffic counts as far as it shows. What a caller may
    want of some runs only is worked out when asked for them.
    """

    view: View
    stack: Stack
    work: StageWork  # of the distinct plans but for recompute and offload
    rows: Rows  # for every plan, its row in `work`
    recompute_s: Floats
    used: SourceUse

    def part(self, name: str) -> Floats:
        """A column of the base, for every plan."""
        column: Floats = getattr(self.work, name)
        return column[..., self.rows]

    @cached_property
    def _gathered_s(self) -> tuple[Floats, Floats]:
        return _each(self.view, self.work, self.rows, self.recompute_s)

    @property
    def gather_forward_s(self) -> Floats:
        """Parameters gathered for every micro-batch (FSDP)."""
        return self._gathered_s[0]

    @property
    def gather_backward_s(self) -> Floats:
        """The same on the way back, and gradients scattered."""
        return self._gathered_s[1]

    @property
    def plain_forward_s(self) -> Floats:
        """All that a micro-batch takes on its way down, parameters at hand."""
        work = self.work
        traffic = work.tensor_forward_s + work.context_forward_s + work.expert_forward_s
        return (work.forward_s + traffic + work.offload_forward_s)[..., self.rows]

    @property
    def plain_backward_s(self) -> Floats:
        """All that it takes on its way back, with nothing to gather or to do again."""
        work = self.work
        traffic = work.tensor_backward_s + work.context_backward_s + work.expert_backward_s
        return (work.backward_s + traffic + work.offload_backward_s)[..., self.rows]

    @property
    def whole_forward_s(self) -> Floats:
        """All that a micro-batch takes on its way down."""
        return self.plain_forward_s + self.gather_forward_s

    @property
    def whole_backward_s(self) -> Floats:
        """All that it takes on its way back."""
        return self.plain_backward_s + self.recompute_s + self.gather_backward_s

    def _copies(self, name: str, runs: slice) -> Floats:
        column: Floats = getattr(self.work.data_parallel, name)
        return column[:, runs][..., self.rows]

    def _traffic_s(self, name: str, runs: slice) -> Floats:
        """Gather or reduction per step; sharded parameters have theirs in every micro-batch."""
        by_layer = is_word(self.view.plans, "sharding", "parameters")
        return np.where(by_layer, 0.0, self._copies(name, runs))

    def first_gather_s(self, runs: slice = ALL) -> Floats:
        """Per step: parameter gather that the first micro-batch cannot hide."""
        forward = self.work.forward_s[:, runs][..., self.rows]
        overlaps = self.view.plans.overlap_param_gather & (not self.stack.owned_tensors)
        slow = self._copies("slowdown", runs)
        return exposed_s(self._traffic_s("gather_s", runs), forward, overlaps, slow)

    def last_reduce_s(self, runs: slice = ALL) -> Floats:
        """Per step: gradient reduction that the last micro-batch cannot hide."""
        backward = self.work.backward_s[:, runs][..., self.rows] + self.recompute_s[:, runs]
        overlaps = self.view.plans.overlap_grad_reduce
        slow = self._copies("slowdown", runs)
        return exposed_s(self._traffic_s("reduce_s", runs), backward, overlaps, slow)

    def inter_group_s(self, runs: slice = ALL) -> Floats:
        """Per step: gradients between pipelines that are cut differently, when all are there."""
        if len(self.work.data_parallel.inter_group_s) == 1:  # one pipeline has no other
            return np.zeros((1, 1, 1))
        return self._copies("inter_group_s", runs)

    def tied_s(self, runs: slice = ALL) -> Floats:
        """Per step: gradients of tied embeddings, between the ends of the pipeline."""
        return self.work.tied_s[:, runs][..., self.rows]

    def optimizer_s(self, runs: slice = ALL) -> Floats:
        """Per step: Adam on the GPU, or over PCIe for what is offloaded."""
        hosted = self.view.plans.offload_optimizer_fraction * self.host_s(runs)
        return self._copies("adam_s", runs) + hosted

    def host_s(self, runs: slice = ALL) -> Floats:
        """Per step: what it takes more with all of the optimizer offloaded."""
        return self._copies("host_s", runs)

    def other_s(self, runs: slice = ALL) -> Floats:
        """Per step: what no part of the model accounts for, and waiting for the slowest rank."""
        plans = self.view.plans
        waited = np.log2(plans.gpus) * plans.micro_batches[:, np.newaxis] * self.straggler_s(runs)
        return np.where(self.view.stages.count[:, runs] > 0, self.stack.step_s + waited, 0.0)

    def straggler_s(self, runs: slice = ALL) -> Floats:
        """Per micro-batch and doubling of the GPUs: waiting for the slowest rank."""
        # With its traffic, so that a faster link cannot turn time that is waited for the CPU, and
        # counts as compute, into more jitter.
        each = np.sum([getattr(self.work, name)[:, runs] for name in PARTS], axis=0)
        return self.stack.jitter_fraction * each[..., self.rows]

    def step_end_s(self, runs: slice = ALL) -> Floats:
        """Per step, behind the last backward pass of a stage."""
        return self.last_reduce_s(runs) + self.after_grads_ready_s(runs)

    def after_grads_ready_s(self, runs: slice = ALL) -> Floats:
        """The part of it that waits for the other pipelines of the plan."""
        traffic = self.inter_group_s(runs) + self.tied_s(runs)
        return traffic + self.optimizer_s(runs) + self.other_s(runs)


def stage_work(
    view: View, stack: Stack, book: LayerCache | None = None
) -> tuple[StageWork, SourceUse]:
    """What the plans of a view share, and where its numbers come from."""
    layers = layers_of(view.shared, stack, book)
    return summed_work(view.shared, layers, stack), layers.used


def stage_times(
    view: View, stack: Stack, shared: tuple[StageWork, SourceUse] | None = None
) -> StageTime:
    """Seconds of every run of a table of plans; `shared` where it is worked out already."""
    work, used = shared or stage_work(view, stack)
    rows = view.rows
    again = _recompute(view, work, rows)
    return StageTime(
        view=view,
        stack=stack,
        work=work,
        rows=rows,
        recompute_s=again,
        used=used,
    )


def _recompute(view: View, work: StageWork, rows: Rows) -> Floats:
    """Whole layers with their traffic, or the selected modules of every layer."""
    fraction, _ = view.recomputed
    total = fraction * work.layers_forward_s[..., rows]
    bits = view.stages.of(view.plans.recompute_modules)
    for place, module in enumerate(MODULES):
        chosen = bits >> place & 1
        if chosen.any():
            total += chosen * work.module_s[module][..., rows]
    return total


def exposed_s(traffic: Floats, behind: Floats, overlaps: Flags, slow: Floats) -> Floats:
    """Traffic that may run beside compute: what is left to see, and what it slows.

    The last bucket always shows; hidden seconds slow the compute beside them.
    """
    hidden = np.minimum(traffic * (1 - timing_constants().shows.data), behind)
    return traffic - np.where(overlaps, (1 - slow) * hidden, 0.0)


def _each(view: View, work: StageWork, rows: Rows, again: Floats) -> tuple[Floats, Floats]:
    """Per micro-batch, with sharded parameters: gathered in either pass, gradients scattered."""
    ahead, back = np.zeros(again.shape), np.zeros(again.shape)
    some = np.flatnonzero(is_word(view.plans, "sharding", "parameters"))
    if len(some):
        at = rows[some]
        overlaps, copies = view.plans.overlap_param_gather[some], work.data_parallel
        slow = copies.slowdown[..., at]
        gather, reduce = copies.gather_s[..., at], copies.reduce_s[..., at]
        backward = work.backward_s[..., at] + again[..., some]
        ahead[..., some] = exposed_s(gather, work.forward_s[..., at], overlaps, slow)
        back[..., some] = exposed_s(gather + reduce, backward, overlaps, slow)
    return ahead, back
