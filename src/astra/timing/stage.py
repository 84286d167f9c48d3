"""Seconds of every stage: its layers and ends per micro-batch, and what it does once per step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from astra.hardware.stack import Stack
from astra.strategy.plans import Flags, Floats
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView
from astra.timing.constants import timing_constants
from astra.timing.data_parallel import reduces_every_batch
from astra.timing.device import SourceUse
from astra.timing.layer import PARTS, LayerCache, layers_of
from astra.timing.layer_offload import exposed_copies_s, over_host_link_s
from astra.timing.stage_work import StageWork, summed_work

Rows = NDArray[np.intp]
ALL = slice(None)
NOTHING = np.zeros(1)
SharedWork = tuple[StageWork, SourceUse]  # of the distinct plans, and where its numbers come from


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageTime:
    """Seconds of one stage of each slot. (pipeline, slot, plan)

    Per micro-batch, unless it says per step. Traffic counts as far as it is exposed. What a caller
    may want of few slots only is worked out when asked for them.
    """

    view: StageView
    stack: Stack
    work: StageWork  # of the distinct plans but for recompute and offload
    rows: Rows  # for every plan, its row in `work`
    recompute_s: Floats
    copies_s: tuple[Floats, Floats]  # of layers offloaded whole, that compute does not hide
    used: SourceUse

    def part(self, name: str) -> Floats:
        """A column of `work`, for every plan."""
        column: Floats = getattr(self.work, name)
        return column[..., self.rows]

    @cached_property
    def _gathered_s(self) -> tuple[Floats, Floats]:
        return _sharded_gather_s(self.view, self.work, self.rows, self.recompute_s)

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
        each = work.forward_s + traffic + work.offload_forward_s
        return each[..., self.rows] + self.copies_s[0]

    @property
    def plain_backward_s(self) -> Floats:
        """All that it takes on its way back, with nothing to gather or to recompute."""
        work = self.work
        traffic = work.tensor_backward_s + work.context_backward_s + work.expert_backward_s
        each = work.backward_s + traffic + work.offload_backward_s
        return each[..., self.rows] + self.copies_s[1]

    @property
    def whole_forward_s(self) -> Floats:
        """All that a micro-batch takes on its way down."""
        return self.plain_forward_s + self.gather_forward_s

    @property
    def whole_backward_s(self) -> Floats:
        """All that it takes on its way back."""
        return self.plain_backward_s + self.recompute_s + self.gather_backward_s

    def _data_parallel(self, name: str, slots: slice) -> Floats:
        column: Floats = getattr(self.work.data_parallel, name)
        return column[:, slots][..., self.rows]

    def first_gather_s(self, slots: slice = ALL) -> Floats:
        """Per step: parameter gather that the first micro-batch cannot hide."""
        forward = self.work.forward_s[:, slots][..., self.rows]
        overlaps = self.view.plans.overlap_param_gather & (not self.stack.owned_tensors)
        slow = self._data_parallel("slowdown", slots)
        often = is_word(self.view.plans, "sharding", "parameters")
        gather_s = np.where(often, 0.0, self._data_parallel("gather_s", slots))
        return exposed_data_parallel_s(gather_s, forward, overlaps, slow)

    def last_reduce_s(self, slots: slice = ALL) -> Floats:
        """Per step: gradient reduction that the last micro-batch cannot hide."""
        backward = self.work.backward_s[:, slots][..., self.rows] + self.recompute_s[:, slots]
        overlaps = self.view.plans.overlap_grad_reduce
        slow = self._data_parallel("slowdown", slots)
        often = reduces_every_batch(self.view)
        reduce_s = np.where(often, 0.0, self._data_parallel("reduce_s", slots))
        return exposed_data_parallel_s(reduce_s, backward, overlaps, slow)

    def inter_group_s(self, slots: slice = ALL) -> Floats:
        """Per step: gradients between replica groups that are sharded differently."""
        if len(self.work.data_parallel.inter_group_s) == 1:  # one pipeline has no other
            return np.zeros((1, 1, 1))
        return self._data_parallel("inter_group_s", slots)

    def tied_s(self, slots: slice = ALL) -> Floats:
        """Per step: gradients of tied embeddings, between the ends of the pipeline."""
        return self.work.tied_s[:, slots][..., self.rows]

    def optimizer_s(self, slots: slice = ALL) -> Floats:
        """Per step: Adam on the GPU, or over PCIe for what is offloaded."""
        hosted = self.view.plans.offload_optimizer_fraction * self.host_s(slots)
        return self._data_parallel("adam_s", slots) + hosted

    def host_s(self, slots: slice = ALL) -> Floats:
        """Per step: what it takes more with all of the optimizer offloaded."""
        return self._data_parallel("host_s", slots)

    def other_s(self, slots: slice = ALL) -> Floats:
        """Per step: what no part of the model accounts for, and waiting for the slowest rank."""
        plans = self.view.plans
        waited = np.log2(plans.gpus) * plans.micro_batches[:, np.newaxis] * self.straggler_s(slots)
        return np.where(self.view.stages.count[:, slots] > 0, self.stack.step_s + waited, 0.0)

    def straggler_s(self, slots: slice = ALL) -> Floats:
        """Per micro-batch and doubling of the GPUs: waiting for the slowest rank."""
        # With its traffic, so that a faster link cannot turn time that is waited for the CPU, and
        # counts as compute, into more waiting.
        each = np.sum([getattr(self.work, name)[:, slots] for name in PARTS], axis=0)
        return self.stack.jitter_fraction * each[..., self.rows]

    def step_end_s(self, slots: slice = ALL) -> Floats:
        """Per step, behind the last backward pass of a stage."""
        return self.last_reduce_s(slots) + self.after_grads_ready_s(slots)

    def after_grads_ready_s(self, slots: slice = ALL) -> Floats:
        """The part of it that begins when the gradients of all pipelines of the plan are ready."""
        traffic = self.inter_group_s(slots) + self.tied_s(slots)
        return traffic + self.optimizer_s(slots) + self.other_s(slots)


def stage_work(view: StageView, stack: Stack, cache: LayerCache | None = None) -> SharedWork:
    """What the plans of a view share, and where its numbers come from."""
    layers = layers_of(view.shared, stack, cache)
    return summed_work(view.shared, layers, stack), layers.used


def stage_times(
    view: StageView,
    stack: Stack,
    shared: SharedWork | None = None,
    offloaded_bytes: Floats | None = None,
) -> StageTime:
    """Seconds of every slot of a table of plans; `shared` where it is worked out already.

    `offloaded_bytes`: activations of a micro-batch that plans with `offload_layers` move.
    """
    work, used = shared or stage_work(view, stack)
    rows = view.rows
    return StageTime(
        view=view,
        stack=stack,
        work=work,
        rows=rows,
        recompute_s=_recompute_s(view, work, rows),
        copies_s=_copies_s(view, work, rows, offloaded_bytes),
        used=used,
    )


def _recompute_s(view: StageView, work: StageWork, rows: Rows) -> Floats:
    """Whole layers with their traffic, or the selected modules of every layer."""
    fraction, _ = view.recomputed
    total = fraction * work.layers_forward_s[..., rows]
    bits = view.stages.of(view.plans.recompute_modules)
    for place, module in enumerate(MODULES):
        chosen = bits >> place & 1
        if chosen.any():
            total += chosen * work.module_s[module][..., rows]
    return total


def _copies_s(
    view: StageView, work: StageWork, rows: Rows, offloaded_bytes: Floats | None
) -> tuple[Floats, Floats]:
    """Forward and backward, of layers that are offloaded whole."""
    offloaded = view.plans.offload_layers
    if offloaded_bytes is None or not offloaded.any():
        return NOTHING, NOTHING
    copies = over_host_link_s(view, np.where(offloaded > 0, offloaded_bytes, 0.0))
    ends = work.head_backward_s + work.embedding_backward_s
    traffic = work.tensor_backward_s + work.context_backward_s + work.expert_backward_s
    backward = (work.backward_s - ends + traffic)[..., rows]
    forward, layers = work.layers_forward_s[..., rows], view.stages.of(view.plans.layers)
    return (
        exposed_copies_s(copies, forward, layers, offloaded),
        exposed_copies_s(copies, backward, layers, offloaded),
    )


def exposed_data_parallel_s(
    traffic_s: Floats, compute_s: Floats, overlaps: Flags, slowdown: Floats
) -> Floats:
    """Data-parallel traffic that compute does not hide, and what it costs the compute beside it.

    The last bucket is always exposed; hidden seconds slow the compute beside them.
    """
    hidden = np.minimum(traffic_s * (1 - timing_constants().shows.data), compute_s)
    return traffic_s - np.where(overlaps, (1 - slowdown) * hidden, 0.0)


def _sharded_gather_s(
    view: StageView, work: StageWork, rows: Rows, recompute_s: Floats
) -> tuple[Floats, Floats]:
    """Per micro-batch: sharded parameters are gathered in either pass, gradients scattered."""
    forward, backward = np.zeros(recompute_s.shape), np.zeros(recompute_s.shape)
    sharded = np.flatnonzero(reduces_every_batch(view))
    if len(sharded):
        at, plans = rows[sharded], view.plans.take(sharded)
        gathers, traffic = is_word(plans, "sharding", "parameters"), work.data_parallel
        overlaps = np.where(gathers, plans.overlap_param_gather, plans.overlap_grad_reduce)
        slowdown = traffic.slowdown[..., at]
        gather_s = np.where(gathers, traffic.gather_s[..., at], 0.0)
        reduce_s = traffic.reduce_s[..., at]
        forward_compute_s = work.forward_s[..., at]
        backward_compute_s = work.backward_s[..., at] + recompute_s[..., sharded]
        forward[..., sharded] = exposed_data_parallel_s(
            gather_s, forward_compute_s, overlaps, slowdown
        )
        backward[..., sharded] = exposed_data_parallel_s(
            gather_s + reduce_s, backward_compute_s, overlaps, slowdown
        )
    return forward, backward
