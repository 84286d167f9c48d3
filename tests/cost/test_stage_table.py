"""Stages as straight lines say of a stage what the cost model says of it in a plan."""

import random

import numpy as np
import pytest
from tests.search.mixed_brute import MARGIN, random_space
from tests.support.tiers import slow_after

from astra.cost.evaluate import evaluate
from astra.cost.stage_lines import StagePricer
from astra.cost.stage_table import StageTable
from astra.hardware.stack import find_stack
from astra.search.pipeline.construct import every_skeleton, skeleton_limits
from astra.search.pipeline.estimate import PipelineCandidate, PipelineStages, to_plans
from astra.strategy.plans import Plans
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_options import settings_with_options
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view
from astra.timing.stage import stage_times

STACK = find_stack("megatron")


def some_pipelines(
    space: Space, recompute: Recompute | None, dice: random.Random
) -> list[PipelineCandidate]:
    """A few of each setting, with any split of the layers."""
    pricer, found = StagePricer(space.workload, STACK, MARGIN), []
    limits, layers = skeleton_limits(space.workload), space.workload.task.model.layers
    for setting, options in settings_with_options(space, rules_for(space.workload.task.runtime)):
        table = StageTable(pricer, setting, options, recompute)
        skeletons = list(every_skeleton(options, limits))
        for segments in dice.sample(skeletons, min(len(skeletons), 8)):
            option = np.array([row for row, count in segments for _ in range(count)])
            ends = [0, *sorted(dice.sample(range(1, layers), len(option) - 1)), layers]
            found.append(PipelineCandidate(np.inf, table, option, np.diff(ends)))
    return found


def checked_plans(space: Space, pipelines: list[PipelineCandidate]) -> Plans:
    """The plans of these, each stage held against the cost model's own."""
    plans = to_plans(space.workload, pipelines)
    view = stage_view(plans, space.workload.task, every_stage=True)
    times = stage_times(view, STACK)
    for row, each in enumerate(pipelines):
        stages = PipelineStages(each.table, each.option[:, np.newaxis], each.layers[:, np.newaxis])
        depth = slice(0, len(each.option))
        if not stages.fits[0]:
            continue
        gathers = each.table.setting.sharding == "parameters"  # collectives: nearly lines
        rtol = 0.02 if gathers else 1e-9
        forward_s, backward_s = times.whole_forward_s[0, depth, row], times.whole_backward_s
        np.testing.assert_allclose(stages.forward_s[:, 0], forward_s, rtol=rtol)
        np.testing.assert_allclose(stages.backward_s[:, 0], backward_s[0, depth, row], rtol=rtol)
        link_s = times.part("link_s")[0, depth, row]
        np.testing.assert_allclose(stages.link_s[:-1, 0], link_s[:-1], rtol=1e-9)
        after_s = times.step_end_s()[0, depth, row]
        np.testing.assert_allclose(stages.after_s[:, 0], after_s, rtol=0.02, atol=1e-4)
    return plans


OPTIONS = [{}, {"experts": True}, {"tied": True}, {"meshes": True, "sharded": True}]


@pytest.mark.parametrize("options", slow_after(1, OPTIONS), ids=str)
@pytest.mark.parametrize(
    "text", slow_after(1, [None, "selective:layernorm", "none", "full:block:1", "full"])
)
def test_stages_take_the_seconds_of_the_cost_model_and_fit_where_it_says(
    options: dict[str, bool], text: str | None
) -> None:
    fitting = 0
    for seed in (901, 903, 907):
        space = random_space(seed, **options)
        recompute = None if text is None else Recompute.parse(text)
        pipelines = some_pipelines(space, recompute, random.Random(seed))
        if not pipelines:
            continue
        plans = checked_plans(space, pipelines)
        fits = evaluate(plans, space.workload.task, STACK, MARGIN).fits
        told = [
            PipelineStages(p.table, p.option[:, np.newaxis], p.layers[:, np.newaxis]).fits[0]
            for p in pipelines
        ]
        assert fits.tolist() == [bool(each) for each in told]
        fitting += int(fits.sum())
    assert fitting
