"""Memory of a stage: its columns add up, its queue is as deep as the schedule makes it."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, stack, view, with_segments
from tests.simulate.random_pipelines import shapes

from astra.api import predict
from astra.cost.price import price_plans
from astra.memory.in_flight import in_flight
from astra.memory.stage import memory_of
from astra.simulate.schedule import interleaved, one_f_one_b
from astra.strategy.plan import Plan

STACK = stack()
COLUMNS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


@pytest.mark.slow
def test_columns_of_every_stage_sum_to_what_is_allocated() -> None:
    for found in price_plans(some_plans.every_plan()):
        for row in found.memory.stages:
            parts = [getattr(row, f"{name}_bytes") for name in COLUMNS]
            assert min(parts) >= 0 and row.runtime_bytes > 0
            assert math.fsum(parts) == pytest.approx(row.allocated_bytes, rel=1e-12)


@pytest.mark.slow
def test_the_plans_peak_is_the_stage_that_fills_its_gpu_most() -> None:
    plans = some_plans.every_plan()
    worst_stages = set()
    for plan, found in zip(plans, price_plans(plans), strict=True):
        memory = found.memory
        usable = {pool.gpu.name: pool.gpu.usable_bytes for pool in plan.cluster.pools}
        slack = 1 + STACK.slack_fraction
        filled = [
            (row.allocated_bytes * slack + row.runtime_bytes) / usable[row.gpu]
            for row in memory.stages
        ]
        worst = memory.stages[int(np.argmax(filled))]
        assert (worst.pipeline, worst.stage) == (memory.worst_pipeline, memory.worst_stage)
        assert memory.allocated_bytes == worst.allocated_bytes
        assert memory.usable_bytes == usable[worst.gpu]
        assert memory.fits == (max(filled) <= 0.95)
        assert [row.fits for row in memory.stages] == [each <= 0.95 for each in filled]
        assert [row.usable_bytes for row in memory.stages] == [usable[r.gpu] for r in memory.stages]
        reserved = [row.reserved_bytes / row.usable_bytes for row in memory.stages]
        assert reserved == pytest.approx(filled, rel=1e-12)
        assert memory.fit_probability == min(row.fit_probability for row in memory.stages)
        worst_stages.add(memory.worst_stage)
    assert len(worst_stages) > 2  # not always the first


@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan())
def test_the_two_views_of_a_table_agree_on_its_fullest_stage(plan: Plan) -> None:
    """Runs of alike stages, and one row a stage."""
    runs, stages = (
        memory_of(view(plan, every_stage=every), STACK).allocated_bytes for every in (False, True)
    )
    assert runs.max() == pytest.approx(stages.max(), rel=1e-12)


# ------------------------------------------------------------------ in flight


def in_flight_on(plan: Plan) -> list[float]:
    seen = view(plan)
    return [float(value) for value in in_flight(seen.plans, seen.stages)[0, :, 0]]


def piped(stages: int, chunks: int, micro_batches: int, group: int, extra: int) -> Plan:
    """A plan with this pipeline, whatever its layers."""
    base = some_plans.legal_plans("deepseek-v3")[0]
    plan = changed(
        base,
        vpp=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        microbatch_group=group if chunks > 1 else None,
        chunk_layers=None,
        overlap_ep=bool(extra),
    )
    plan = with_segments(plan, stages=stages, layers=(chunks,) * stages)
    (pipeline,) = plan.pipelines
    pipeline = msgspec.structs.replace(pipeline, micro_batches=micro_batches)
    return changed(plan, pipelines=(pipeline,))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 16), st.integers(1, 40))
def test_1f1b_holds_what_its_order_of_operations_holds(stages: int, micro_batches: int) -> None:
    plan = piped(stages, 1, micro_batches, stages, 0)
    formula = [min(micro_batches, stages - stage) for stage in range(stages)]
    assert in_flight_on(plan) == formula == list(one_f_one_b(stages, micro_batches).in_flight())


@settings(max_examples=60, deadline=None)
@given(shapes())
def test_interleaving_holds_what_its_order_of_operations_holds(shape: dict[str, int]) -> None:
    """min(m v, 2 (p - i - 1) + (v - 1) g + 1) chunks, one more with EP overlap."""
    p, v = shape["stages"], shape["chunks"]
    if v == 1:
        return
    m, g, extra = shape["micro_batches"], shape["group"], shape["extra_warmup"]
    found = [round(held * v) for held in in_flight_on(piped(p, v, m, g, extra))]
    formula = [min(m * v, 2 * (p - i - 1) + (v - 1) * g + 1 + extra) for i in range(p)]
    assert found == formula
    assert found == list(interleaved(p, v, m, g, extra_warmup=extra).in_flight())


def test_the_first_of_eight_stages_with_three_chunks_holds_31() -> None:
    assert in_flight_on(piped(8, 3, 64, 8, 0))[0] == pytest.approx(31 / 3)
    assert in_flight_on(piped(8, 1, 64, 8, 0))[0] == 8


@settings(max_examples=80, deadline=None)
@given(shapes(), st.data())
def test_unlike_chunks_are_held_as_long_as_their_order_of_operations_holds_them(
    shape: dict[str, int], data: st.DataObject
) -> None:
    p, v = shape["stages"], shape["chunks"]
    if v == 1:
        return
    m, g, extra = shape["micro_batches"], shape["group"], shape["extra_warmup"]
    listed = data.draw(st.lists(st.integers(0, 4), min_size=p * v, max_size=p * v))
    layers = np.reshape(listed, (v, p))
    plan = changed(piped(p, v, m, g, extra), chunk_layers=tuple(listed), mtp_layers=0)
    plan = with_segments(plan, layers=tuple(int(n) for n in layers.sum(axis=0)))
    order = interleaved(p, v, m, g, extra_warmup=extra)
    moved = np.where(order.backward, -1, 1) * layers[order.chunk, np.arange(p)[:, None]]
    found = moved.cumsum(axis=1)
    found[-1, order.backward[-1] | (order.chunk[-1] < v - 1)] = 0  # at the loss
    most = found.max(axis=1)
    held = np.array(in_flight_on(plan)) * layers.sum(axis=0)
    unlike = (layers != layers[:1]).any(axis=0)
    assert held[unlike] == pytest.approx(most[unlike])


def test_a_stage_whose_last_chunk_is_the_loss_holds_its_layer_four_times() -> None:
    """Six layers over four stages of two chunks, embedding and loss counted as layers: the last
    stage's one layer waits for a whole group. Megatron-LM's test of this split (4 x 1024 tokens,
    hidden 512) allocates 338 MiB more than two and a half times would.
    """
    plan = piped(4, 2, 4, 4, 0)
    plan = changed(plan, chunk_layers=(0, 1, 1, 1, 1, 1, 1, 0), mtp_layers=0)
    plan = with_segments(plan, layers=(1, 2, 2, 1))
    assert in_flight_on(plan)[-1] == 4


# ------------------------------------------------------------------ the rest


def test_logits_count_where_they_are_the_peak_and_on_the_last_stage_only() -> None:
    """Llama 3 8B: 128,256 words padded to 128 x tp, at 6 bytes, and the head's gathered input."""
    found = predict("llama-3-8b", gpus="h100:8", tp=2, pp=4, global_batch=64, seq_len=4096)
    *others, last = found.memory.stages
    assert not any(stage.logits_bytes for stage in others)
    words = -(-128_256 // 256) * 256
    assert last.logits_bytes == pytest.approx(4096 * (6 * words / 2 + 2 * 4096), rel=1e-12)


def test_each_kind_of_group_takes_a_communicators_memory() -> None:
    """tp, then tp and pp, then tp, pp and dp."""
    jobs = ("h100:2", 1), ("h100:4", 2), ("h100:8", 2)
    sizes = [
        predict("llama-3-8b", gpus=gpus, tp=2, pp=pp, global_batch=64, seq_len=4096)
        for gpus, pp in jobs
    ]
    grown = np.diff([found.memory.stages[0].runtime_bytes for found in sizes])
    assert grown == pytest.approx([0.41e9, 0.41e9])  # 390 MiB each, measured on one H200


@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan())
def test_unused_rows_of_a_table_hold_nothing(plan: Plan) -> None:
    """In a table with a deeper plan, stages that a plan does not have need no memory."""
    deep = max(some_plans.legal_plans(plan.model.name), key=lambda each: each.pp)
    found = memory_of(view(plan, deep), STACK)
    for pipeline, each in enumerate(plan.pipelines):
        assert not found.allocated_bytes[pipeline, each.stages :, 0].any()
        assert not found.runtime_bytes[pipeline, each.stages :, 0].any()
        assert (found.allocated_bytes[pipeline, : each.stages, 0] > 0).all()
