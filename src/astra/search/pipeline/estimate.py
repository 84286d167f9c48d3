"""Steps of pipelines out of stage tables, and the plans that they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.cost.stage_table import StageTable
from astra.simulate.pipeline_columns import PipelineColumns, stage_end_s
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.segment_columns import plans_from_stages, stage_slots
from astra.strategy.space import Workload
from astra.timing.plan_bounds import pipeline_bound_s

SIMULATED = 96  # pipelines of one depth, those of the least bounds


@dataclass(frozen=True, slots=True, eq=False)
class PipelineCandidate:
    """One pipeline: option and layers of every stage, the first on top."""

    step_s: float  # as the stage table has it
    table: StageTable
    option: Ints
    layers: Ints

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal pipelines."""
        return (*self.skeleton_key, self.layers.tobytes())

    @property
    def skeleton_key(self) -> tuple[object, ...]:
        """Equal for pipelines that differ in layers alone."""
        options = tuple(self.table.options[row] for row in self.option.tolist())
        return self.table.setting, self.table.recompute, options

    def columns(self) -> dict[str, Ints]:
        """Its stages as columns of a table of plans. (stage,)"""
        whole = PipelineStages(self.table, self.option[:, np.newaxis], self.layers[:, np.newaxis])
        modules = self.table.recompute.module_bits if self.table.recompute else 0
        return {name: column[self.option] for name, column in self.table.degrees.items()} | {
            "layers": self.layers,
            "recompute": whole.mode[:, 0],
            "recompute_layers": whole.number[:, 0],
            "recompute_modules": np.full_like(self.layers, modules),
        }


class PipelineStages:
    """Stages of many pipelines of one depth. (stage, pipeline)"""

    def __init__(self, table: StageTable, option: Ints, layers: Ints) -> None:
        """`option`, `layers`: of every stage, (stage, pipeline)."""
        depth, end = len(option), np.cumsum(layers, axis=0)
        forward, backward, after, gather, link = (np.zeros(option.shape) for _ in range(5))
        self.mode, self.number = np.zeros_like(option), np.zeros_like(option)  # of recompute
        doublings = np.log2(table.stage_gpus[option].sum(axis=0))
        for stage in range(depth):
            choice = table.of_stage(stage, depth)
            at = option[stage], table.layers.at[end[stage], layers[stage]]
            forward[stage], backward[stage] = choice.forward_s[at], choice.backward_s[at]
            after[stage] = choice.step_end_s[at] + choice.straggler_s[at] * doublings
            self.mode[stage], self.number[stage] = choice.mode[at], choice.number[at]
            if stage == 0:
                gather[0] = choice.first_gather_s[at]
        link_s, tied_s = table.links_s
        after[0] += tied_s[0, option[0], option[-1]]
        after[-1] += tied_s[1, option[0], option[-1]]
        link[:-1] = link_s[option[:-1], option[1:]]
        self.fits = np.logical_and.reduce(np.isfinite(backward))  # (pipeline,)
        self.forward_s: Floats = forward
        self.backward_s: Floats = np.where(self.fits, backward, 1.0)
        self.after_s = after  # behind the last backward, once a step
        self.link_s = link  # one way to the next stage
        self.first_gather_s, self.micro_batches = gather, table.setting.micro_batches

    @property
    def bound_s(self) -> Floats:
        """About the least step; infinite where the pipeline does not fit. (pipeline,)"""
        stage_s = self.forward_s + self.backward_s
        depth, count = stage_s.shape
        bound_s = pipeline_bound_s(
            np.ones((depth, count), np.int64),
            stage_s,
            stage_s,
            np.full(count, self.micro_batches),
            np.zeros_like(self.link_s),
            self.link_s,
        )
        return np.where(self.fits, self.first_gather_s[0] + bound_s + self.after_s[0], np.inf)

    def simulated_s(self, rows: Ints) -> Floats:
        """The step of these, by the simulator. (row,)"""
        if not len(rows):
            return np.zeros(0)
        depth, one = len(self.forward_s), np.ones(len(rows), np.int64)
        link_s, gather_s = self.link_s[:, rows], self.first_gather_s[np.newaxis, :, rows]
        columns = PipelineColumns(
            stages=one * depth,
            chunks=one,
            micro_batches=one * self.micro_batches,
            group=one * depth,
            extra_warmup=one * 0,
            forward_s=self.forward_s[np.newaxis, :, rows],
            backward_s=self.backward_s[np.newaxis, :, rows],
            forward_link_s=link_s,
            backward_link_s=link_s,
            first_gather_s=gather_s,
            last_reduce_s=np.zeros_like(gather_s),
        )
        steps: Floats = (stage_end_s(columns) + self.after_s[:, rows]).max(axis=0)
        return steps


def estimated_steps_s(
    table: StageTable, option: Ints, layers: Ints, within_s: float = np.inf
) -> Floats:
    """The simulated step of the most promising that may be in time, else infinite. (pipeline,)"""
    stages = PipelineStages(table, option, layers)
    bound_s = stages.bound_s
    rows = np.argsort(bound_s, kind="stable")[:SIMULATED]
    rows = rows[bound_s[rows] < within_s]
    steps = np.full(option.shape[1], np.inf)
    steps[rows] = stages.simulated_s(rows)
    return steps


def to_plans(workload: Workload, candidates: Sequence[PipelineCandidate]) -> Plans:
    """Pipelines as a table of plans."""
    settings = list(dict.fromkeys(each.table.setting for each in candidates))
    which = [settings.index(each.table.setting) for each in candidates]
    slots = stage_slots([each.columns() for each in candidates])
    return plans_from_stages(workload, settings, np.array(which, np.int64), slots)
