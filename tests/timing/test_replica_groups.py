"""Gradients of replica groups that are sharded differently, and uniform pipelines."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.cost.some_plans import changed, numbers, stack, view

from astra.api import predict, predict_plan
from astra.cost.step import step_s
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.parameters import parameters
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import plans_of
from astra.timing.collectives import all_reduce_s, all_to_all_s
from astra.timing.data_parallel import data_parallel_time
from astra.timing.stage import stage_times

BARE = stack(settings=(), data_factor=1.0, communication_factor=1.0, optimizer_factor=1.0)
H100, A100 = find_gpu("h100")[0], find_gpu("a100-80g")[0]


def two_replica_groups(
    layers: tuple[tuple[int, ...], tuple[int, ...]] = ((32,), (32,)),
    tps: tuple[int, int] = (2, 2),
    replicas: tuple[int, int] = (4, 8),
    micro_batches: tuple[int, int] = (20, 6),
    **fields: Any,
) -> Plan:
    """Llama 3 8B on H100 and, beside, on A100."""
    base = predict("llama-3-8b", gpus="h100:16", tp=2, global_batch=128, seq_len=4096).plan
    pools = tuple(Pool(gpu=gpu, count=64) for gpu in (A100, H100))
    segments = [
        Segment(gpu=gpu.name, stages=len(own), layers=own, tp=tp)
        for gpu, own, tp in zip((H100, A100), layers, tps, strict=True)
    ]
    pipelines = tuple(
        Pipeline(replicas=count, micro_batches=number, segments=(segment,))
        for count, number, segment in zip(replicas, micro_batches, segments, strict=True)
    )
    batch = sum(each.replicas * each.micro_batches for each in pipelines)
    settings = {"shard_group": replicas[0], "overlap_tp": False, "runtime": "any", **fields}
    cluster = Cluster(name="two types", pools=pools)
    return changed(base, cluster=cluster, pipelines=pipelines, global_batch=batch, **settings)


def test_a_piece_of_the_gradients_goes_over_the_network_at_the_slower_pace() -> None:
    """4 bytes a parameter over tp and copies: 4 x 8.03e9 / (2 x 4) of an H100, half of an A100."""
    plan = two_replica_groups()
    found = data_parallel_time(view(plan), BARE).inter_group_s[:, 0, 0]
    whole = 4.0 * parameters(plan.model).total
    slowest = max(
        all_reduce_s(whole / 2 / 4, 2, 1, H100, 1).item(),
        all_reduce_s(whole / 2 / 8, 2, 1, A100, 1).item(),
    )
    assert found == pytest.approx([slowest] * 2, rel=1e-3)  # norms are on every rank


def test_where_tensor_parallelism_differs_pieces_are_cut_anew_before_and_after() -> None:
    plan = two_replica_groups(tps=(2, 4), replicas=(4, 4))
    found = data_parallel_time(view(plan), BARE).inter_group_s[:, 0, 0]
    whole = 4.0 * parameters(plan.model).total / 4
    expected = max(
        all_reduce_s(whole / tp, 2, 1, gpu, 1).item()
        + 2 * all_to_all_s(whole / tp, tp, tp, gpu).item()
        for gpu, tp in ((H100, 2), (A100, 4))
    )
    assert found == pytest.approx([expected] * 2, rel=1e-3)


def test_a_stage_exchanges_its_own_layers_only() -> None:
    """Stages of one group with the layers of one stage of the other share its seconds out."""
    whole = data_parallel_time(view(two_replica_groups()), BARE).inter_group_s[:, 0, 0]
    plan = two_replica_groups(layers=((8, 24), (32,)), replicas=(8, 8), shard_group=8)
    found = data_parallel_time(view(plan), BARE).inter_group_s[..., 0]
    assert found[0, :2].sum() == pytest.approx(found[1, 0], rel=1e-6)
    assert found[0, 0] < found[0, 1]
    assert found[1, 0] == pytest.approx(whole[1])  # eight A100 set the pace of both


def test_one_replica_group_has_nothing_to_exchange() -> None:
    plan = predict("llama-3-8b", gpus="h100:16", tp=2, global_batch=128, seq_len=4096).plan
    assert not data_parallel_time(view(plan), BARE).inter_group_s.any()
    (pipeline,) = plan.pipelines
    some = [msgspec.structs.replace(pipeline, replicas=n) for n in (3, 5)]
    assert not data_parallel_time(
        view(changed(plan, pipelines=tuple(some))), BARE
    ).inter_group_s.any()


@pytest.mark.parametrize("sharding", ["none", "optimizer", "parameters"])
def test_uniform_pipelines_are_one_group_of_replicas(sharding: str) -> None:
    """Eight replicas, or three and five in groups of the same cut: the same seconds and bytes."""
    settings: dict[str, Any] = {"sharding": sharding, "global_batch": 128, "seq_len": 4096}
    one = predict("llama-3-8b", gpus="h100:16", tp=2, **settings).plan
    (pipeline,) = one.pipelines
    parts = tuple(msgspec.structs.replace(pipeline, replicas=count) for count in (3, 5))
    several = predict_plan(changed(one, pipelines=parts, runtime="any"))
    whole = predict_plan(changed(one, runtime="any"))
    for name, value in numbers(whole).items():
        assert numbers(several)[name] == pytest.approx(value, rel=1e-12), name
    rest = [row for row in several.memory.stages if row.pipeline == 1]
    assert [msgspec.structs.replace(row, pipeline=0) for row in rest] == list(whole.memory.stages)


def test_nobody_updates_a_layer_before_all_groups_have_its_gradients() -> None:
    """The step is the slowest group's last backward and reduction, and the longest of what comes
    behind, though the other group was done long before.
    """
    plan = two_replica_groups(micro_batches=(1, 30))
    seen = view(plan)
    times = stage_times(seen, BARE)
    alone = []
    for row in range(2):
        pipeline = msgspec.structs.replace(plan.pipelines[row], replicas=(4, 8)[row])
        own = changed(
            plan,
            pipelines=(pipeline,),
            global_batch=pipeline.replicas * pipeline.micro_batches,
            shard_group=pipeline.replicas,
        )
        only = view(own)
        its = stage_times(only, BARE)
        alone.append(
            step_s(plans_of([own]), only.stages, its)[0] - its.after_grads_ready_s()[0, 0, 0]
        )
    expected = max(alone) + times.after_grads_ready_s()[:, 0, 0].max()
    assert step_s(plans_of([plan]), seen.stages, times)[0] == pytest.approx(expected)
    assert alone[1] > 10 * alone[0]
    assert times.after_grads_ready_s()[0, 0, 0] != pytest.approx(
        times.after_grads_ready_s()[1, 0, 0]
    )


def test_a_faster_network_between_groups_never_takes_longer() -> None:
    plan = two_replica_groups(layers=((10, 22), (16, 16)), replicas=(4, 4))
    before = np.inf
    for factor in (0.1, 0.5, 1.0, 2.0, 8.0):
        pools = tuple(
            msgspec.structs.replace(
                pool,
                gpu=msgspec.structs.replace(
                    pool.gpu,
                    node=msgspec.structs.replace(
                        pool.gpu.node, nic_bytes_per_s=factor * pool.gpu.node.nic_bytes_per_s
                    ),
                ),
            )
            for pool in plan.cluster.pools
        )
        step = predict_plan(changed(plan, cluster=Cluster(name="x", pools=pools))).step_s
        assert step <= before * (1 + 1e-12)
        before = step


def test_of_several_pipelines_each_takes_as_many_micro_batches_in_turn_as_it_has_stages() -> None:
    """Interleaved over two and over four stages: with a group of four for both, the pipeline of
    two stages holds more at once, the other the same.
    """
    settings: dict[str, Any] = {"vpp": 2, "schedule": "interleaved", "overlap_p2p": True}
    layers = ((16, 16), (8, 8, 8, 8))
    plan = two_replica_groups(layers, micro_batches=(8, 8), **settings)
    assert plans_of([plan]).microbatch_groups[:, 0].tolist() == [2, 4]
    own, fixed = (predict_plan(each) for each in (plan, changed(plan, microbatch_group=4)))
    for less, more in zip(own.memory.stages, fixed.memory.stages, strict=True):
        if less.pipeline == 1:
            assert less == more
        else:
            assert less.activations_bytes < more.activations_bytes
