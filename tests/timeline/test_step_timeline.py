"""The timeline is the step of the answer: the same seconds, parts and bytes, moment by moment."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from tests.cost import some_plans
from tests.cost.some_plans import changed
from tests.support.tiers import slow_after

from astra.cost.price import price_plan
from astra.strategy.plan import Plan
from astra.timeline.pieces import PIECES, stage_pieces
from astra.timeline.step import StageTimeline, StepTimeline, step_timeline

SOON = 1e-9  # of the step: what rounding may change


def check_timeline(plan: Plan) -> None:
    priced, timeline = price_plan(plan), step_timeline(plan)

    def near(seconds: float) -> Any:
        return pytest.approx(seconds, rel=SOON, abs=SOON * priced.step_s)

    assert timeline.step_s == priced.step_s
    assert timeline.step_parts_s == priced.step_parts_s
    ends = [_end_s(stage) for each in timeline.pipelines for stage in each.stages]
    assert max(ends) == near(priced.step_s)  # events and columns agree
    busiest = timeline.pipelines[timeline.parts_pipeline].stages[timeline.parts_stage]
    assert busiest.stage == priced.parts_stage
    parts, found = dict(priced.step_parts_s), stage_pieces(busiest).seconds()
    waited = priced.step_s - sum(found.values())
    not_at_work = parts.pop("pipeline_comm") + parts.pop("bubble")
    assert found.pop("pipeline_comm") + waited == near(not_at_work)
    assert found == {name: near(seconds) for name, seconds in parts.items()}
    for each, own in zip(timeline.pipelines, plan.pipelines, strict=True):
        assert (len(each.stages), each.replicas) == (own.stages, own.replicas)
        for stage in each.stages:
            check_stage(stage, each.micro_batches * each.chunks, priced.step_s)


def _end_s(stage: StageTimeline) -> float:
    after = [seconds for name, seconds in stage.after_parts_s.items() if name != "reduce"]
    return stage.grads_ready_s + sum(after)


def check_stage(stage: StageTimeline, passes: int, step_s: float) -> None:
    """One thing at a time, each operation once, and its parts fill it."""
    start, end = np.array(stage.start_s), np.array(stage.end_s)
    assert len(start) == 2 * passes == 2 * stage.kind.count("forward")
    assert (start[1:] >= end[:-1]).all() and (end > start).all() and start[0] >= 0
    operations = set(zip(stage.kind, stage.chunk, stage.micro_batch, strict=True))
    assert len(operations) == 2 * passes
    pieces = stage_pieces(stage)
    assert (pieces.start_s[1:] >= pieces.end_s[:-1] - SOON * step_s).all()
    filled = np.zeros(len(start))
    rows = (pieces.operation >= 0) & (pieces.name != PIECES.index("transfer"))
    np.add.at(filled, pieces.operation[rows], (pieces.end_s - pieces.start_s)[rows])
    assert filled == pytest.approx(end - start, rel=SOON, abs=SOON * step_s)
    since = np.array(stage.memory_at_s)
    assert since[0] == 0 and (np.diff(since) > 0).all()
    assert stage.memory_bytes[-1] == pytest.approx(min(stage.memory_bytes))  # all let go of


@pytest.mark.parametrize("model", slow_after(1, some_plans.MODELS))
def test_the_timeline_of_a_plan_is_its_step(model: str) -> None:
    """1F1B and interleaved, one type and two, one replica group and two."""
    one, mixed = some_plans.legal_plans(model), some_plans.mixed_plans(model)
    chosen = [
        next(plan for plan in one if plan.vpp == 1 and plan.pp > 1),
        next(plan for plan in one if plan.vpp > 1),
        next(plan for plan in mixed if len(plan.pipelines) == 1),
        next(plan for plan in mixed if len(plan.pipelines) == 2),
    ]
    for plan in chosen:
        check_timeline(plan)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(some_plans.any_plan())
def test_the_timeline_of_any_plan_is_its_step(plan: Plan) -> None:
    check_timeline(plan)


def test_sends_that_block_lie_inside_of_operations() -> None:
    plan = changed(_pipelined(), stack="deepspeed-3d")
    check_timeline(plan)
    first, *_, last = step_timeline(plan).pipelines[0].stages
    assert first.op_parts_s["forward"]["send"][0] > 0 == first.op_parts_s["forward"]["receive"][0]
    assert last.op_parts_s["backward"]["send"][0] > 0 == last.op_parts_s["backward"]["receive"][0]


def test_sharded_parameters_are_gathered_in_every_operation() -> None:
    plan = changed(_pipelined(), sharding="parameters", shard_group=8, overlap_param_gather=False)
    check_timeline(plan)
    stage = step_timeline(plan).pipelines[0].stages[0]
    assert stage.op_parts_s["forward"]["data"][0] > 0 < stage.op_parts_s["backward"]["data"][0]


def test_an_offloaded_optimizer_is_told_apart() -> None:
    plan = changed(_pipelined(), offload_optimizer_fraction=0.5)
    check_timeline(plan)
    assert step_timeline(plan).pipelines[0].stages[0].after_parts_s["offloaded_optimizer"] > 0


def _pipelined() -> Plan:
    """1F1B over three stages or more."""
    return next(p for p in some_plans.legal_plans("llama-3-8b") if p.vpp == 1 and p.pp > 2)


def _peaks(plan: Plan) -> tuple[list[float], list[float]]:
    timeline, priced = step_timeline(plan), price_plan(plan)
    found = [max(s.memory_bytes) for each in timeline.pipelines for s in each.stages]
    return found, [row.allocated_bytes for row in priced.memory.stages]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(some_plans.any_plan())
def test_memory_peaks_at_what_the_answer_says(plan: Plan) -> None:
    """But for unlike chunks on the last stage, where the answer counts what is held at the loss."""
    found, said = _peaks(plan)
    if plan.chunk_layers is not None:
        found, said = found[:-1], said[:-1]
    assert found == pytest.approx(said, rel=1e-9)


def test_memory_rises_and_falls_with_the_micro_batches_in_flight() -> None:
    plan = _pipelined()
    found, said = _peaks(plan)
    assert found == pytest.approx(said, rel=1e-9)
    first, *_, last = step_timeline(plan).pipelines[0].stages
    assert max(first.memory_bytes) - first.memory_bytes[0] > 0
    assert len(set(first.memory_bytes)) > len(set(last.memory_bytes)) > 1


def test_an_input_on_its_way_shows_only_where_a_stage_waits_for_it() -> None:
    plan = _pipelined()
    first, *_, last = step_timeline(plan).pipelines[0].stages
    assert first.transfer_s[0] == 0  # the data are there
    assert last.transfer_s[0] > 0  # the first micro-batch comes over the link
    of_loss = [s for s, kind in zip(last.transfer_s, last.kind, strict=True) if kind == "backward"]
    assert of_loss == [0] * len(of_loss)


def test_a_timeline_survives_json() -> None:
    timeline = step_timeline(some_plans.mixed_plans("llama-3-8b")[0])
    assert msgspec.json.decode(msgspec.json.encode(timeline), type=StepTimeline) == timeline
