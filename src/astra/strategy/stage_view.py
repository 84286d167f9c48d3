"""A table of plans with what every later room needs of it, worked out once and when asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from astra.hardware.topology import even_share
from astra.strategy.parameters_per_gpu import ParametersPerGpu, parameters_per_gpu
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.stages import Stages, ends_as_own_slots, recomputed_fraction, stages_of

# What variants of a layout differ in: neither kernels nor traffic nor states depend on it, only how
# much of them is recomputed or moved.
VARIANT_COLUMNS = (
    "recompute",
    "recompute_layers",
    "recompute_modules",
    "offload_optimizer_fraction",
    "offload_layers",
)


@dataclass(frozen=True, kw_only=True)
class StageView:
    """Plans of one task, stage by stage.

    Plans that differ only in recompute and offload stand together in a search; what they share
    is worked out once, on `distinct`.
    """

    plans: Plans
    task: Task
    stages: Stages
    distinct: "StageView | None"  # plans that differ in more than variants do; None: these
    rows: NDArray[np.intp]  # for every plan, which of the distinct ones it is

    @property
    def shared(self) -> "StageView":
        """The plans that what is shared is worked out on."""
        return self.distinct or self

    def take(self, rows: NDArray[np.intp]) -> "StageView":
        """The view of these plans, each as it is known already; distinct ones only."""
        assert self.distinct is None, "plans share rows of others"
        plans, stages = self.plans.take(rows), self.stages.take(rows)
        itself = np.arange(len(rows))
        return StageView(plans=plans, task=self.task, stages=stages, distinct=None, rows=itself)

    @cached_property
    def parameters_per_gpu(self) -> ParametersPerGpu:
        """Parameters that one GPU of each stage holds. (pipeline, slot, plan)"""
        return parameters_per_gpu(self.plans, self.stages, self.task)

    @cached_property
    def pool_domain(self) -> list[Ints]:
        """For each pool, GPUs of the job in each of its link domains. (plan,)"""
        return self._even_shares([pool.gpu.link.domain_gpus for pool in self.task.cluster.pools])

    @cached_property
    def pool_node(self) -> list[Ints]:
        """For each pool, GPUs of the job in each of its nodes. (plan,)"""
        return self._even_shares([pool.gpu.node.gpus for pool in self.task.cluster.pools])

    @cached_property
    def domain(self) -> Ints:
        """GPUs of the job in each link domain. (pipeline, slot, plan)"""
        return self._of_slots(self.pool_domain)

    @cached_property
    def node(self) -> Ints:
        """GPUs of the job in each node. (pipeline, slot, plan)"""
        return self._of_slots(self.pool_node)

    @cached_property
    def recomputed(self) -> tuple[Floats, Floats]:
        """Fraction of a stage's layers that are recomputed whole, and checkpoints for each."""
        return recomputed_fraction(self.plans, self.stages)

    def _even_shares(self, most: list[int]) -> list[Ints]:
        plans = self.plans
        counts = plans.stages * plans.tp * plans.dp
        used = [
            np.where(plans.gpu == row, counts, 0).sum(axis=(0, 1)) * plans.cp
            for row in range(len(most))
        ]
        return [even_share(np.maximum(n, 1), limit) for n, limit in zip(used, most, strict=True)]

    def _of_slots(self, shares: list[Ints]) -> Ints:
        found = np.ones_like(self.plans.stages)
        for row, share in enumerate(shares):
            found = np.where(self.plans.gpu == row, share, found)
        return found


def without_layers(plans: Plans, task: Task) -> StageView:
    """A view that knows the degrees of plans but not which kinds of layers their stages hold."""
    itself = np.arange(len(plans))
    return StageView(
        plans=plans, task=task, stages=ends_as_own_slots(plans), distinct=None, rows=itself
    )


def stage_views(plans: Plans, task: Task, block: int) -> Iterator[StageView]:
    """Views of so many plans each that have their distinct plans in common.

    Small enough that a block's columns stay in cache.
    """
    first, rows = plans.without(VARIANT_COLUMNS)
    distinct = stage_view(plans.take(first), task)
    for start in range(0, len(plans), block):
        rows_of_block = slice(start, start + block)
        yield StageView(
            plans=plans.take(rows_of_block),
            task=task,
            stages=distinct.stages.take(rows[rows_of_block]),
            distinct=distinct,
            rows=rows[rows_of_block],
        )


def stage_view(plans: Plans, task: Task, every_stage: bool = False) -> StageView:
    """The view of a table; with `every_stage`, one slot per stage."""
    first, rows = plans.without(VARIANT_COLUMNS)
    table = plans.take(first) if len(first) < len(plans) else plans
    stages = stages_of(table, task.model, every_stage)
    stages = stages if every_stage else stages.compact()
    itself = np.arange(len(table))
    view = StageView(plans=table, task=task, stages=stages, distinct=None, rows=itself)
    if table is plans:
        return view
    return StageView(plans=plans, task=task, stages=stages.take(rows), distinct=view, rows=rows)
