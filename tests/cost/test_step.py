"""The parts of a step add up, nothing takes less than it must, and bounds stay below."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, view

from astra.cost.price import price_plan, price_plans
from astra.cost.step import PARTS, pipeline_columns, simulated_step
from astra.hardware.stack import find_stack
from astra.strategy.plan import Plan
from astra.timing.plan_bounds import pipeline_bound_s
from astra.timing.stage import stage_times

STACK = find_stack("megatron")


@pytest.mark.slow
def test_parts_of_every_plan_sum_to_its_step_and_none_is_negative() -> None:
    for found in price_plans(some_plans.every_plan()):
        parts = found.step_parts_s
        assert tuple(parts) == PARTS
        assert sum(parts.values()) == pytest.approx(found.step_s, rel=1e-9)
        assert min(parts.values()) >= -1e-9 * found.step_s, (found.summary, parts)
        busiest = max(found.stage_parts_s, key=lambda each: found.step_s - each.parts_s["bubble"])
        assert (busiest.stage, busiest.parts_s) == (found.parts_stage, parts)
        places = [(row.pipeline, row.stage) for row in found.memory.stages]
        assert [(each.pipeline, each.stage) for each in found.stage_parts_s] == places
        for each in found.stage_parts_s:
            assert sum(each.parts_s.values()) == pytest.approx(found.step_s, rel=1e-9)
            assert min(each.parts_s.values()) >= -1e-9 * found.step_s


def test_the_first_stage_waits_for_its_first_chunk_alone() -> None:
    """For the parameters of so many layers as that chunk has, and the bubble is what is left."""
    plan = changed(
        some_plans.legal_plans("llama-3-8b")[0],
        vpp=2,
        schedule="interleaved",
        sharding="optimizer",
        overlap_param_gather=False,
    )
    (pipeline,) = plan.pipelines
    segment = msgspec.structs.replace(pipeline.segments[0], stages=2, layers=(24, 8), tp=1)
    pipeline = msgspec.structs.replace(pipeline, replicas=8, micro_batches=2, segments=(segment,))
    plan = changed(
        plan,
        pipelines=(pipeline,),
        shard_group=8 * plan.cp,
        global_batch=16 * plan.micro_batch,
        microbatch_group=2,
        mtp_layers=0,
    )
    waits = []
    for first in (1, 12, 23):
        found = price_plan(changed(plan, chunk_layers=(first, 4, 24 - first, 4)))
        parts = found.step_parts_s
        assert found.parts_stage == 0
        assert parts["bubble"] >= -1e-9 * found.step_s, first
        assert sum(parts.values()) == pytest.approx(found.step_s, rel=1e-9)
        waits.append(parts["data_comm"])
    assert 0 < waits[0] < waits[1] < waits[2]
    assert waits[1] - waits[0] == pytest.approx((waits[2] - waits[0]) / 2, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan())
def test_a_step_takes_no_less_than_the_work_of_its_busiest_stage(plan: Plan) -> None:
    seen = view(plan)
    times = stage_times(seen, STACK)
    step = simulated_step(seen.plans, seen.stages, times)
    work = (times.whole_forward_s + times.whole_backward_s)[..., 0]
    least = (seen.plans.micro_batches * work).max()
    assert step.step_s[0] >= least * (1 - 1e-9)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(some_plans.any_plan())
def test_bounds_fed_with_stage_times_never_exceed_the_simulated_step(plan: Plan) -> None:
    seen = view(plan)
    times = stage_times(seen, STACK)
    step = float(simulated_step(seen.plans, seen.stages, times).step_s[0])
    for pipeline in range(len(plan.pipelines)):
        pipes = pipeline_columns(seen.plans, seen.stages, times, pipeline)
        rows = len(pipes.forward_link_s)
        used = (np.arange(rows)[:, None] >= rows - pipes.stages).astype(np.int64)
        links, both_s = pipes.forward_link_s, pipes.forward_s + pipes.backward_s
        columns = (used, both_s[0], both_s.sum(axis=0), pipes.micro_batches, 0 * links, links)
        bound = pipeline_bound_s(*columns)
        assert 0 < bound[0] <= step * (1 + 1e-9), plan.summary()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(some_plans.MODELS), st.integers(0, 11))
def test_pipelines_side_by_side_end_with_the_last(model: str, row: int) -> None:
    """A plan of two pipelines takes as long as the slower of them."""
    plans = [plan for plan in some_plans.mixed_plans(model) if len(plan.pipelines) == 2]
    plan = plans[row % len(plans)]
    seen = view(plan)
    times = stage_times(seen, STACK)
    both = float(simulated_step(seen.plans, seen.stages, times).step_s[0])
    work = (times.whole_forward_s + times.whole_backward_s)[..., 0]
    busiest = (seen.plans.micro_batches * work).max(axis=1)
    idle = int(busiest.argmin())
    shorter = tuple(
        msgspec.structs.replace(each, micro_batches=1) if place == idle else each
        for place, each in enumerate(plan.pipelines)
    )
    assert price_plan(changed(plan, pipelines=shorter)).step_s <= both * (1 + 1e-9)
