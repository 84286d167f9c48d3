"""Gradients, parameters and the optimizer between replicas of a stage."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from tests.cost import some_plans
from tests.cost.some_plans import changed, stack, view

from astra.api import predict
from astra.fit.runs import read_runs
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster
from astra.strategy.plan import Plan, Runtime
from astra.timing.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from astra.timing.constants import timing_constants
from astra.timing.data_parallel import DataParallelTime, data_parallel_time
from astra.timing.stage import stage_times

GPU = find_gpu("h100")[0]
MIXED = Path(__file__).parents[2] / "validation" / "runs" / "mixed.csv"
BARE = stack(settings=(), data_factor=1.0, communication_factor=1.0, optimizer_factor=1.0)


def llama(gpus: int = 16, **settings: Any) -> Plan:
    fields: dict[str, Any] = {"global_batch": 256, "seq_len": 4096, **settings}
    return predict("llama-3-8b", gpus=f"h100:{gpus}", **fields).plan


def copies(plan: Plan) -> DataParallelTime:
    return data_parallel_time(view(plan), BARE)


def held(plan: Plan) -> float:
    """Parameters of one GPU of the one stage."""
    return float(view(plan).parameters_per_gpu.dense.item())


def test_sharded_states_scatter_fp32_gradients_and_gather_bf16_weights() -> None:
    """4 bytes a parameter out and 2 back, over 16 GPUs in two nodes."""
    found, count = copies(llama()), held(llama())
    assert found.reduce_s.item() == pytest.approx(reduce_scatter_s(4 * count, 16, 8, GPU).item())
    assert found.gather_s.item() == pytest.approx(all_gather_s(2 * count, 16, 8, GPU).item())


def test_whole_states_reduce_all_and_gather_nothing() -> None:
    plan = llama(sharding="none")
    found, count = copies(plan), held(plan)
    assert found.reduce_s.item() == pytest.approx(all_reduce_s(4 * count, 16, 8, GPU).item())
    assert found.gather_s.item() == 0


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed", "fsdp"])
def test_sharded_gradients_are_reduced_with_every_micro_batch(runtime: Runtime) -> None:
    """With nothing to hide behind, n micro-batches reduce n times as often; FSDP2's pipelines keep
    whole gradients until the last.
    """
    fields: dict[str, Any] = {"tp": 1, "sharding": "gradients", "global_batch": 64}
    fields |= {"runtime": runtime, "overlap_grad_reduce": False, "overlap_param_gather": False}
    one, four = (data_seconds(llama(micro_batch=micro_batch, **fields)) for micro_batch in (4, 1))
    reduced = float(reduce_scatter_s(4 * held(llama(tp=1)), 16, 8, GPU))
    assert four - one == pytest.approx(3 * reduced, rel=1e-6)
    if runtime == "fsdp":
        piped = llama(pp=2, micro_batch=1, **fields)
        times = stage_times(view(piped), BARE)
        assert times.last_reduce_s().any() and not times.gather_backward_s.any()


def data_seconds(plan: Plan) -> float:
    """What a stage spends on replicas in one step, nothing of it hidden."""
    times = stage_times(view(plan), BARE)
    each = times.gather_forward_s + times.gather_backward_s
    once = times.first_gather_s() + times.last_reduce_s()
    return float((plan.pipelines[0].micro_batches * each + once).item())


@pytest.mark.parametrize(("gpus", "owners"), [(16, 16), (512, 9 * 32)])
def test_owners_of_whole_tensors_take_turns(gpus: int, owners: int) -> None:
    """As in InternEvo, which broadcasts from rank to rank; Llama 3 8B has 32 layers."""
    plan = llama(gpus, global_batch=1024)
    found = data_parallel_time(view(plan), msgspec.structs.replace(BARE, owned_tensors=9))
    part = held(plan) / owners
    gathered, scattered = (
        all_gather_s(2 * part, gpus, 8, GPU),
        reduce_scatter_s(4 * part, gpus, 8, GPU),
    )
    assert found.gather_s.item() == pytest.approx(owners * gathered.item())
    assert found.reduce_s.item() == pytest.approx(owners * scattered.item())
    assert found.gather_s.item() > copies(plan).gather_s.item()


def test_gradients_in_bf16_move_half_the_bytes() -> None:
    plan = llama(grad_reduce_dtype="bf16")
    assert copies(plan).reduce_s.item() == pytest.approx(
        reduce_scatter_s(2 * held(plan), 16, 8, GPU).item()
    )


@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
def test_shard_groups_scatter_inside_and_sum_their_shares_across(sharding: str) -> None:
    """32 copies in groups of 8, one in each of four nodes: fp32 gradients are scattered inside a
    node, an eighth of them is summed over four nodes, and weights are gathered inside a node.
    """
    plan = changed(llama(32, sharding=sharding), shard_group=8)
    found, count = copies(plan), held(plan)
    inside = reduce_scatter_s(4 * count, 8, 8, GPU).item()
    across = all_reduce_s(4 * count / 8, 4, 1, GPU).item()
    assert found.reduce_s.item() == pytest.approx(inside + across)
    assert found.gather_s.item() == pytest.approx(all_gather_s(2 * count, 8, 8, GPU).item())


def test_one_replica_sends_nothing() -> None:
    found = copies(llama(8, tp=8))
    assert found.reduce_s.item() == found.gather_s.item() == 0


def test_context_parallel_ranks_are_replicas_too() -> None:
    """tp 4 x cp 2 in every node: the gradient goes round 8 copies, two in each of four nodes."""
    plan = llama(32, tp=4, cp=2)
    assert copies(plan).reduce_s.item() == pytest.approx(
        reduce_scatter_s(4 * held(plan), 8, 2, GPU).item()
    )


@pytest.mark.parametrize("group", [1, 2, 8, 16])
def test_adam_runs_over_the_states_that_a_rank_holds(group: int) -> None:
    plan = changed(llama(), shard_group=group)
    per_byte = (
        held(plan)
        / group
        / (timing_constants().optimizer.bandwidth_fraction * GPU.memory_bytes_per_s)
    )
    assert copies(plan).adam_s.item() == pytest.approx(
        per_byte * (30.0 + timing_constants().optimizer.clip_bytes)
    )
    small = changed(plan, moment_dtypes=("fp8", "bf16"))  # 3 + 2 bytes less, read and written
    assert copies(small).adam_s.item() == pytest.approx(
        per_byte * (20.0 + timing_constants().optimizer.clip_bytes)
    )


def test_experts_are_reduced_among_the_ranks_that_hold_the_same() -> None:
    """ep 8 of 16 GPUs: dense gradients over 16, experts over 2 in different nodes."""
    plan = predict("mixtral-8x7b", gpus="h100:16", ep=8, global_batch=256, seq_len=4096).plan
    seen = view(plan)
    dense, experts = (
        float(seen.parameters_per_gpu.dense.item()),
        float(seen.parameters_per_gpu.experts.item()),
    )
    expected = reduce_scatter_s(4 * dense, 16, 8, GPU) + reduce_scatter_s(4 * experts, 2, 1, GPU)
    assert copies(plan).reduce_s.item() == pytest.approx(expected.item())


@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan())
def test_nothing_is_negative_and_unused_stages_send_nothing(plan: Plan) -> None:
    deep = max(some_plans.legal_plans(plan.model.name), key=lambda each: each.pp)
    seen = view(plan, deep)
    found = data_parallel_time(seen, BARE)
    used = seen.stages.count > 0
    for name in ("gather_s", "reduce_s", "adam_s", "slowdown"):
        column = getattr(found, name)
        assert np.isfinite(column).all() and (column >= 0).all()
        assert not column[~used].any()
    assert (found.adam_s[used] > 0).all()
    assert (found.adam_s + found.host_s >= 0).all()


def test_gradients_of_different_replica_groups_meet_at_the_pace_of_the_slowest() -> None:
    """Four replicas on one node and four on another: one group of eight, over the network."""
    one = llama(8, sharding="none", overlap_grad_reduce=False)
    (whole,) = one.pipelines
    half = msgspec.structs.replace(whole, replicas=4, micro_batches=whole.micro_batches * 2)
    apart = changed(one, pipelines=(half, half))
    payload = held(one) * 4.0
    expected = all_reduce_s(payload, 8, 4, GPU, 4).item()
    found = copies(changed(apart, cluster=_nodes_of_four(apart)))
    assert found.reduce_s[:, 0].ravel() == pytest.approx([expected] * 2)


def test_the_faster_of_two_types_waits_for_the_slower_and_no_longer() -> None:
    """V100 at 10 and T4 at 50 Gb/s a node: both reduce at the V100s' pace, not at both in turn."""
    run = next(run for run in read_runs(MIXED).runs if run.row_id == "amp-het-21")
    seen = view(run.plan)
    found = data_parallel_time(seen, BARE).reduce_s[:, 0].ravel()
    v100 = next(pool.gpu for pool in run.plan.cluster.pools if pool.gpu.name != "T4")
    expected = all_reduce_s(4.0 * float(seen.parameters_per_gpu.dense.max()), 16, 4, v100, 4).item()
    assert found == pytest.approx([expected] * 2)


@pytest.mark.parametrize(
    ("row", "measured_s"), [("sailor-het-04", 7.16698), ("sailor-het-08", 22.63707)]
)
def test_gradients_over_gigabit_ethernet_take_what_was_measured(
    row: str, measured_s: float
) -> None:
    """`gradient reduction ... of the step` in the notes of the rows; whatever a stack adds."""
    run = next(run for run in read_runs(MIXED).runs if run.row_id == row)
    slow = msgspec.structs.replace(BARE, data_factor=1.3)
    assert data_parallel_time(view(run.plan), slow).reduce_s[0, 0, 0] == pytest.approx(
        measured_s, rel=0.1
    )


def _nodes_of_four(plan: Plan) -> Cluster:
    (pool,) = plan.cluster.pools
    node = msgspec.structs.replace(pool.gpu.node, gpus=4)
    link = msgspec.structs.replace(pool.gpu.link, domain_gpus=4)
    gpu = msgspec.structs.replace(pool.gpu, node=node, link=link)
    return Cluster(name="two nodes", pools=(msgspec.structs.replace(pool, gpu=gpu),))
